"""docs/format.md tells the truth: files are written, and read without semistream's readers."""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import semistream as ss
from semistream.errors import MasterFormatError
from semistream.parts.shed_file import ShedFile

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
ROWS = 500
TYPES: dict[str, Callable[[Any], bool]] = {
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "object of numbers": lambda value: all(type(one) is int for one in value.values()),
    "object of files": lambda value: all("name" in one for one in value.values()),
    "list of numbers": lambda value: all(type(one) is int for one in value),
    "list of strings": lambda value: all(isinstance(one, str) for one in value),
    "list of files": lambda value: all("name" in one for one in value),
}


def tables(heading: str) -> list[dict[str, str]]:
    """The tables under a heading: what is in the first column, without quotes, → the second."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
    found = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [
        {cells[1].strip(" `"): cells[2].strip() for cells in map(_cells, table.splitlines()[2:])}
        for table in found
    ]


def _cells(line: str) -> list[str]:
    return line.split("|")


def agree(content: dict[str, Any], described: dict[str, str]) -> None:
    """The fields are those that are described, with values of the types that are."""
    assert sorted(content) == sorted(described)
    wrong = [
        name
        for name, types in described.items()
        if not any(TYPES[one](content[name]) for one in types.split(" or "))
    ]
    assert wrong == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master table that has every kind of file: given order, a hashed key, a filter, shards."""
    path = tmp_path_factory.mktemp("format") / "goods.master"
    ids = np.random.default_rng(1).permutation(ROWS)
    goods = pa.table({"shop": [f"shop {i % 7}" for i in ids], "id": ids, "price": ids / 2})
    ss.MasterTable.from_arrow(
        goods,
        path,
        key=["shop", "id"],
        page_bytes=4096,
        layout="given",
        filter_bits=12,
        shards=2,
    )
    return path


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "versions" / "00000001.json").read_text())
    return content


def arrow_file(folder: Path, stored: dict[str, Any]) -> pa.Table:
    return pa.ipc.open_file(str(folder / "data" / stored["name"])).read_all()


