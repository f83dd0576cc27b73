"""Every error a user can meet without Spark: its type, and that the message says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import (
    BudgetError,
    ColumnClashError,
    CorruptPageError,
    KeyColumnError,
    KeyTypeError,
    MasterExistsError,
    MasterFormatError,
    MasterNotFoundError,
    OptionError,
    SemistreamError,
    StreamSchemaError,
    UnknownAlgorithmError,
    UnsupportedTypeError,
)
from semistream.testing import PageReads, assert_same_rows, checked_run, oracle_join

ADVICE = re.compile(
    r"\b(Give|Use|Name|Choose|Rename|Cast|Pass|Build|build|Restore|Upgrade|upgrade|choose|"
    r"Install|Finish|Its options|must be|must name|must give|replace=True)\b"
)
PRODUCTS = pa.table(
    {
        "id": pa.array(np.arange(1000), pa.int64()),
        "shop": pa.array(np.arange(1000) % 7, pa.int32()),
        "name": [f"product {i}" for i in range(1000)],
    }
)
SALES = pa.record_batch({"id": np.arange(20), "sale": np.arange(20)})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ss.MasterTable.from_arrow(PRODUCTS, tmp_path / "products", key="id", page_bytes=4096)
    return tmp_path / "products"


def run(root: Path, stream: Any = SALES, algorithm: str = "hybridjoin", **arguments: Any) -> None:
    chosen: dict[str, Any] = {"on": "id", "memory": "1MB"} | arguments
    engine = ss.engine(ss.MasterTable.open(root), algorithm=algorithm, **chosen)
    list(engine.run(stream if isinstance(stream, list) else [stream]))


def composite(root: Path, **arguments: Any) -> None:
    path = root.parent / "composite"
    ss.MasterTable.from_arrow(PRODUCTS, path, key=["id", "shop"])
    run(path, **arguments)


def built(root: Path, table: pa.Table, **arguments: Any) -> None:
    ss.MasterTable.from_arrow(table, root.parent / "other", **({"key": "id"} | arguments))


def renamed(*names: str) -> pa.RecordBatch:
    return SALES.rename_columns(list(names))


def typed(kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(3, kind)], names=["id"])


class Case(NamedTuple):
    error: type[SemistreamError]
    says: list[str]
    do: Callable[[Path], object]


CASES: dict[str, Case] = {
    "the stream has no key column": Case(
        KeyColumnError,
        ["['id']", "'product', 'sale'"],
        lambda r: run(r, renamed("product", "sale")),
    ),
    "the stream lacks the column that `on` names": Case(
        KeyColumnError, ["['bought']", "'id', 'sale'"], lambda r: run(r, on={"bought": "id"})
    ),
    "`on` is not the master's key": Case(
        KeyColumnError, ["'name'", "['id']"], lambda r: run(r, on="name")
    ),
    "`on` covers a part of the key": Case(
        KeyColumnError, ["['id', 'shop']"], lambda r: composite(r, on="id")
    ),
    "`on` names more than the key": Case(
        KeyColumnError, ["['id']"], lambda r: run(r, on=["id", "sale"])
    ),
    "`on` names a key column twice": Case(
        KeyColumnError, ["twice"], lambda r: run(r, on={"id": "id", "sale": "id"})
    ),
    "`on` names nothing": Case(KeyColumnError, ["['id']"], lambda r: run(r, on=[])),
    "the master's data has no key column": Case(
        KeyColumnError,
        ["product_id", "id, shop, name"],
        lambda r: built(r, PRODUCTS, key="product_id"),
    ),
    "a master key named twice": Case(
        KeyColumnError, ["different columns"], lambda r: built(r, PRODUCTS, key=["id", "id"])
    ),
    "a column name twice in the stream": Case(
        KeyColumnError, ["twice", "'id', 'id'"], lambda r: run(r, renamed("id", "id"))
    ),
    "key types that cannot match: text": Case(
        KeyTypeError,
        ["'id'", "string", "int64", "never match"],
        lambda r: run(r, typed(pa.string())),
    ),
    "key types that cannot match: a float": Case(
        KeyTypeError, ["double", "int64"], lambda r: run(r, typed(pa.float64()))
    ),
    "key types that cannot match: a date": Case(
        KeyTypeError, ["date32", "int64"], lambda r: run(r, typed(pa.date32()))
    ),
    "a float as the master's key": Case(
        KeyTypeError,
        ["'x'", "double", "cannot be a join key"],
        lambda r: built(r, pa.table({"x": [1.5]}), key="x"),
    ),
    "a list as the master's key": Case(
        KeyTypeError, ["'x'", "list"], lambda r: built(r, pa.table({"x": [[1]]}), key="x")
    ),
    "a column on both sides": Case(
        ColumnClashError,
        ["['name']", "both sides", "columns="],
        lambda r: run(r, renamed("id", "name")),
    ),
    "a chosen column on both sides": Case(
        ColumnClashError, ["['shop']"], lambda r: run(r, renamed("id", "shop"), columns=["shop"])
    ),
    "a budget below the minimum": Case(
        BudgetError, ["memory=5,000", "hybridjoin", "the least is"], lambda r: run(r, memory=5000)
    ),
    "a budget below the minimum of fixed sizes": Case(
        BudgetError,
        ["the least is", "options that fix sizes"],
        lambda r: run(r, memory="100KB", stream_slots=10**6),
    ),
    "no master at the path": Case(
        MasterNotFoundError, ["nowhere"], lambda r: ss.MasterTable.open(r.parent / "nowhere")
    ),
    "no such version": Case(
        MasterNotFoundError, ["7"], lambda r: ss.MasterTable.open(r, version=7)
    ),
    "a master is there already": Case(
        MasterExistsError,
        ["version 1", "replace=True"],
        lambda r: ss.MasterTable.from_arrow(PRODUCTS, r, key="id"),
    ),
    "an unknown algorithm": Case(
        UnknownAlgorithmError,
        ["'quickjoin'", *ss.ALGORITHMS],
        lambda r: run(r, algorithm="quickjoin"),
    ),
    "an unknown kind of join": Case(
        OptionError, ["how='outer'", '"inner"', '"left"'], lambda r: run(r, how="outer")
    ),
    "an unknown way to read": Case(
        OptionError, ["io='mmap'", "buffered", "direct"], lambda r: run(r, io="mmap")
    ),
    "memory that is no size": Case(
        OptionError, ["64 bits", '"64MB"'], lambda r: run(r, memory="64 bits")
    ),
    "memory that is no number": Case(OptionError, ["memory=None"], lambda r: run(r, memory=None)),
    "an option of another algorithm": Case(
        OptionError,
        ["hybridjoin", "'chunk_tuples'", "partition_pages, look_ups, stream_slots"],
        lambda r: run(r, chunk_tuples=5),
    ),
    "an option that is misspelt": Case(
        OptionError, ["'partiton_pages'"], lambda r: run(r, partiton_pages=5)
    ),
    "a size of nothing": Case(
        OptionError, ["stream_slots=0", "at least 1"], lambda r: run(r, stream_slots=0)
    ),
    "a size that is not whole": Case(
        OptionError, ["partition_pages=1.5", "whole number"], lambda r: run(r, partition_pages=1.5)
    ),
    "a size that is a truth value": Case(
        OptionError, ["partition_pages=True"], lambda r: run(r, partition_pages=True)
    ),
    "columns that the master does not have": Case(
        OptionError, ["'colour'", "'id', 'shop', 'name'"], lambda r: run(r, columns=["colour"])
    ),
    "columns named twice": Case(
        OptionError, ["each once"], lambda r: run(r, columns=["name", "name"])
    ),
    "an unknown layout": Case(
        OptionError,
        ["layout='sorted'", "key, given"],
        lambda r: built(r, PRODUCTS, layout="sorted"),
    ),
    "pages too small": Case(
        OptionError, ["page_bytes=100", "4096"], lambda r: built(r, PRODUCTS, page_bytes=100)
    ),
    "a payload that cannot be stored": Case(
        UnsupportedTypeError,
        ["'u'", "union"],
        lambda r: built(r, pa.table({"id": [1, 2], "u": dense_union()})),
    ),
    "a batch of another schema": Case(
        StreamSchemaError,
        ["receipt", "sale", "one schema"],
        lambda r: run(r, [SALES, renamed("id", "receipt")]),
    ),
    "something that is not a batch": Case(
        StreamSchemaError, ["list", "pyarrow.RecordBatch"], lambda r: run(r, [[1, 2, 3]])
    ),
}


def dense_union() -> pa.Array:
    return pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()),
        pa.array([0, 0], pa.int32()),
        [pa.array([1]), pa.array(["a"])],
    )


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_to_do_before_anything_is_read(root: Path, name: str) -> None:
    case = CASES[name]
    with PageReads() as reads, pytest.raises(SemistreamError) as caught:
        case.do(root)
    message = str(caught.value)
    assert type(caught.value) is case.error, message
    for part in case.says:
        assert part in message
    assert ADVICE.search(message), f"no advice in: {message}"
    assert message.endswith((".", "]", "}")) or "\n" in message
    if case.error is not StreamSchemaError:
        assert reads.pages == [], "pages were read before the error"


def test_a_master_of_a_newer_format(root: Path) -> None:
    (manifest,) = (root / "versions").glob("*.json")
    content = json.loads(manifest.read_text())
    content["format_version"] = 999
    manifest.write_text(json.dumps(content))
    with pytest.raises(MasterFormatError, match=r"999") as caught:
        ss.MasterTable.open(root)
    assert ADVICE.search(str(caught.value))


def flip_a_byte(root: Path, page: int) -> Callable[[], None]:
    """Break a page; gives back how to mend it."""
    master = ss.MasterTable.open(root)
    (path,) = (root / "data").glob("*.pages.arrow")
    at = int(master.pages.offset[page] + master.pages.length[page] - 20)
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)

    def mend() -> None:
        content[at] ^= 0xFF
        path.write_bytes(content)

    return mend


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_a_corrupt_page_names_file_and_page_and_stops_the_join(
    tmp_path: Path, algorithm: str, layout: str
) -> None:
    """What was handed out before is right, nothing of the page is; mended, all is there again."""
    root = tmp_path / "r"
    master = ss.MasterTable.from_arrow(PRODUCTS, root, key="id", page_bytes=4096, layout=layout)
    page = master.page_count - 2
    mend = flip_a_byte(root, page)
    stream = [pa.record_batch({"id": np.arange(n, 1000, 10)}) for n in range(10)]
    engine = ss.engine(master, algorithm=algorithm, on="id", how="left", memory="96KB")
    expected = oracle_join(stream, PRODUCTS, on="id", how="left").rows
    found: list[pa.RecordBatch] = []
    with pytest.raises(CorruptPageError, match=rf"Page {page} of .*pages\.arrow") as caught:
        found.extend(engine.run(stream))
    assert ADVICE.search(str(caught.value))
    given_out = [row for batch in found for row in batch.to_pylist()]
    right = [dict(zip(("id", "shop", "name"), row, strict=True)) for row in expected]
    assert all(row in right for row in given_out[:50])
    bad = set(range(*bounds(master, page))) if layout == "key" else set()
    assert not bad & {row["id"] for row in given_out}
    mend()
    assert_same_rows(checked_run(engine, stream), expected)


def bounds(master: ss.MasterTable, page: int) -> tuple[int, int]:
    return int(master.pages.first[page]), int(master.pages.last[page]) + 1


@pytest.mark.parametrize("algorithm", ["hybridjoin", "xhybridjoin", "oxhybridjoin", "inlj"])
def test_a_corrupt_index_page_names_its_file(tmp_path: Path, algorithm: str) -> None:
    """In the given layout the dense index is read from disk too."""
    root = tmp_path / "r"
    master = ss.MasterTable.from_arrow(PRODUCTS, root, key="id", page_bytes=4096, layout="given")
    (path,) = (root / "data").glob("*.locator.arrow")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    engine = ss.engine(master, algorithm=algorithm, on="id", memory="96KB")
    stream = [pa.record_batch({"id": np.arange(1000)})]
    with pytest.raises(CorruptPageError, match=r"locator\.arrow") as caught:
        list(engine.run(stream))
    assert ADVICE.search(str(caught.value))


def test_page_files_that_vanish_are_named(root: Path) -> None:
    master = ss.MasterTable.open(root)
    (path,) = (root / "data").glob("*.pages.arrow")
    path.unlink()
    with pytest.raises(MasterFormatError, match=r"pages\.arrow is missing") as caught:
        list(ss.engine(master, algorithm="inlj", on="id", memory="1MB").run([SALES]))
    assert ADVICE.search(str(caught.value))
    with pytest.raises(MasterFormatError, match=r"pages\.arrow is missing"):
        ss.MasterTable.open(root)


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_an_error_of_the_source_comes_through_unchanged(root: Path, algorithm: str) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield SALES
        raise TimeoutError("the broker does not answer")

    engine = ss.engine(ss.MasterTable.open(root), algorithm=algorithm, on="id", memory="1MB")
    with pytest.raises(TimeoutError, match="the broker does not answer"):
        list(engine.run(source()))


@pytest.mark.parametrize("on", ["id", ["id"], {"id": "id"}], ids=str)
def test_errors_of_arguments_come_before_the_stream_is_touched(root: Path, on: Any) -> None:
    """`engine` itself refuses: a stream that was opened for nothing is never asked."""
    master = ss.MasterTable.open(root)
    for bad in ({"how": "outer"}, {"io": "mmap"}, {"memory": "much"}, {"stream_slots": 0}):
        with pytest.raises(OptionError):
            ss.engine(master, algorithm="hybridjoin", **({"on": on, "memory": "1MB"} | bad))
    with pytest.raises(KeyColumnError):
        ss.engine(master, algorithm="hybridjoin", on="nothing", memory="1MB")


def test_the_engine_says_what_it_is(root: Path) -> None:
    engine = ss.engine(ss.MasterTable.open(root), algorithm="meshjoin", on="id", memory="1MB")
    assert repr(engine).startswith("Engine('meshjoin', MasterTable(")
    assert "memory=1048576" in repr(engine)


def test_memory_that_the_machine_does_not_have(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise MemoryError("Unable to allocate 128. GiB")

    monkeypatch.setattr("semistream.algorithms.hybridjoin.HybridJoin.assemble", refused)
    with pytest.raises(BudgetError, match=r"does not have the [\d,]+ bytes .* 128\. GiB\. Give"):
        run(root)
