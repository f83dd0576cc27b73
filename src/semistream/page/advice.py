"""Warnings in words: what is wrong with a pipeline, or soon will be, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from semistream.display.sizes import memory_text, time_text

__all__ = ["Advice", "advice"]

_BUSY: Final = 0.9
_FEW: Final = 5
"""With fewer batches nothing is said of rates: the first ones start workers."""
_MANY_UNMATCHED: Final = 0.2
_MANY_REJECTED: Final = 0.01
_SLOW: Final = 0.5
_LONG_AGO: Final = 60.0


class Advice(NamedTuple):
    """One warning."""

    level: str
    """"error", "warning" or "note"."""
    text: str


def advice(status: Mapping[str, Any]) -> list[Advice]:
    """What is to be said of a status, the worst first."""
    found = [*_state(status), *_load(status), *_routes(status), *_master(status), *_plan(status)]
    return sorted(found, key=lambda one: ("error", "warning", "note").index(one.level))


def _state(status: Mapping[str, Any]) -> Iterator[Advice]:
    if status["state"] == "failed":
        yield Advice("error", f"The pipeline has failed. {status['error'] or ''}".strip())
    if status["state"] == "gone":
        yield Advice(
            "error",
            "The pipeline's process has ended without saying so: it was killed. Start it again "
            "with the same checkpoint; nothing is lost.",
        )
    quiet, trigger = status["lag"]["quiet_seconds"], status["trigger"] or 0.0
    if status["state"] == "running" and quiet is not None and quiet > max(_LONG_AGO, 3 * trigger):
        yield Advice(
            "note",
            f"No batch has ended for {time_text(quiet)}: the source rests, or a batch is long.",
        )


def _load(status: Mapping[str, Any]) -> Iterator[Advice]:
    recent, queues = status["recent"], status["queues"]
    if recent["batches"] < _FEW:
        return
    busy, target = recent["busy"], status["batch_target"]
    if busy is not None and busy > _BUSY and not status["once"]:
        yield Advice(
            "warning",
            f"Batches take {busy:.0%} of the time: there is hardly any room for more tuples. More "
            "tasks or more memory would make some.",
        )
    if target is not None and recent["batch_seconds"] > 1.2 * target:
        yield Advice(
            "warning",
            f"Batches take {time_text(recent['batch_seconds'])}, and batch_target is "
            f"{time_text(target)}.",
        )
    if queues["deferred_grows"]:
        yield Advice(
            "warning",
            f"{queues['deferred']:,} deferred tuples wait, and more with every batch: tuples "
            "arrive faster than they are joined.",
        )


def _routes(status: Mapping[str, Any]) -> Iterator[Advice]:
    recent = status["recent"]
    for name, limit, told in (
        ("unmatched", _MANY_UNMATCHED, "have no master row. Is the master complete?"),
        ("rejected", _MANY_REJECTED, "are rejected: look at the column reason of that sink."),
    ):
        share = recent[f"{name}_share"]
        if share is not None and share > limit:
            yield Advice("warning", f"{share:.1%} of the tuples of late {told}")


def _master(status: Mapping[str, Any]) -> Iterator[Advice]:
    for one in status["masters"]:
        named = f"The master {one['name']}" if one["name"] else "The master"
        if "error" in one:
            yield Advice("note", f"{named} cannot be looked at from here: {one['error']}")
        elif one["behind"] and one["behind"] > 1:
            yield Advice("note", f"{named} has {one['behind']} versions that no batch has had yet.")


def _plan(status: Mapping[str, Any]) -> Iterator[Advice]:
    plan, recent, curve = status["plan"], status["recent"], status["curve"]
    if plan is not None and plan["expected"] and recent["batches"] >= _FEW:
        expected, measured = plan["expected"]["rate"], plan["measured"]["rate"]
        if measured is not None and measured < _SLOW * expected:
            yield Advice(
                "note",
                f"A task does {measured:,.0f} tuples/s, and the plan expected {expected:,.0f}. "
                "`semistream tune --calibrate` measures this machine; batches of few tuples are "
                "slower than the plan says.",
            )
    if curve is not None:
        level = "warning" if curve["sentence"].startswith("Memory is the limit") else "note"
        yield Advice(level, f"{curve['sentence']} (By the cost model.)")
    memory = status["memory"]
    if memory["peak"] is not None and memory["budget"] and memory["peak"] > memory["budget"]:
        yield Advice(
            "error",
            f"A task held {memory_text(memory['peak'])}, more than its budget of "
            f"{memory_text(memory['budget'])}. This is a fault of semistream: please report it.",
        )