def fmix64(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD % 2**64
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 % 2**64
    return h ^ h >> 33


def hashed(data: bytes) -> int:
    h = len(data) * 0x9E3779B97F4A7C15 % 2**64
    for at in range(0, len(data), 8):
        h = (h ^ int.from_bytes(data[at : at + 8], "little")) * 0x9FB21C651E98DF25 % 2**64
        h ^= h >> 32
    return fmix64(h)


def combined(*components: int) -> int:
    h = 0
    for c in components:
        h = fmix64((h + 0x9E3779B97F4A7C15) * 0x9FB21C651E98DF25 % 2**64 ^ c)
    return h


def signed(code: int) -> int:
    return code - 2**64 if code >= 2**63 else code


def shard(code: int, count: int) -> int:
    z = (code + 0x9FB21C651E98DF25) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return (z ^ z >> 31) % count


def test_the_manifest_has_the_fields_described(manifest: dict[str, Any]) -> None:
    fields, file_fields = tables("Manifest")
    agree(manifest, fields)
    for stored in [*manifest["files"].values(), *manifest["page_files"]]:
        agree(stored, file_fields)
    assert set(manifest["files"]) == {"index", "locator_index", "filter"}


def test_the_manifest_checksum_is_that_of_its_fields(manifest: dict[str, Any]) -> None:
    others = {name: value for name, value in manifest.items() if name != "checksum"}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    assert manifest["checksum"] == xxhash.xxh3_64_hexdigest(text.encode("ascii"))


def test_files_have_the_sizes_and_checksums_of_the_manifest(
    folder: Path, manifest: dict[str, Any]
) -> None:
    for stored in [*manifest["files"].values(), *manifest["page_files"]]:
        data = (folder / "data" / stored["name"]).read_bytes()
        wanted = xxhash.xxh3_64_hexdigest(data) if stored in manifest["files"].values() else ""
        assert (stored["bytes"], stored["checksum"]) == (len(data), wanted)
    named = [*manifest["files"].values(), *manifest["page_files"], *manifest["locator_files"]]
    assert {path.name for path in (folder / "data").iterdir()} == {one["name"] for one in named}


@pytest.mark.parametrize("role", ["index", "locator_index"])
def test_an_index_has_the_columns_described(
    folder: Path, manifest: dict[str, Any], role: str
) -> None:
    columns, _ = tables("Index")
    index = arrow_file(folder, manifest["files"][role])
    assert {field.name: str(field.type) for field in index.schema} == columns
    files = manifest["page_files" if role == "index" else "locator_files"]
    for entry in index.to_pylist():
        data = (folder / "data" / files[entry["file"]]["name"]).read_bytes()
        message = data[entry["offset"] :][: entry["length"]]
        assert xxhash.xxh3_64_intdigest(message) == entry["checksum"]
        assert len(message) <= (manifest["page_bytes"] if role == "index" else 16_384)


def test_compressed_pages_are_where_the_index_says(tmp_path: Path) -> None:
    columns, more = tables("Index")
    table = pa.table({"id": range(3_000), "name": ["the same"] * 3_000})
    ss.MasterTable.from_arrow(table, tmp_path, key="id", page_bytes=4096, compression="zstd")
    manifest = json.loads((tmp_path / "versions" / "00000001.json").read_text())
    assert manifest["compression"] == "zstd"
    index = arrow_file(tmp_path, manifest["files"]["index"])
    assert {field.name: str(field.type) for field in index.schema} == columns | more
    data = (tmp_path / "data" / manifest["page_files"][0]["name"]).read_bytes()
    for entry in index.to_pylist():
        block = data[entry["place"] :][: entry["size"]]
        page = pa.decompress(block, entry["length"], "zstd")
        assert xxhash.xxh3_64_intdigest(page) == entry["checksum"]


def numbers(block: bytes, at: int, bits: int, count: int) -> list[int]:
    """As the page says: base + (trend × i) >> 12 + bits."""
    base, trend = struct.unpack_from("<qq", block, at)
    whole = int.from_bytes(block[at + 16 : at + 16 + (count * bits + 7) // 8], "little")
    mask = (1 << bits) - 1
    return [base + ((trend * i) >> 12) + ((whole >> (i * bits)) & mask) for i in range(count)]


def text(codes: bytes, symbols: list[bytes]) -> bytes:
    found, rest = b"", list(codes)
    while rest:
        code = rest.pop(0)
        found += bytes([rest.pop(0)]) if code == 255 else symbols[code]
    return found


def unpacked(block: bytes, widths: list[int], tables: list[list[bytes]]) -> bytes:
    """A packed page, by what is written about it and by nothing else."""
    assert xxhash.xxh3_64_intdigest(block[8:]) == int.from_bytes(block[:8], "little")
    rows, head, body, buffers, patches = struct.unpack_from("<5i", block, 8)
    entries = [struct.unpack_from("<4B3i", block, 32 + 16 * k) for k in range(buffers)]
    page = bytearray(block[32 + 16 * buffers :][:head] + bytes(body))
    of_column = [width for width in widths for _ in range(3 if width < 0 else 2)]
    ends: list[int] = []
    for (kind, bits, places, _, at, begin, length), width in zip(entries, of_column, strict=True):
        data = b""
        if kind == 0:
            data = block[at : at + length]
        elif kind == 1:
            found = numbers(block, at, bits, rows)
            data = b"".join(n.to_bytes(width, "little", signed=True) for n in found)
        elif kind == 2:
            data = struct.pack(
                f"<{rows}d", *(n / 10**places for n in numbers(block, at, bits, rows))
            )
        elif kind == 3:
            ends, offsets_at = numbers(block, at, bits, rows + 1), head + begin
        else:
            cut = [block[at + a : at + b] for a, b in itertools.pairwise(ends)]
            values = [text(codes, tables[places]) for codes in cut]
            data = b"".join(values)
            offsets = itertools.accumulate(map(len, values), initial=0)
            packed = b"".join(n.to_bytes(-width, "little") for n in offsets)
            page[offsets_at : offsets_at + len(packed)] = packed
        page[head + begin : head + begin + len(data)] = data
    for k in range(patches):
        place, byte = struct.unpack_from("<iB", block, len(block) - 16 - 5 * (patches - k))
        page[place] = byte
    return bytes(page)


def test_packed_pages_are_as_described(tmp_path: Path) -> None:
    names = [None if n % 7 == 0 else f"Foldable Lamp {n * 37 % 1000:05}" for n in range(3_000)]
    table = pa.table(
        {
            "id": [5 * n for n in range(3_000)],
            "name": names,
            "price": [n * 31 % 10_000 / 100 for n in range(3_000)],
            "noise": np.random.default_rng(1).random(3_000),
            "money": pa.array([Decimal(n) / 100 for n in range(3_000)], pa.decimal128(12, 2)),
            "flag": [n % 3 == 0 for n in range(3_000)],
            "long": pa.array(names, pa.large_string()),
        }
    )
    ss.MasterTable.from_arrow(table, tmp_path, key="id", page_bytes=4096, compression="packed")
    manifest = json.loads((tmp_path / "versions" / "00000001.json").read_text())
    assert manifest["compression"] == "packed"
    data = (tmp_path / "data" / manifest["page_files"][0]["name"]).read_bytes()
    magic, size, digest, columns = struct.unpack_from("<8sqQq", data)
    assert (magic, columns) == (b"SEMIPACK", 7)
    assert xxhash.xxh3_64_intdigest(data[24:size]) == digest
    widths = list(struct.unpack_from(f"<{columns}q", data, 32))
    assert widths == [8, -4, 8, 8, 16, 0, -8]
    at, varying = 32 + 8 * columns, 2
    lengths = at + 8 * 256 * varying
    assert size == lengths + 256 * varying
    tables = [
        [data[at + 8 * k :][: data[lengths + k]] for k in range(256 * n, 256 * (n + 1))]
        for n in range(varying)
    ]
    packed = 0
    for entry in arrow_file(tmp_path, manifest["files"]["index"]).to_pylist():
        page = block = data[entry["place"] :][: entry["size"]]
        if entry["size"] < entry["length"]:
            page, packed = unpacked(block, widths, tables), packed + 1
        assert len(page) == entry["length"]
        assert xxhash.xxh3_64_intdigest(page) == entry["checksum"]
    assert packed > 20


def test_a_key_table_has_its_mark_in_the_schema(tmp_path: Path) -> None:
    (described,) = tables("Key tables")
    ss.key_table(tmp_path / "keys", key={"id": "string"}, surrogate="k", first=40)
    manifest = json.loads((tmp_path / "keys/versions/00000001.json").read_text())
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest["schema"])))
    found = {key.decode(): value.decode() for key, value in schema.metadata.items()}
    assert found == dict(zip(described, ["k", "40"], strict=True))


