"""Tables as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

__all__ = ["block", "fact_table", "note", "table"]

_LEFT: Final = "text-align:left;font-weight:normal;padding:1px 16px 1px 0"
_RIGHT: Final = "text-align:right;font-weight:normal;padding:1px 16px 1px 0"
_FIGURES: Final = "font-variant-numeric:tabular-nums;border-collapse:collapse;margin:4px 0"


def block(title: str, *pieces: str) -> str:
    """Pieces of HTML under a title."""
    head = f'<div style="font-weight:600;margin-bottom:4px">{escape(title)}</div>'
    return f'<div style="max-width:640px">{head}{"".join(pieces)}</div>'


def note(text: str) -> str:
    """A line of small text."""
    return f'<div style="font-size:smaller;opacity:0.75">{escape(text)}</div>'


def fact_table(facts: Mapping[str, object]) -> str:
    """A row for each fact; those that are None are left out."""
    rows = "".join(
        f'<tr><th scope="row" style="{_LEFT};opacity:0.75">{escape(name)}</th>{_cell(value)}</tr>'
        for name, value in facts.items()
        if value is not None
    )
    return f'<table style="{_FIGURES}">{rows}</table>'


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a head; numbers are on the right."""
    rows = [list(row) for row in rows]
    first = rows[0] if rows else titles
    head = "".join(
        f'<th scope="col" style="{_side(cell)};opacity:0.75">{escape(title)}</th>'
        for title, cell in zip(titles, first, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<table style="{_FIGURES}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(value: object) -> str:
    return f'<td style="{_side(value)}">{escape(str(value))}</td>'


def _side(value: object) -> str:
    """Numbers stand on the right, dates and words on the left."""
    text = str(value)
    return _RIGHT if text[:1].isdigit() and "T" not in text else _LEFT
