// Charts: uPlot draws them, the arrow keys walk along them, and a table below has their numbers.
"use strict";

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Times as everybody reads them, in the reader's own zone.
const two = number => String(number).padStart(2, "0");
const clock = {
  day: at => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`,
  minute: at => `${two(at.getHours())}:${two(at.getMinutes())}`,
  second: at => `${clock.minute(at)}:${two(at.getSeconds())}`,
  // A label of an axis whose labels are so many seconds apart.
  label: (at, apart) => apart >= 86400 ? clock.day(at).slice(5) : apart >= 60 ? clock.minute(at) : clock.second(at),
};

const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
};

const table = (titles, rows, label) => {
  const cell = value => {
    const text = value !== null && typeof value === "object" && !(value instanceof Node) ? value : null;
    if (text) return element("td", { class: "text" }, text.text);
    return element("td", {}, value === null || value === undefined ? "–" : value);
  };
  const body = rows.map(([first, ...rest]) =>
    element("tr", {}, element("th", { scope: "row" }, first), ...rest.map(cell)));
  const head = element("tr", {}, ...titles.map((title, i) => {
    const made = element("th", { scope: "col" }, title);
    const sample = rows.length ? rows[0][i] : null;
    const isText = i === 0 || (sample && typeof sample === "object" && !(sample instanceof Node));
    if (!isText) made.style.textAlign = "right";
    return made;
  }));
  const made = element("table", { "aria-label": label },
    titles.some(Boolean) ? element("thead", {}, head) : null, element("tbody", {}, ...body));
  return element("div", { class: "scroll" }, made);
};

// What a chart of the page is: `lines` have a column of the series, a name, and how to draw it.
class Chart {
  constructor({ title, lines, text, x = null, steps = null }) {
    Object.assign(this, { title, lines, text, steps });
    this.xText = x ?? (at => `${clock.day(new Date(at * 1000))} ${clock.second(new Date(at * 1000))}`);
    this.isTime = x === null;
    this.readout = element("p", { class: "readout" });
    this.frame = element("figure", { tabindex: "0", role: "img" });
    this.details = element("details", {}, element("summary", {}, "Numbers of this chart"));
    this.panel = element("article", { class: "panel" },
      element("div", { class: "chart-head" }, element("h2", {}, title), this.readout),
      this.frame, this.details);
    this.data = null;
    this.plot = null;
    this.frame.addEventListener("keydown", event => this.walk(event));
    this.frame.addEventListener("blur", () => this.tell(null));
    this.details.addEventListener("toggle", () => this.fill());
    new ResizeObserver(() => this.resize()).observe(this.frame);
  }

  show(data, marks = []) {
    this.data = data;
    this.marks = marks;
    const last = this.lines.map((line, i) => `${line.name} ${this.value(i, data[0].length - 1)}`);
    this.frame.setAttribute("aria-label",
      `${this.title}, ${data[0].length} points, at the end: ${last.join(", ")}. ` +
      "Arrow keys walk along it; the numbers are in the table below.");
    if (this.plot) this.plot.setData(data);
    else if (this.frame.clientWidth) this.draw();
    if (!this.plot || this.plot.cursor.idx === null || this.plot.cursor.idx === undefined) this.tell(null);
    this.fill();
  }

  draw() {
    if (this.plot) this.plot.destroy();
    const soft = css("--soft"), faint = css("--faint");
    const axis = { stroke: soft, font: "11px system-ui", ticks: { show: false }, grid: { stroke: faint, width: 1 } };
    this.plot = new uPlot({
      width: this.frame.clientWidth,
      height: 150,
      legend: { show: false },
      padding: [8, this.isTime ? 8 : 28, 0, 0],
      cursor: {
        y: false,
        drag: { x: false, y: false },
        points: { size: 6 },
        ...(this.isTime ? { sync: { key: "semistream" } } : {}),
      },
      scales: {
        x: { time: this.isTime, distr: this.isTime ? 1 : 3, log: 2 },
        y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 28, gap: 9, space: 70,
          values: (_, at, __, ___, apart) => at.map(value => value === null ? ""
            : this.isTime ? clock.label(new Date(value * 1000), apart) : this.xText(value)) },
        { ...axis, size: 62, space: 32, values: (_, at) => at.map(value => this.text(value)),
          ...(this.steps ? { incrs: this.steps } : {}) },
      ],
      series: [{}, ...this.lines.map(line => ({
        stroke: () => css(line.colour),
        width: line.width ?? 1.5,
        dash: line.dash,
        fill: line.fill ? () => css(line.colour) + "22" : undefined,
        points: { show: false },
        spanGaps: true,
      }))],
      hooks: {
        setCursor: [plot => this.tell(plot.cursor.idx)],
        draw: [plot => this.drawMarks(plot)],
      },
    }, this.data, this.frame);
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = css("--line");
    ctx.fillStyle = css("--ink");
    ctx.setLineDash([4, 4]);
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    this.marks.forEach(({ at, text }, i) => {
      const x = plot.valToPos(at, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const isRight = x > bbox.left + bbox.width * 0.7;
      ctx.textAlign = isRight ? "right" : "left";
      ctx.fillText(text, x + (isRight ? -5 : 5) * devicePixelRatio,
        bbox.top + bbox.height - (6 + 14 * i) * devicePixelRatio);
    });
    ctx.restore();
  }

  value(line, i) {
    const found = this.data[line + 1][i];
    return found === null || found === undefined ? "not known" : this.text(found);
  }

  // The numbers at a point, or the last ones.
  tell(i) {
    if (!this.data || !this.data[0].length) return;
    const isPoint = i !== null && i !== undefined;
    const at = isPoint ? i : this.data[0].length - 1;
    const parts = this.lines.map((line, number) => {
      const swatch = element("i", { "aria-hidden": "true" });
      swatch.style.borderColor = `var(${line.colour})`;
      swatch.style.borderTopStyle = line.dash ? "dashed" : "solid";
      return element("span", {}, swatch, `${line.name} `, element("b", {}, this.value(number, at)));
    });
    this.readout.replaceChildren(...(isPoint ? [this.xText(this.data[0][at])] : []), ...parts);
  }

  walk(event) {
    if (!this.plot) return;
    const last = this.data[0].length - 1, now = this.plot.cursor.idx ?? last;
    const step = event.shiftKey ? 10 : 1;
    const next = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const i = Math.max(0, Math.min(last, next));
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][i], "x"), top: 10 });
    this.tell(i);
    this.readout.setAttribute("aria-live", "polite");
  }

  fill() {
    if (!this.details.open || !this.data) return;
    const rows = Array.from(this.data[0], (at, i) =>
      [this.xText(at), ...this.lines.map((_, line) => this.value(line, i))]).reverse();
    const titles = [this.isTime ? "time" : "memory", ...this.lines.map(line => line.name)];
    this.details.replaceChildren(this.details.firstElementChild, table(titles, rows, this.title));
  }

  resize() {
    if (!this.data || !this.frame.clientWidth) return;
    if (this.plot) this.plot.setSize({ width: this.frame.clientWidth, height: 150 });
    else this.draw();
  }
}