def test_the_pages_are_those_of_the_index(folder: Path, manifest: dict[str, Any]) -> None:
    (stored,) = manifest["page_files"]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest["schema"])))
    assert schema.names == ["shop", "id", "price", "__code"]
    assert schema.field("__code") == pa.field("__code", pa.int64(), nullable=False)
    reader = pa.ipc.open_file(str(folder / "data" / stored["name"]))
    assert reader.schema.equals(schema)
    pages = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    index = arrow_file(folder, manifest["files"]["index"]).to_pylist()
    assert [page.num_rows for page in pages] == [entry["rows"] for entry in index]
    edges = [(page["__code"][0].as_py(), page["__code"][-1].as_py()) for page in pages]
    assert edges == [(entry["first"], entry["last"]) for entry in index]
    assert max(entry["length"] for entry in index) <= manifest["page_bytes"]
    assert manifest["shard_starts"][-1] == manifest["page_count"] == len(pages)


def test_codes_and_shards_are_computed_as_described(folder: Path, manifest: dict[str, Any]) -> None:
    rows = arrow_file(folder, manifest["page_files"][0]).to_pylist()
    assert len(rows) == ROWS
    for row in rows:
        code = combined(hashed(row["shop"].encode()), fmix64(row["id"]))
        assert row["__code"] == signed(code)
    owners = [shard(row["__code"] % 2**64, 2) for row in rows]
    assert owners == sorted(owners)


def test_the_locator_says_on_which_pages_a_code_is(folder: Path, manifest: dict[str, Any]) -> None:
    (columns,) = tables("Locator")
    (stored,) = manifest["locator_files"]
    locator = arrow_file(folder, stored)
    assert {field.name: str(field.type) for field in locator.schema} == columns
    assert not any(field.nullable for field in locator.schema)
    reader = pa.ipc.open_file(str(folder / "data" / manifest["page_files"][0]["name"]))
    found: dict[int, list[int]] = {}
    for page in range(reader.num_record_batches):
        for code in reader.get_batch(page)["__code"].to_pylist():
            found.setdefault(code, []).append(page)
    told = {row["code"]: (row["first_page"], row["last_page"]) for row in locator.to_pylist()}
    assert told == {code: (pages[0], pages[-1]) for code, pages in found.items()}


