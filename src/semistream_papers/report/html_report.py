"""The report: one HTML page that needs no network, with each figure beside the paper's claim."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import Final

from semistream_papers.claims.claim import AGREES, DIFFERS, DIRECTION, FITTED, Verdict
from semistream_papers.claims.table import verdicts
from semistream_papers.figures.reproduction import Drawn, Reproduction
from semistream_papers.report.charts import write_chart
from semistream_papers.report.numbers import short_number
from semistream_papers.runs.platforms import PLATFORMS

__all__ = ["write_report"]

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc }
section { display: grid; grid-template-columns: minmax(20rem, 36rem) 1fr; gap: 1.5rem;
  margin: 2rem 0; align-items: start }
img { width: 100%; height: auto } table { border-collapse: collapse; font-size: 14px }
td, th { border-bottom: 1px solid #ddd; padding: .35rem .6rem; text-align: left;
  vertical-align: top }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.agrees { color: #006b3c } .direction { color: #7a5c00 } .differs { color: #a40000 }
nav { columns: 4; font-size: 14px } .note { color: #555; font-size: 14px }
summary { cursor: pointer; color: #0055aa } pre { font-size: 12px; overflow-x: auto }
@media (max-width: 50rem) { section { display: block } nav { columns: 2 } }
"""


def write_report(figures: list[Drawn], reproduction: Reproduction, folder: Path) -> Path:
    """Draw all charts into `folder` and write the report beside them; its path."""
    charts = {one.figure.name: write_chart(one, folder / "charts") for one in figures}
    found = {one.figure.name: one for one in figures}
    judged = verdicts(found)
    body = [_head(reproduction, judged), _table(judged), _platforms()]
    paper = ""
    for one in figures:
        if one.figure.paper != paper:
            paper = one.figure.paper
            body.append(f"<h2>{escape(paper)}</h2>")
        body.append(_section(one, charts[one.figure.name]["svg"], judged))
    title = "The papers' figures, drawn by semistream"
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><h1>{title}</h1>{''.join(body)}</html>\n"
    )
    path = folder / f"report-{reproduction.timing}-{reproduction.scale}.html"
    path.write_text(page, "utf-8")
    return path


def _head(reproduction: Reproduction, judged: list[Verdict]) -> str:
    words = (AGREES, DIRECTION, DIFFERS, FITTED)
    counts = {word: sum(v.says == word for v in judged) for word in words}
    commits = ", ".join(sorted(reproduction.results.values("commit")))
    return (
        f"<p>Timing <b>{reproduction.timing}</b>, scale <b>{reproduction.scale}</b>, "
        f"{len(reproduction.results)} runs, code {escape(commits)}. "
        f"Of {len(judged)} claims {counts[AGREES]} agree, of {counts[DIRECTION]} the direction "
        f"agrees, {counts[DIFFERS]} differ; {counts[FITTED]} are fitted: the prices were derived "
        "from them. Agreement is within a tolerance, 25 % unless the claim has its own.</p>"
    )


def _table(judged: list[Verdict]) -> str:
    rows = "".join(_row(one) for one in judged)
    return (
        "<h2>Claims</h2><table><tr><th>where</th><th>claim</th><th>paper</th><th>ours</th>"
        f"<th>verdict</th></tr>{rows}</table>"
    )


def _row(one: Verdict) -> str:
    claim = one.claim
    paper = "" if claim.paper is None else short_number(claim.paper)
    why = f'<div class="note">{escape(claim.reason)}</div>' if _needs_reason(one) else ""
    return (
        f'<tr><td><a href="#{claim.figures[0]}">{escape(claim.where)}</a></td>'
        f'<td>{escape(claim.says)}{why}</td><td class="number">{paper}</td>'
        f'<td class="number">{short_number(one.ours)} {escape(claim.unit)}</td>'
        f'<td class="{one.says.split()[0]}">{one.says}</td></tr>'
    )


def _needs_reason(one: Verdict) -> bool:
    return one.says not in (AGREES, FITTED) and bool(one.claim.reason)


def _platforms() -> str:
    parts = []
    for platform in PLATFORMS.values():
        items = "".join(f"<li>{escape(text)}</li>" for text in platform.derivation)
        parts.append(f"<h3>{escape(platform.name)}</h3><ul>{items}</ul>")
    return f"<h2>Prices of the papers' machines</h2>{''.join(parts)}"


def _section(one: Drawn, chart: Path, judged: list[Verdict]) -> str:
    figure = one.figure
    image = base64.b64encode(chart.read_bytes()).decode("ascii")
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in figure.notes)
    here = "".join(_row(v) for v in judged if figure.name in v.claim.figures)
    table = f"<table>{here}</table>" if here else ""
    return (
        f'<section id="{figure.name}"><div><img alt="{escape(figure.title)}" '
        f'src="data:image/svg+xml;base64,{image}">{_data(one)}</div>'
        f"<div><h3>Figure {figure.number}: {escape(figure.title)}</h3>"
        f"<p>The paper: {escape(figure.claim)}</p>{notes}{table}</div></section>"
    )


def _data(one: Drawn) -> str:
    """The points as a table."""
    rows = "".join(
        f"<tr><td>{escape(label)}</td>"
        + "".join(
            f'<td class="number">{short_number(x)} → {short_number(y)}</td>' for x, y in points[:24]
        )
        + "</tr>"
        for label, points in one.lines.items()
    )
    return f"<details><summary>data</summary><table>{rows}</table></details>"
