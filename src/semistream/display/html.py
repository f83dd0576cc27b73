"""Tables as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

__all__ = ["block", "fact_table", "table"]

_CELL = 'style="text-align:left;padding:1px 14px 1px 0"'
_NUMBER = 'style="text-align:right;padding:1px 14px 1px 0;font-variant-numeric:tabular-nums"'


def block(title: str, *pieces: str) -> str:
    """Pieces of HTML under a title."""
    head = f'<div style="font-weight:600;margin-bottom:4px">{escape(title)}</div>'
    return f'<div style="max-width:640px">{head}{"".join(pieces)}</div>'


def fact_table(facts: Mapping[str, object]) -> str:
    """A row for each fact; those that are None are left out."""
    rows = "".join(
        f'<tr><th scope="row" {_CELL}>{escape(name)}</th>'
        f"<td {_NUMBER}>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    return f"<table>{rows}</table>"


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a head."""
    head = "".join(f'<th scope="col" {_CELL}>{escape(title)}</th>' for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td {_NUMBER}>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