def test_the_filter_has_the_bits_described(folder: Path, manifest: dict[str, Any]) -> None:
    data = (folder / "data" / manifest["files"]["filter"]["name"]).read_bytes()
    magic, bits, probes, blocks, keys = struct.unpack("<8s4q24x", data[:64])
    assert (magic, bits, keys) == (b"SSBLOOM1", 12, ROWS)
    assert len(data) == 64 + 64 * blocks
    expected = bytearray(64 * blocks)
    for row in arrow_file(folder, manifest["page_files"][0]).to_pylist():
        m = fmix64(row["__code"] % 2**64)
        block = (m >> 32) * blocks >> 32
        for probe in range(probes):
            if probe % 7 == 0:
                m = fmix64((m + 0x9E3779B97F4A7C15) % 2**64)
            bit = m >> 9 * (probe % 7) & 511
            expected[64 * block + bit // 8] |= 1 << bit % 8
    assert data[64:] == expected


def test_another_format_number_is_refused(tmp_path: Path) -> None:
    (numbers,) = tables("Format numbers")
    ss.MasterTable.from_arrow(pa.table({"id": [1]}), tmp_path, key="id")
    path = tmp_path / "versions" / "00000001.json"
    content = json.loads(path.read_text())
    assert content["format_version"] == int(numbers["master table"])
    for other, advice in ((1, "Upgrade semistream"), (-1, "Build it again")):
        newer = content | {"format_version": content["format_version"] + other}
        path.write_text(json.dumps(newer))
        with pytest.raises(MasterFormatError, match=advice):
            ss.MasterTable.open(tmp_path)


@pytest.mark.slow
@pytest.mark.service
def test_a_checkpoint_has_the_files_described(tmp_path: Path) -> None:
    spark = ss.local_session(1, memory="1g")
    ss.MasterTable.from_arrow(pa.table({"id": [1, 2]}), tmp_path / "goods.master", key="id")
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "0.json").write_text('{"id": 1}\n{"id": 9}\n')
    pipeline = ss.Pipeline(
        spark.readStream.schema("id long").json(str(tmp_path / "sales")),
        tmp_path / "goods.master",
        on="id",
        sink=str(tmp_path / "out"),
        checkpoint=tmp_path / "checkpoint",
        memory="4MB",
        unmatched=ss.Retry(backoff="1h", deadline="9h"),
        trigger="availableNow",
    ).start()
    pipeline.await_termination()
    home = tmp_path / "checkpoint" / "semistream"
    batches = home / "batches"
    identity = json.loads((batches / "pipeline.json").read_text())
    assert sorted(identity) == ["format", "id"]
    agree(json.loads((batches / "00000000.json").read_text()), tables("Record")[0])
    outcome = json.loads((batches / "00000000.done.json").read_text())
    agree(outcome, tables("Outcome")[0])
    agree(outcome["counts"], tables("Counts")[0])
    names = sorted(path.name for path in batches.iterdir())
    assert names == ["00000000.done.json", "00000000.json", "pipeline.json"]
    paths = [path.removeprefix("semistream/") for path in tables("Checkpoint of a pipeline")[0]]
    assert {path.name for path in home.iterdir()} <= {path.partition("/")[0] for path in paths}
    (entry,) = (home / "retry").iterdir()
    assert re.fullmatch(r"\d{8}(-\d+){6}", entry.name)
    owner = json.loads((tmp_path / "out" / "_semistream.json").read_text())
    assert owner == {"format": 1, "owner": f"{identity['id']}/sink"}
    assert (tmp_path / "out" / "batch=0" / "_committed.json").is_file()


def test_a_shed_folder_has_the_files_described(tmp_path: Path) -> None:
    shed = ShedFile.recover(tmp_path)
    shed.append(1.5, pa.record_batch({"id": np.arange(5000)}))
    shed.take(10)
    shed.let_go(10)
    shed.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cursor.json",
        "shed-00000001.arrows",
    ]
    metadata, fields = tables("Shed folder")
    cursor = json.loads((tmp_path / "cursor.json").read_text())
    agree(cursor, fields)
    segment = tmp_path / "shed-00000001.arrows"
    sealed = {"1": [5000, segment.stat().st_size]}
    assert cursor == {"format": 1, "segment": 1, "done": 10, "sealed": sealed}
    reader = pa.ipc.open_stream(str(segment))
    messages = pa.ipc.MessageReader.open_stream(str(segment))
    assert messages.read_next_message().type == "schema"
    for rows in (4096, 904):
        batch, custom = reader.read_next_batch_with_custom_metadata()
        assert batch.num_rows == rows
        assert {key.decode() for key in custom.keys()} == set(metadata)  # noqa: SIM118
        body = messages.read_next_message().body.to_pybytes()
        digest = xxhash.xxh3_64(b"1.5" + body).hexdigest()
        assert dict(custom) == {b"semistream.since": b"1.5", b"semistream.body": digest.encode()}
