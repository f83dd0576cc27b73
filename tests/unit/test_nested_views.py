"""Views, dictionaries and runs inside other types: in the stream, in a master, in an update."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import UnsupportedTypeError

VIEW = pa.list_view(pa.int32())
TEXTS = pa.DictionaryArray.from_arrays(
    pa.array([0, 1, None, 0, 1]), pa.array(["aa", "b" * 20], pa.string_view())
)
RUNS = pa.RunEndEncodedArray.from_arrays(
    pa.array([1, 5], pa.int32()), pa.array(["a", "b"], pa.string_view())
)
NESTED = {
    "list in struct": pa.array(
        [{"a": [1, 2]}, {"a": None}, None, {"a": []}, {"a": [4]}], pa.struct([("a", VIEW)])
    ),
    "list in list": pa.array([[[1, 2], None], [], None, [[3]], [[]]], pa.list_(VIEW)),
    "view in view": pa.array([[[1, 2], None], [], None, [[3]], [[]]], pa.list_view(VIEW)),
    "list in pair": pa.array(
        [[[1, 2], None], [[], [5]], None, [[3], [1]], [[], []]], pa.list_(VIEW, 2)
    ),
    "list in map": pa.array(
        [[("a", [1])], [], None, [("b", None)], [("c", [])]], pa.map_(pa.string(), VIEW)
    ),
    "dictionary of texts": TEXTS,
    "dictionary of lists": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0, 1]), pa.array([[1], [2, 3]], VIEW)
    ),
    "dictionary in struct": pa.StructArray.from_arrays([TEXTS], ["d"]),
    "dictionary in list": pa.ListArray.from_arrays([0, 1, 2, 4, 4, 5], TEXTS),
    "runs": RUNS,
    "runs in struct": pa.StructArray.from_arrays([RUNS], ["r"]),
}


@pytest.mark.parametrize("what", NESTED)
def test_nested_views_join_as_what_they_show(tmp_path: Path, what: str) -> None:
    array = NESTED[what]
    batch = pa.record_batch({"id": pa.array(range(5), pa.int64()), "x": array})
    plain = pa.table({"id": pa.array(range(5)), "v": range(5)})
    master = ss.MasterTable.from_arrow(plain, tmp_path / "r", key="id")
    for stream in (batch, batch.slice(1, 3)):
        engine = ss.engine(master, on="id", memory="1MB", algorithm="hybridjoin")
        found = pa.Table.from_batches(list(engine.run([stream]))).sort_by("id")
        assert found["x"].to_pylist() == stream.column("x").to_pylist()
    table = pa.Table.from_batches([batch])
    stored = ss.MasterTable.from_arrow(table, tmp_path / "m", key="id").upsert(table.slice(1, 3))
    engine = ss.engine(stored, on="id", memory="1MB", algorithm="meshjoin")
    found = pa.Table.from_batches(list(engine.run([batch.select(["id"])]))).sort_by("id")
    assert found["x"].to_pylist() == array.to_pylist()


def test_a_slice_with_a_struct_of_nulls_is_upserted(tmp_path: Path) -> None:
    nothing = pa.array([{"n": None}] * 10, pa.struct([("n", pa.null())]))
    table = pa.table({"id": range(10), "s": nothing})
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id")
    assert master.upsert(table.slice(3, 4)).row_count == 10


def test_a_union_inside_a_struct_of_the_stream_is_refused(tmp_path: Path) -> None:
    kinds = pa.array([0, 1], pa.int8())
    union = pa.UnionArray.from_sparse(kinds, [pa.array([1, 2]), pa.array(["a", "b"])])
    struct = pa.StructArray.from_arrays([union], ["u"])
    batch = pa.record_batch({"id": pa.array([1, 2]), "x": struct})
    master = ss.MasterTable.from_arrow(pa.table({"id": [1], "v": [1]}), tmp_path / "r", key="id")
    with pytest.raises(UnsupportedTypeError, match=r"'x'.*struct"):
        list(ss.engine(master, on="id", memory="1MB").run([batch]))
