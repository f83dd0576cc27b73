"""Hostile files of a master table: changed on purpose, with checksums that are right again.

A page may then hold other rows, and a filter may deny keys: nobody can see that. But nothing
crashes and every error is clear. An index or a manifest that does not fit its pages is noticed, so
there no row may be wrong either.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from semistream.testing import rows_of
from tests.chaos import scene
from tests.chaos.attack import Attack, Verdict, differs
from tests.chaos.forging import forge_file, forge_index, forge_manifest, forge_page, manifest_path

NUMBERS = [0, 1, -1, 7, 8, 255, 1 << 20, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]


def _roles(master: Path) -> list[str]:
    return sorted(json.loads(manifest_path(master).read_bytes())["files"])


def _index_role(rng: random.Random, master: Path) -> str:
    return rng.choice([role for role in _roles(master) if role != "filter"])


def _page(rng: random.Random, folder: Path) -> Verdict:
    """Numbers of a page's metadata, or any of its bytes."""
    master = folder / "r"
    scene.build(rng, master)

    def edit(page: bytearray) -> None:
        end = 8 + struct.unpack_from("<i", page, 4)[0]
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.7:
                size = rng.choice([4, 8])
                at = 4 * rng.randrange(max(1, (end - size) // 4))
                number = rng.choice(NUMBERS) % 2 ** (8 * size)
                page[at : at + size] = number.to_bytes(size, "little")
            else:
                page[rng.randrange(len(page))] = rng.randrange(256)

    role = _index_role(rng, master)
    forge_page(master, rng.randrange(2), edit, role)
    scene.ask(rng, master)
    return Verdict()


def _index(rng: random.Random, folder: Path) -> Verdict:
    master = folder / "r"
    model = scene.build(rng, master)
    role = _index_role(rng, master)
    note = ""

    def edit(columns: dict[str, np.ndarray[Any, Any]]) -> None:
        nonlocal note
        name = rng.choice(["first", "last", "offset", "length", "rows", "file", "checksum"])
        column = columns[name]
        page = rng.randrange(len(column))
        number = rng.choice([*NUMBERS, int(column[page]) + rng.choice([-8, -2, -1, 1, 2, 8])])
        bits = 8 * column.itemsize
        column[page] = np.array(number % 2**bits, f"<u{column.itemsize}").view(column.dtype)
        note = f"{role} {name}[{page}] = {column[page]}"

    forge_index(master, edit, role)
    return Verdict(differs(rows_of(scene.ask(rng, master)), [*model.values()]), note)


def _manifest(rng: random.Random, folder: Path) -> Verdict:
    master = folder / "r"
    model = scene.build(rng, master)
    note = ""

    def edit(content: dict[str, Any]) -> None:
        nonlocal note
        name = rng.choice(sorted(content.keys() - {"schema", "key"}))
        values: list[Any] = [None, -1, 0, 3, "", "x", [], [0], {}, True, 2**70, "../x", [{}], 1.5]
        content[name] = rng.choice(values)
        note = f"{name} = {content[name]!r}"

    forge_manifest(master, edit)
    return Verdict(differs(rows_of(scene.ask(rng, master)), [*model.values()]), note)


def _filter(rng: random.Random, folder: Path) -> Verdict:
    master = folder / "r"
    scene.build(rng, master)
    role = rng.choice(_roles(master))

    def edit(data: bytearray) -> None:
        at = rng.randrange(min(len(data), 80))
        data[at : at + 8] = (rng.choice(NUMBERS) % 2**64).to_bytes(8, "little")
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]

    forge_file(master, role, edit)
    scene.ask(rng, master)
    return Verdict()


ATTACKS = (
    Attack("forged page", _page),
    Attack("forged index", _index),
    Attack("forged manifest", _manifest),
    Attack("forged bytes of index or filter", _filter),
)
