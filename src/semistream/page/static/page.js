// The page: asks for status.json every two seconds, and puts its numbers where they belong.
"use strict";

const EVERY = 2000;
const $ = id => document.getElementById(id);
const put = (id, ...children) => $(id).replaceChildren(...children);

const whole = number => Math.round(number).toLocaleString("en");
const known = (value, text) => value === null || value === undefined ? "–" : text(value);
const share = value => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
const short = number => {
  const [size, unit] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => number >= size) ?? [1, ""];
  const scaled = number / size;
  const figures = scaled >= 100 || Number.isInteger(scaled) ? 0 : scaled >= 10 ? 1 : 2;
  return scaled.toFixed(figures) + (unit && ` ${unit}`);
};
const bytes = size => {
  const units = [[2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "KB"]];
  const [factor, unit] = units.find(([factor]) => size >= factor) ?? [1, "bytes"];
  const scaled = size / factor;
  return `${scaled.toFixed(factor === 1 || scaled >= 100 || (scaled >= 10 && Number.isInteger(scaled)) ? 0 : 1)} ${unit}`;
};
const time = seconds => {
  if (seconds >= 172800) return `${Math.floor(seconds / 86400)} d`;
  if (seconds >= 7200) return `${Math.floor(seconds / 3600)} h`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} min`;
  if (seconds >= 1 || seconds === 0) return `${seconds.toFixed(seconds >= 10 || seconds === 0 ? 0 : 1)} s`;
  const millis = seconds * 1000;
  return `${millis.toFixed(millis >= 10 ? 0 : millis >= 1 ? 1 : 2)} ms`;
};
const moment = iso => `${clock.day(new Date(iso))} ${clock.second(new Date(iso))}`;

// Steps between the labels of an axis, where halves make no sense.
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map(step => step * 10 ** power)).flat();

const CHARTS = [
  { title: "Tuples per second", text: short, lines: [
    { name: "service", column: "service_rate", colour: "--line", dash: [4, 3] },
    { name: "arrival", column: "arrival_rate", colour: "--accent", fill: true }] },
  { title: "Batch time and lag of a tuple", text: time, lines: [
    { name: "lag", column: "lag_seconds", colour: "--soft" },
    { name: "longest", column: "longest_seconds", colour: "--line", dash: [4, 3] },
    { name: "mean", column: "seconds", colour: "--accent", fill: true }] },
  { title: "Tuples of a batch, by where they went", text: short, lines: [
    { name: "joined", column: "joined", colour: "--accent", fill: true },
    { name: "unmatched", column: "unmatched", colour: "--soft" },
    { name: "deferred", column: "deferred", colour: "--line", dash: [4, 3] },
    { name: "rejected", column: "rejected", colour: "--bad" }] },
  { title: "Answered from memory", text: share, lines: [
    { name: "hit ratio", column: "hit_ratio", colour: "--accent", fill: true }] },
  { title: "Pages read for 1,000 tuples", text: short, lines: [
    { name: "pages", column: "pages_per_1000", colour: "--accent", fill: true }] },
  { title: "Most memory of a task", text: bytes, steps: POWERS, lines: [
    { name: "budget", column: "budget", colour: "--line", dash: [4, 3] },
    { name: "peak", column: "peak_memory", colour: "--accent", fill: true }] },
  { title: "Tuples that wait", text: short, steps: WHOLE, lines: [
    { name: "for a master row", column: "waiting_retry", colour: "--accent", fill: true },
    { name: "deferred", column: "waiting_deferred", colour: "--line", dash: [4, 3] }] },
  { title: "Version of the master", text: whole, steps: WHOLE, lines: [
    { name: "version", column: "master_version", colour: "--accent" }] },
].map(one => new Chart(one));
const CURVE = new Chart({ title: "Rate against memory", text: short, x: bytes, lines: [
  { name: "tuples/s, expected", colour: "--accent", fill: true }] });

const showHeader = status => {
  document.title = `${status.name || "pipeline"} – semistream`;
  put("name", status.name || "A pipeline");
  $("state").dataset.state = status.state;
  put("state", status.state);
  const last = status.last;
  const facts = last ? [`batch ${whole(last.batch)}`, `${whole(status.totals.source)} tuples so far`] : ["no batch yet"];
  if (last?.algorithm) facts.push(last.algorithm);
  if (last) facts.push(`master version ${whole(last.master_version)}`);
  put("facts", facts.join(" · "));
  put("checkpoint", status.checkpoint);
};

const showWarnings = warnings => {
  const text = warnings.map(one => one.level + one.text).join("\n");
  // A list that has not changed is left alone: screen readers would tell it again.
  if ($("warnings").dataset.text === text) return;
  $("warnings").dataset.text = text;
  put("warnings", ...warnings.map(({ level, text }) =>
    element("li", { "data-level": level }, element("b", {}, level === "note" ? "" : `${level}: `), ...prose(text))));
};

const showFigures = ({ recent, memory, queues, lag, last }) => {
  const figures = [
    ["arrival, tuples/s", known(recent.arrival_rate, short)],
    ["service, tuples/s", known(recent.service_rate, short)],
    ["batch time", known(recent.batch_seconds, time)],
    ["time in batches", known(recent.busy, share)],
    ["from memory", known(recent.hit_ratio, share)],
    ["pages per 1,000", known(recent.pages_per_1000, short)],
    [memory.budget ? `of ${bytes(memory.budget)} memory` : "memory", known(memory.peak, bytes)],
    [queues.deferred && queues.catch_up_seconds ? `waiting, ${time(queues.catch_up_seconds)} of work` : "waiting tuples",
      short(queues.retry + queues.deferred)],
    ["lag of a tuple", known(lag.tuple_seconds, time)],
    ["since the last batch", last ? known(lag.quiet_seconds, time) : "–"],
  ];
  put("figures", ...figures.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
};

// Text in which `this` is code.
const prose = text => text.split("`").map((part, i) => i % 2 ? element("code", {}, part) : part);

