"""Cases at the very edge that a hostile test found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.errors import OptionError
from semistream.relation.key_table import assigned

LOWEST = -(2**63)


def joined(path: Path, rows: dict[str, Any], stream: dict[str, Any], **terms: Any) -> int:
    master = ss.MasterTable.from_arrow(pa.table(rows), path / "m", key=next(iter(rows)))
    options: dict[str, Any] = {"on": "k", "memory": "2MB"} | terms
    with ss.engine(master, **options) as engine:
        return sum(batch.num_rows for batch in engine.run(pa.table(stream)))


def test_a_row_of_the_earliest_time_is_no_tie(tmp_path: Path) -> None:
    rows, stream = {"k": [1], "f": [LOWEST]}, {"k": [1], "t": [0]}
    assert joined(tmp_path, rows, stream, as_of=("t", "f")) == 1


def test_two_rows_of_the_earliest_time_are_a_tie(tmp_path: Path) -> None:
    rows, stream = {"k": [1, 1], "f": [LOWEST, LOWEST]}, {"k": [1], "t": [0]}
    with pytest.raises(ss.errors.HistoryError):
        joined(tmp_path, rows, stream, as_of=("t", "f"))


@pytest.mark.parametrize(
    ("where", "rows"), [("null <=> null", 1), ("null is distinct from null", 0)]
)
def test_nulls_without_a_type_are_the_same(tmp_path: Path, where: str, rows: int) -> None:
    assert joined(tmp_path, {"k": [1], "v": [1]}, {"k": [1]}, where=where) == rows


@pytest.mark.parametrize(
    ("at_least", "length", "edits"),
    [(0.1, 10, 9), (0.1, 20, 18), (0.2, 5, 4), (0.2, 15, 12), (0.45, 20, 11), (0.9, 10, 1)],
)
def test_texts_just_similar_enough_are_similar(
    tmp_path: Path, at_least: float, length: int, edits: int
) -> None:
    pytest.importorskip("rapidfuzz")
    rows = {"no": [1], "t": ["a" * (length - edits) + "c" * edits]}
    stream = {"s": ["a" * (length - edits) + "b" * edits]}
    assert joined(tmp_path, rows, stream, on=ss.similar("s", "t", at_least=at_least)) == 1
    more = ss.similar("s", "t", at_least=at_least + 0.01)
    assert joined(tmp_path / "more", rows, stream, on=more) == 0


def test_what_arrow_cannot_compute_is_a_clear_error(tmp_path: Path) -> None:
    where = pc.field("x") / pc.field("z") > 0
    with pytest.raises(OptionError, match="cannot be computed: divide by zero"):
        joined(tmp_path, {"k": [1], "z": [0]}, {"k": [1], "x": [1]}, where=where)


def test_a_key_table_gives_no_number_twice_at_its_end(tmp_path: Path) -> None:
    keys = ss.key_table(tmp_path / "k", key={"p": "string"}, surrogate="pk", first=2**63 - 3)
    assert assigned(keys.path, [pa.array(["a", "b"])], ["p"]).tolist() == [2**63 - 3, 2**63 - 2]
    with pytest.raises(OptionError, match="no numbers left"):
        assigned(keys.path, [pa.array(["c"])], ["p"])
    assert ss.MasterTable.open(tmp_path / "k").row_count == 2


def test_estimates_of_nothing_and_of_what_is_no_number() -> None:
    sample = ss.Sample(0.1, by=["id"])
    none = ss.estimate([], sample, column="v")
    assert isinstance(none, ss.Estimates)
    assert none.count.value == 0.0
    with pytest.raises(OptionError, match="cannot be added up"):
        ss.estimate(pa.table({"id": [1], "v": ["a"]}), sample, column="v")
    with pytest.raises(OptionError, match="NoneType"):
        ss.estimate(cast(Any, None), sample)
