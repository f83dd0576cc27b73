"""A shop: products as master data, sales as the stream.

Both are built column by column, with no Python per row. A product depends on its id and the seed
alone, so a larger catalogue begins with the rows of a smaller one. Products are made in chunks,
whose strings stay far below Arrow's two-gigabyte limit.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import OptionError
from semistream.workload.zipf import Ints, ZipfKeys, scattered

_ADJECTIVES: Final = (
    "Foldable", "Insulated", "Lightweight", "Adjustable", "Rechargeable", "Waterproof",
    "Compact", "Reinforced", "Stackable", "Hand-finished", "Breathable", "Everyday",
    "Heavy-duty", "Silent", "Magnetic", "Portable",
)  # fmt: skip
_MATERIALS: Final = (
    "Aluminium", "Bamboo", "Ceramic", "Cotton", "Oak", "Glass", "Leather", "Linen",
    "Steel", "Titanium", "Walnut", "Wool", "Copper", "Silicone", "Canvas", "Cork",
)  # fmt: skip
_THINGS: Final = (
    "Water Bottle", "Desk Lamp", "Backpack", "Frying Pan", "Storage Box", "Bicycle Pump",
    "Notebook", "Rain Jacket", "Coffee Grinder", "Wall Clock", "Garden Chair", "Tool Case",
    "Headphones", "Cutting Board", "Sleeping Bag", "Bookshelf",
)  # fmt: skip
_HOUSES: Final = (
    "Northfield", "Alder & Finch", "Brightwater", "Castellan", "Driftmark", "Evergate",
    "Fernhollow", "Goldcrest", "Harrowby", "Ironvale", "Juniper Lane", "Kestrel",
    "Lindenhof", "Marlowe", "Oakhaven", "Pemberton",
)  # fmt: skip
_TRADES: Final = (
    "Outfitters", "Home Goods", "Workshop", "Supply", "Trading", "Collective", "Brothers",
    "Manufacture",
)  # fmt: skip

_CHUNK_ROWS: Final = 1 << 20
_FIRST_BARCODE: Final = 2_000_000_000_000
_FIRST_LISTED: Final = np.datetime64("2015-01-01", "D").astype(np.int32)
_LISTED_DAYS: Final = 3_650
_FIRST_SALE_US: Final = np.datetime64("2025-01-01", "us").astype(np.int64)
_SALE_EVERY_US: Final = 100
_LARGEST_QUANTITY: Final = 9

_PRODUCTS: Final = pa.schema(
    [
        pa.field("product_id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("brand", pa.string()),
        pa.field("barcode", pa.string()),
        pa.field("category", pa.int32()),
        pa.field("supplier", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("weight_g", pa.int32()),
        pa.field("stock", pa.int32()),
        pa.field("listed", pa.date32()),
    ]
)
_SALES: Final = pa.schema(
    [
        pa.field("product_id", pa.int64()),
        pa.field("quantity", pa.int32()),
        pa.field("sold_at", pa.timestamp("us")),
    ]
)


def products(n: int, seed: int) -> pa.Table:
    """A catalogue of n products with ids 0..n-1, about 120 bytes a row in Arrow memory.

    Example:
        >>> products(1_000, seed=1).column_names[:3]
        ['product_id', 'name', 'brand']
    """
    if n < 0:
        raise OptionError(f"n is {n}; ask for 0 products or more.")
    if seed < 0:
        raise OptionError(f"seed is {seed}; give a whole number of at least 0.")
    return pa.Table.from_batches(product_batches(n, seed), _PRODUCTS)


def product_batches(n: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The same catalogue a chunk at a time, for more products than memory holds."""
    for start in range(0, n, _CHUNK_ROWS):
        yield _product_batch(start, min(start + _CHUNK_ROWS, n), seed)


def sales(
    n: int, keys: ZipfKeys, domain: int, batch_rows: int, scatter: bool = True
) -> Iterator[pa.RecordBatch]:
    """A stream of n sales of the products 0..domain-1, 20 bytes each, made as it is read.

    The keys' ranks become product ids. With `scatter` they are spread over the whole domain;
    without it popular products are neighbours. The rows do not depend on `batch_rows`.

    Example:
        >>> keys = ZipfKeys(domain=100, exponent=1.0, seed=1)
        >>> [batch.num_rows for batch in sales(250, keys, domain=100, batch_rows=100)]
        [100, 100, 50]
    """
    if n < 0:
        raise OptionError(f"n is {n}; ask for 0 sales or more.")
    if batch_rows < 1:
        raise OptionError(f"batch_rows is {batch_rows}; give at least 1.")
    if keys.domain > domain:
        raise OptionError(
            f"the keys draw from {keys.domain} ranks but the domain has {domain} products; "
            f"give keys with a domain of at most {domain}."
        )
    return _sales(n, keys, domain, batch_rows, scatter)


def _sales(
    n: int, keys: ZipfKeys, domain: int, batch_rows: int, scatter: bool
) -> Iterator[pa.RecordBatch]:
    for start in range(0, n, batch_rows):
        rows = np.arange(start, min(start + batch_rows, n), dtype=np.int64)
        ranks = keys.ranks(rows.size)
        ids = scattered(ranks, domain, keys.seed) if scatter else ranks
        quantity = 1 + _drawn(rows, keys.seed, "quantity", _LARGEST_QUANTITY)
        sold_at = _FIRST_SALE_US + rows * _SALE_EVERY_US
        columns = [
            pa.array(ids),
            pa.array(quantity.astype(np.int32)),
            pa.array(sold_at).view(pa.timestamp("us")),
        ]
        yield pa.record_batch(columns, schema=_SALES)


def _product_batch(start: int, stop: int, seed: int) -> pa.RecordBatch:
    ids = np.arange(start, stop, dtype=np.int64)

    def number(column: str, below: int) -> Ints:
        return _drawn(ids, seed, column, below)

    def word(column: str, words: tuple[str, ...]) -> pa.Array:
        return pa.array(words).take(pa.array(number(column, len(words))))

    name = [word("adjective", _ADJECTIVES), word("material", _MATERIALS), word("thing", _THINGS)]
    model = pc.utf8_lpad(pa.array(ids).cast(pa.string()), 11, "0")
    # From 1 to 1,000, uniform on a logarithmic scale.
    price = np.round(10.0 ** (number("price", 1 << 20) * (3.0 / (1 << 20))), 2)
    columns = [
        pa.array(ids),
        pc.binary_join_element_wise(*name, model, " "),
        pc.binary_join_element_wise(word("house", _HOUSES), word("trade", _TRADES), " "),
        pa.array(_FIRST_BARCODE + ids).cast(pa.string()),
        pa.array(number("category", 400).astype(np.int32)),
        pa.array(number("supplier", 5_000).astype(np.int32)),
        pa.array(price),
        pa.array((20 + number("weight_g", 19_980)).astype(np.int32)),
        pa.array(number("stock", 2_000).astype(np.int32)),
        pa.array((_FIRST_LISTED + number("listed", _LISTED_DAYS)).astype(np.int32)).view(
            pa.date32()
        ),
    ]
    return pa.record_batch(columns, schema=_PRODUCTS)


def _drawn(rows: Ints, seed: int, column: str, below: int) -> Ints:
    """A number in 0..below-1 for each row, which depends on row, seed and column alone.

    By the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); each column has its own
    starting value. `below` is under 2^32, so that the high half times `below` cannot overflow.
    """
    start = np.random.SeedSequence([seed, *column.encode()]).generate_state(1, np.uint64)
    x: npt.NDArray[np.uint64] = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (((x >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32)).astype(np.int64)
