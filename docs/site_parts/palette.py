"""Colours of pictures and charts: one set for light pages, one for dark ones.

A picture names a colour by what it is for, as `var(--pic-ink)`. The file itself says what these
are, by the reader's system; on the site the page says it, by the reader's choice.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DARK", "LIGHT", "SERIES", "STYLE"]

LIGHT: Final = {
    "pic-ink": "#1f2328",
    "pic-soft": "#59636e",
    "pic-line": "#c3cad2",
    "pic-box": "#f3f6f9",
    "pic-1": "#0a6bb5",
    "pic-2": "#c4500b",
    "pic-3": "#0b7d5c",
    "pic-4": "#a8447c",
    "pic-5": "#8a6d00",
    "pic-1-pale": "#d6e9f8",
    "pic-2-pale": "#fbe3d3",
    "pic-3-pale": "#d5efe5",
    "pic-4-pale": "#f5dfec",
    "pic-5-pale": "#f5ebc8",
}
DARK: Final = {
    "pic-ink": "#e6edf3",
    "pic-soft": "#9da7b3",
    "pic-line": "#4b5561",
    "pic-box": "#1d242c",
    "pic-1": "#6cb6ff",
    "pic-2": "#ff9d5c",
    "pic-3": "#56d1a5",
    "pic-4": "#f28cc3",
    "pic-5": "#e6c64a",
    "pic-1-pale": "#143a5c",
    "pic-2-pale": "#54301a",
    "pic-3-pale": "#12453a",
    "pic-4-pale": "#4d2740",
    "pic-5-pale": "#463b12",
}
SERIES: Final = ("pic-1", "pic-2", "pic-3", "pic-4", "pic-5")


def _rules(colours: dict[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{value}" for name, value in colours.items()) + "}"


STYLE: Final = (
    f"<style>{_rules(LIGHT)}@media (prefers-color-scheme:dark){{{_rules(DARK)}}}"
    ".pic{font-family:Inter,system-ui,-apple-system,'Segoe UI',Arial,sans-serif}</style>"
)
"""The first child of each picture."""
