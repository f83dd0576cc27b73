"""Turns: one after the other, but nobody waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import uuid4

import pytest

from semistream.turns import turn


def test_the_second_waits_for_the_first() -> None:
    what, order = uuid4().hex, list[str]()

    def second() -> None:
        with turn(what, 60.0):
            order.append("second")

    with turn(what, 60.0):
        other = threading.Thread(target=second)
        other.start()
        with turn(uuid4().hex, 60.0):
            order.append("something else")
        order.append("first")
    other.join(60)
    assert order == ["something else", "first", "second"]


def test_who_has_waited_long_enough_goes_on() -> None:
    what = uuid4().hex
    with turn(what, 60.0), turn(what, 0.01):
        pass


def test_without_a_place_for_the_lock_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    what = uuid4().hex
    with turn(what, 60.0), turn(what, 60.0):
        pass
