"""A reproduction: runs what the chosen figures need, each setting once, and gives their lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from semistream_papers.figures.drawings import DRAWINGS, Lines
from semistream_papers.figures.figure import Figure
from semistream_papers.figures.paper_models import paper_model
from semistream_papers.figures.quantities import quantity, timelines
from semistream_papers.runs.result_file import ResultFile
from semistream_papers.runs.runner import Result, run
from semistream_papers.runs.setting import Setting

__all__ = ["Drawn", "Reproduction"]


@dataclass(frozen=True)
class Drawn:
    """A figure with its points: by series, for charts and claims."""

    figure: Figure
    lines: Lines
    spread: dict[str, list[float]]
    """Of measured series: how far the runs of each point lay apart, as a share."""


class Reproduction:
    """The figures of one timing and scale, and the file that holds their results."""

    def __init__(self, folder: Path, timing: str, scale: str) -> None:
        """Results go to `folder`/`timing`-`scale`.jsonl."""
        self.timing = timing
        self.scale = scale
        self.results = ResultFile(folder / f"{timing}-{scale}.jsonl")
        self._masters = folder / "masters"

    def missing(self, figures: Iterable[Figure]) -> list[Setting]:
        """The settings that still have to be run, each once."""
        found: dict[str, Setting] = {}
        for figure in figures:
            for point in figure.points(self.scale):
                key = point.setting.key(self.timing)
                if self.results.find(key) is None:
                    found[key] = point.setting
        return list(found.values())

    def run(
        self,
        settings: list[Setting],
        ended: Callable[[Setting], None] = lambda _: None,
        processes: int | None = None,
    ) -> None:
        """Run settings and store their results as they come; `ended` is called after each.

        Priced runs do not disturb each other, so as many run at a time as there are cores.
        """
        if self.timing == "priced":
            finished = _parallel(settings, processes or os.cpu_count() or 1)
        else:
            self._masters.mkdir(parents=True, exist_ok=True)
            finished = ((one, run(one, self.timing, self._masters)) for one in settings)
        for setting, result in finished:
            self.results.add(setting, self.timing, result)
            ended(setting)

    def drawn(self, figure: Figure) -> Drawn:
        """The lines of a figure whose settings have all been run."""
        if figure.drawing:
            return Drawn(figure, DRAWINGS[figure.drawing](), {})
        found: Lines = {}
        spread: dict[str, list[float]] = {}
        for point in figure.points(self.scale):
            result = self._result(point.setting)
            if point.quantity.startswith("timeline:"):
                found |= timelines(point.quantity, result)
                continue
            y = quantity(point.quantity, point.setting, result)
            found.setdefault(point.series, []).append((point.x, y))
            if "spread" in result:
                spread.setdefault(point.series, []).append(result["spread"])
            if figure.predicted and self.timing == "priced":
                model = paper_model(point.quantity, point.setting, result)
                if model is not None:
                    found.setdefault(f"{point.series}, model", []).append((point.x, model))
        return Drawn(figure, found, spread)

    def complete(self, figures: Iterable[Figure]) -> dict[str, Drawn]:
        """Those of the figures that consist of runs, and whose runs have all been done."""
        some = [one for one in figures if one.base is not None and not self.missing([one])]
        return {one.name: self.drawn(one) for one in some}

    def _result(self, setting: Setting) -> Result:
        result = self.results.find(setting.key(self.timing))
        if result is None:
            raise LookupError(f"{setting} has not been run with {self.timing} timing.")
        return result


def _parallel(settings: list[Setting], processes: int) -> Iterator[tuple[Setting, Result]]:
    """Results as they come, from processes of their own; the longest runs begin first."""
    if not settings:
        return
    settings = sorted(settings, key=lambda one: -one.memory * one.factor)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: dict[Future[Result], Setting] = {pool.submit(run, one): one for one in settings}
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield running.pop(future), future.result()