const shade = (node, i) => { node.style.opacity = Math.max(1 - 0.14 * i, 0.2); return node; };

const showMemory = ({ budget, peak, parts }) => {
  const ordered = Object.entries(parts).sort((one, other) => other[1] - one[1]);
  const most = Math.max(budget ?? 0, ordered.reduce((sum, [, size]) => sum + size, 0), 1);
  $("memory-bar").hidden = !ordered.length;
  $("memory-bar").setAttribute("aria-label", ordered.map(([name, size]) => `${name} ${bytes(size)}`).join(", "));
  put("memory-bar", ...ordered.map(([name, size], i) => {
    const part = shade(element("span", { title: `${name}: ${bytes(size)}` }), i);
    part.style.width = `${100 * size / most}%`;
    return part;
  }));
  const rows = ordered.map(([name, size], i) =>
    [element("span", {}, shade(element("span", { class: "key", "aria-hidden": "true" }), i), name), bytes(size), share(size / most)]);
  rows.push(["peak", known(peak, bytes), known(peak, size => share(size / most))]);
  rows.push(["budget", known(budget, bytes), ""]);
  put("memory", table(["part", "held", "of the budget"], rows, "Memory by part"));
};

const showTotals = ({ totals, queues }) => {
  const ends = [["joined", totals.joined], ["unmatched", totals.unmatched], ["rejected", totals.rejected],
    ["waiting for a master row", queues.retry], ["deferred, waiting", queues.deferred]];
  const all = Math.max(totals.source, 1);
  const rows = ends.map(([name, count]) => {
    const bar = element("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${Math.max(0, Math.min(100 * count / all, 100))}%`;
    return [name, whole(count), share(count / all), element("span", { class: "shares" }, bar)];
  });
  rows.push(["came from the source", whole(totals.source), "", ""]);
  put("totals", table(["since the beginning", "tuples", "share", ""], rows, "Where tuples went"),
    element("p", { class: "note" }, `${whole(totals.outputs)} rows written; ${whole(totals.retried)} tuples looked for ` +
      `again; ${whole(totals.deferred)} put off; ${whole(totals.expired)} expired.`));
};

const showPlan = plan => {
  if (!plan) return put("plan", element("p", { class: "note" },
    "No plan is on record: it is that of a join with one master in one piece."));
  const { expected, measured } = plan;
  const compare = (name, key, text) => [name, known(expected?.[key], text), known(measured[key], text)];
  const rows = [
    compare("tuples/s of a task", "rate", whole),
    compare("answered from memory", "hit_share", share),
    ["pages for 1,000 tuples", known(expected?.io_per_tuple, value => short(1000 * value)),
      known(measured.io_per_tuple, value => short(1000 * value))],
    ["wait, mean and 99th percentile", known(expected?.wait_seconds, time), known(measured.p99_seconds, time)],
  ];
  put("plan", table(["", "expected", "measured"], rows, "The plan"),
    element("p", { class: "note" }, `${plan.algorithm} in ${bytes(plan.memory)}: ${plan.sizes.join(", ")}.`),
    ...(expected?.basis ?? []).map(line => element("p", { class: "note" }, ...prose(line))));
};

const showCurve = curve => {
  $("curve-panel").hidden = !curve;
  if (!curve) return;
  if (!CURVE.panel.isConnected) {
    // The panel is on the page already, with its own title.
    CURVE.panel.className = "";
    CURVE.panel.querySelector("h2").remove();
    put("curve", CURVE.panel, element("p", { class: "note", id: "curve-note" }));
  }
  const marks = [{ at: curve.memory, text: `today ${bytes(curve.memory)}` }];
  if (curve.knee) marks.push({ at: curve.knee, text: `knee ${bytes(curve.knee)}` });
  const columns = [curve.points.map(([size]) => size), curve.points.map(([, rate]) => rate)];
  CURVE.show(columns, marks);
  put("curve-note", `${curve.sentence} By the cost model; ${curve.knee_text}.`);
};

const showMasters = masters => {
  put("masters", ...(masters.length ? masters : [null]).map(one => {
    if (!one) return element("p", { class: "note" }, "Where the masters are is not on record.");
    const told = one.error ? one.error : [
      `version ${known(one.version, whole)} in the last batch, newest ${known(one.newest, whole)}`,
      one.behind ? `${whole(one.behind)} behind` : "up to date",
      `as of ${known(one.age_seconds, age => `${time(age)} ago`)}`,
      `${known(one.rows, whole)} rows, ${known(one.bytes, bytes)}`].join(" · ");
    const rows = (one.history ?? []).map(version => [whole(version.version), { text: moment(version.created) },
      { text: version.operation }, whole(version.row_count), whole(version.page_count)]);
    return element("div", {}, element("p", {}, one.name ? element("b", {}, `${one.name}: `) : null, told),
      element("p", { class: "note" }, one.place),
      rows.length ? table(["version", "made", "by", "rows", "pages"], rows, `History of the master ${one.name}`) : null);
  }));
};

const showCharts = series => {
  for (const chart of CHARTS) {
    const isShown = series.at && chart.lines.some(line => series[line.column].some(value => value !== null));
    chart.panel.hidden = !isShown;
    if (isShown) chart.show([series.at, ...chart.lines.map(line => series[line.column])]);
  }
};

const show = status => {
  showHeader(status);
  showWarnings(status.warnings);
  showFigures(status);
  showCharts(status.series);
  showMemory(status.memory);
  showTotals(status);
  showPlan(status.plan);
  showCurve(status.curve);
  showMasters(status.masters);
  document.body.dataset.batches = status.batches;
};

let timer = null, isPaused = false;

const refresh = async () => {
  clearTimeout(timer);
  try {
    const span = $("span").value;
    const answer = await fetch(`status.json${span ? `?last=${span}` : ""}`);
    const status = await answer.json();
    if (!answer.ok) throw new Error(status.error);
    show(status);
  } catch (error) {
    $("state").dataset.state = "unreachable";
    put("state", `not reachable: ${error.message}`);
  }
  if (!isPaused) timer = setTimeout(refresh, document.hidden ? 5 * EVERY : EVERY);
};

$("charts").append(...CHARTS.map(chart => chart.panel));
$("span").addEventListener("change", refresh);
$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", isPaused);
  $("pause").textContent = isPaused ? "Go on" : "Pause";
  if (isPaused) clearTimeout(timer); else refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && !isPaused) refresh(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  [...CHARTS, CURVE].forEach(chart => chart.plot && chart.draw()));
refresh();
