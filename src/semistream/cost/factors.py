"""Cost factors: what single operations take on one machine with one disk.

A factor is the price of a counter; the table of counters says of which. Factors are measured by
`semistream tune --calibrate`; those shipped with semistream stand in until then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from semistream.counters import FACTORS, PRICES
from semistream.errors import OptionError
from semistream.relation import PACKED, MasterTable

_PICKING = 0.05
"""To pick rows of a packed page takes so much of what it takes to unpack it."""


@dataclass(frozen=True)
class CostFactors:
    """Seconds per operation; what is not given costs nothing.

    A partition read from anywhere takes `partition_read` + its pages × `page_read` + its bytes ×
    `byte_read`. One that goes on where the last one ended takes `sequential_read` instead of
    `partition_read`. One of a batch takes `batched_read`, and `batched_byte` for its bytes.
    """

    partition_read: float = 0.0
    """The seek, whatever the size of the partition."""
    sequential_read: float | None = None
    """The same without a seek; None for the price of `partition_read`."""
    batched_read: float | None = None
    """The same for one of a batch, in compiled code; None for the price of `partition_read`."""
    batched_byte: float | None = None
    """Per byte of a batch; None for the price of `byte_read`."""
    batched_code: float = 0.0
    """Per key that is looked for in a batch, with the copy of its rows."""
    page_read: float = 0.0
    byte_read: float = 0.0
    decoded_column: float = 0.0
    """Per column of a page that Python decodes; compiled code takes pages as they lie."""
    index_page_read: float = 0.0
    probe: float = 0.0
    """Per master row, or INLJ's stream tuple, that is looked for among the others."""
    hash_probe: float = 0.0
    """On top of it, per master row that is hashed: where R is not read in key order."""
    in_place_probe: float = 0.0
    """Per stream tuple that is looked up in pages in memory, with the copy of its rows."""
    front_probe: float = 0.0
    """Per stream tuple that the front stage looks up."""
    front_hit: float = 0.0
    """On top of it, per stream tuple that it answers."""
    front_chunk: float = 0.0
    """Per chunk of the stream that it looks up, whatever its tuples."""
    offer: float = 0.0
    """Per partition, or set of rows found, of which the front stage considers some keys."""
    compiled_probe: float = 0.0
    """Per partition that compiled code joins with waiting tuples, whatever its rows.

    Where Python does, iterations and pieces of output tell what it takes.
    """
    append: float = 0.0
    delete: float = 0.0
    grouped: float = 0.0
    """Per stream tuple that waits in the group of its partition, on top of the two above."""
    uncached: float = 0.0
    """Per stream tuple that waits, or is answered in front, beyond the processor's caches."""
    output: float = 0.0
    piece: float = 0.0
    """Per piece of output that Python gathers, whatever its rows; else calls tell."""
    column: float = 0.0
    """Per column of each piece, on top of it."""
    compiled_column: float | None = None
    """One that compiled code writes; None for the price of `column`."""
    stream_read: float = 0.0
    iteration: float = 0.0
    compiled_iteration: float | None = None
    """One of many in a call of compiled code; None for the price of `iteration`."""
    batched_iteration: float | None = None
    """One that joins what a batch of reads has found; None for the price of `iteration`."""
    compiled_call: float = 0.0
    """A call of compiled code that does some of them, and what Python does after it."""
    shed: float = 0.0
    """Per tuple that goes to disk or comes back."""
    lz4_byte: float = 0.0
    """Per byte of a page that is decompressed with LZ4. `for_master` makes it part of a page's."""
    zstd_byte: float = 0.0
    """The same with ZSTD."""
    packed_byte: float = 0.0
    """Per byte of a packed page that is unpacked as a whole. Look-ups unpack single rows."""
    overlap: float = 0.0
    """Batches are read while the join goes on: this part of the shorter of the two is not seen.

    It is a share, not a price: 0 if seconds are those of processors, for whom nothing overlaps.
    """

    def __post_init__(self) -> None:
        """Refuse prices that are negative or not finite."""
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value < float("inf"):
                raise OptionError(f"The cost factor {name} is {value}; give seconds of at least 0.")
        if self.overlap > 1:
            raise OptionError(f"The cost factor overlap is {self.overlap}; give a share up to 1.")

    @cached_property
    def prices(self) -> tuple[float, ...]:
        """Seconds for each of `FACTORS`; one that is None has the price of what it stands for."""
        given: dict[str, float] = asdict(self)
        stands_for = {price.factor: price.instead_of for price in PRICES}
        return tuple(
            given[stands_for[name]] if given[name] is None else given[name] for name in FACTORS
        )

    def times(self, longer: float) -> CostFactors:
        """The factors of a machine where everything takes so many times as long."""
        scaled: dict[str, Any] = {
            name: None if price is None else price * longer for name, price in asdict(self).items()
        }
        return CostFactors(**scaled | {"overlap": self.overlap})

    def for_master(self, master: MasterTable) -> CostFactors:
        """The factors with what decompressing the pages of this master takes.

        A page is decompressed as a whole, whoever reads it. Of a packed one, look-ups in batches
        unpack only the rows that they find.
        """
        if master.compression is None or not master.page_count:
            return self
        page = float(master.pages.length.mean())
        if master.compression == PACKED:
            stored = master.pages.stored_bytes(0, master.page_count) / master.page_count
            batched = self.byte_read if self.batched_byte is None else self.batched_byte
            return replace(
                self,
                page_read=self.page_read + _PICKING * self.packed_byte * page,
                byte_read=self.byte_read + (1 - _PICKING) * self.packed_byte * page / stored,
                batched_byte=batched,
            )
        byte = {"lz4": self.lz4_byte, "zstd": self.zstd_byte}[master.compression]
        return replace(self, page_read=self.page_read + byte * page)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CostFactors:
        """From names and seconds, as they stand in a file."""
        unknown = sorted(set(given) - {field.name for field in fields(cls)})
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise OptionError(f"There are no cost factors {unknown}. Use some of: {known}.")
        return cls(**given)


