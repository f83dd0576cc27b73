"""Files changed on purpose, with checksums that are right again: what a checksum does not find."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

Content = dict[str, Any]


def manifest_path(master: Path) -> Path:
    """The newest manifest."""
    return max((master / "versions").glob("*.json"))


def forge_manifest(master: Path, edit: Callable[[Content], None]) -> None:
    """Change the newest manifest."""
    path = manifest_path(master)
    content = json.loads(path.read_bytes())
    del content["checksum"]
    edit(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["checksum"] = xxhash.xxh3_64_hexdigest(canonical.encode())
    path.write_text(json.dumps(content))


def forge_file(master: Path, role: str, edit: Callable[[bytearray], None]) -> None:
    """Change the bytes of an index or a filter."""

    def fit(content: Content) -> None:
        stored = content["files"][role]
        path = master / "data" / stored["name"]
        data = bytearray(path.read_bytes())
        edit(data)
        path.write_bytes(data)
        stored.update(bytes=len(data), checksum=xxhash.xxh3_64_hexdigest(bytes(data)))

    forge_manifest(master, fit)


def forge_index(
    master: Path, edit: Callable[[dict[str, np.ndarray[Any, Any]]], None], role: str = "index"
) -> None:
    """Change the columns of an index."""

    def rewrite(data: bytearray) -> None:
        table = pa.ipc.open_file(pa.py_buffer(bytes(data))).read_all().combine_chunks()
        columns = {name: table.column(name).to_numpy().copy() for name in table.column_names}
        edit(columns)
        batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data[:] = sink.getvalue().to_pybytes()

    forge_file(master, role, rewrite)


def forge_page(
    master: Path, page: int, edit: Callable[[bytearray], None], role: str = "index"
) -> None:
    """Change the bytes of a page, not how many they are; pages are counted round and round."""
    content = json.loads(manifest_path(master).read_bytes())
    files = content["page_files" if role == "index" else "locator_files"]

    def rewrite(columns: dict[str, np.ndarray[Any, Any]]) -> None:
        number = page % len(columns["file"])
        name = files[int(columns["file"][number])]["name"]
        offset, length = int(columns["offset"][number]), int(columns["length"][number])
        with open(master / "data" / name, "r+b") as file:
            file.seek(offset)
            data = bytearray(file.read(length))
            edit(data)
            file.seek(offset)
            file.write(data[:length])
        columns["checksum"][number] = xxhash.xxh3_64_intdigest(bytes(data[:length]))

    forge_index(master, rewrite, role)
