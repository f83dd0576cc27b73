"""Steps: what happens to the tuples of the source before they are joined.

A step is a function from frame to frame. It is called with the source once, to know the columns,
and with each micro-batch. A batch that is not staged yet may run it again, so it must be a function
of the rows only. Its result is staged with the batch; after that it never runs again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from semistream.errors import OptionError, SemistreamError
from semistream.relation.storage import harmless
from semistream.spark.columns import first_sentence

__all__ = ["Step", "after_steps", "checked_steps"]

Step: TypeAlias = Callable[[DataFrame], DataFrame]
"""A function of a frame that gives a frame."""


def checked_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; `OptionError` if one is not a function."""
    given: object = steps
    if not isinstance(given, Sequence) or not all(callable(step) for step in given):
        raise OptionError(
            f"steps={steps!r} must be a list of functions from DataFrame to DataFrame, such as "
            "partial(ss.surrogate_keys, keys=keys, on=…)."
        )
    return tuple(steps)


def after_steps(frame: DataFrame, steps: Sequence[Step], columns: Sequence[str] = ()) -> DataFrame:
    """The frame that the steps make; `OptionError` if one gives something else.

    `columns` is what its columns must be, if they are known.
    """
    for number, step in enumerate(steps, 1):
        is_stream = frame.isStreaming
        try:
            after: object = step(frame)
        except SemistreamError as error:
            error.args = (f"Step {number}, {_name(step)}: {error}",)
            raise
        except AnalysisException as error:
            raise OptionError(
                f"Step {number}, {_name(step)}, does not fit the columns {frame.columns}: "
                f"{first_sentence(error)}"
            ) from harmless(error)
        if not isinstance(after, DataFrame) or after.isStreaming != is_stream:
            kind = "streaming" if is_stream else "batch"
            raise OptionError(
                f"Step {number}, {_name(step)}, gives {after!r} for a {kind} DataFrame. It must "
                "give a DataFrame of the same kind."
            )
        frame = after
    if columns and frame.columns != list(columns):
        raise OptionError(
            f"The steps give the columns {frame.columns} for a micro-batch, but {list(columns)} "
            "for the source. They must be the same."
        )
    return frame


def _name(step: object) -> str:
    function = step.func if isinstance(step, partial) else step
    return str(getattr(function, "__name__", function))