def check_factors(factors: object) -> None:
    """Refuse what are no cost factors; None stands for those that are known."""
    if factors is not None and not isinstance(factors, CostFactors):
        raise OptionError(f"factors={factors!r} must be CostFactors.")


@dataclass(frozen=True)
class MeasuredFactors:
    """Cost factors, and where they come from."""

    factors: CostFactors
    source: str
    """On which machine, how and when they were measured."""


def factors_path(io: str) -> Path:
    """Where the factors of this machine are kept: for reads through the page cache, or past it."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "semistream" / f"factors-{_way(io)}.json"


def known_factors(io: str = "buffered") -> MeasuredFactors:
    """The factors measured on this machine, or those shipped if none were."""
    path = factors_path(io)
    if path.is_file():
        return _loaded(path.read_text("utf-8"), str(path))
    shipped = shipped_factors(io)
    advice = "not of this machine: `semistream tune --calibrate` measures them"
    return replace(shipped, source=f"shipped, {advice} ({shipped.source})")


def shipped_factors(io: str = "direct") -> MeasuredFactors:
    """The factors that come with semistream, measured on the machine that `source` names."""
    text = resources.files("semistream.cost").joinpath("shipped_factors.json").read_text("utf-8")
    return _found(json.loads(text)[_way(io)])


def _way(io: str) -> str:
    """Pages come from the disk, or from the operating system's memory."""
    return "direct" if io == "direct" else "buffered"


def _found(content: Mapping[str, Any]) -> MeasuredFactors:
    return MeasuredFactors(CostFactors.of(content["factors"]), content["source"])


def _loaded(text: str, name: str) -> MeasuredFactors:
    try:
        return _found(json.loads(text))
    except (ValueError, KeyError, TypeError, OptionError) as error:
        raise OptionError(
            f"{name} does not hold cost factors ({error}). Remove it, or measure them again with "
            "`semistream tune --calibrate`."
        ) from error
