"""Readings of curves: how a claim's number is read off the lines of a figure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semistream_papers.claims.claim import Figures

__all__ = [
    *("at", "best_x", "deviation", "everywhere", "falls", "grows", "interior", "last", "ratio"),
]

Reading = Callable[[Figures], float]


def at(figures: Figures, name: str, series: str, x: float) -> float:
    """The value of a series at the point nearest to x."""
    points = figures[name].lines[series]
    return min(points, key=lambda point: abs(point[0] - x))[1]


def ratio(name: str, over: str, under: str, x: float) -> Reading:
    """How many times a series is another at x."""
    return lambda figures: at(figures, name, over, x) / at(figures, name, under, x)


def grows(name: str, over: str, under: str, least_x: float = -1.0) -> Reading:
    """How many times the ratio of two series at the last point is that at the first."""

    def reading(figures: Figures) -> float:
        points, below = figures[name].lines[over], dict(figures[name].lines[under])
        ratios = [y / below[x] for x, y in points if x >= least_x and x in below]
        return ratios[-1] / ratios[0]

    return reading


def everywhere(
    name: str, over: str, under: str, least_x: float = -1.0, name_under: str = ""
) -> Reading:
    """The least ratio of two series over all points from least_x on."""

    def reading(figures: Figures) -> float:
        points = figures[name].lines[over]
        below = dict(figures[name_under or name].lines[under])
        pairs = [(y, below[x]) for x, y in points if x >= least_x and x in below]
        return min(y / other if other else float("inf") for y, other in pairs)

    return reading


def falls(name: str, series: str) -> Reading:
    """The last value of a series as a share of its first."""
    return lambda figures: figures[name].lines[series][-1][1] / figures[name].lines[series][0][1]


def last(name: str, series: str) -> Reading:
    """The last value of a series."""
    return lambda figures: figures[name].lines[series][-1][1]


def best_x(name: str, series: str) -> Reading:
    """Where a series is highest."""
    return lambda figures: max(figures[name].lines[series], key=lambda point: point[1])[0]


def deviation(name: str) -> Reading:
    """How far model and run lie apart, in percent, on average over all points of a figure.

    Not a number where runs were measured: the papers' models have the prices of their machines.
    """

    def reading(figures: Figures) -> float:
        lines = figures[name].lines
        apart = [
            abs(model - run) / run
            for label, points in lines.items()
            if f"{label}, model" in lines
            for (_, run), (_, model) in zip(points, lines[f"{label}, model"], strict=True)
        ]
        return float(100 * np.mean(apart)) if apart else float("nan")

    return reading


def interior(name: str, series: str) -> Reading:
    """1 if a series is highest at a point that is neither its first nor its last, else 0."""

    def reading(figures: Figures) -> float:
        xs = [x for x, _ in figures[name].lines[series]]
        return float(xs[0] < best_x(name, series)(figures) < xs[-1])

    return reading
