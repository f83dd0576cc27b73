"""Look-ups with conditions beside equal keys, against every pair tried by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError, OptionError
from semistream.testing import assert_same_rows, rows_of

RNG = np.random.default_rng(11)
# Ten prices of each product, one after the other; the last is open.
PRICES = pa.table(
    {
        "product": [i // 10 for i in range(400)],
        "since": [i % 10 * 100 for i in range(400)],
        "until": [None if i % 10 == 9 else (i % 10 + 1) * 100 for i in range(400)],
        "price": RNG.random(400),
    }
)
# Discounts for large sales: a product may have none or several.
DISCOUNTS = pa.table(
    {
        "product": [i % 37 for i in range(90)],
        "minimum": [int(n) for n in RNG.integers(0, 50, 90)],
        "discount": [f"discount {i}" for i in range(90)],
    }
)


def sales(count: int) -> pa.Table:
    def some(values: Any) -> pa.Array:
        return pa.array(values, pa.int64(), mask=RNG.random(count) < 0.05)

    return pa.table(
        {
            "n": range(count),
            "item": some(RNG.integers(0, 45, count)),
            "sold_at": some(RNG.integers(-50, 1300, count)),
            "quantity": some(RNG.integers(0, 60, count)),
        }
    )


def lookups(folder: Path, how: str, **rule: Any) -> list[ss.Lookup]:
    prices = ss.MasterTable.from_arrow(PRICES, folder / "prices.master", key="product")
    discounts = ss.MasterTable.from_arrow(DISCOUNTS, folder / "discounts.master", key="product")
    rule = rule or {"valid": ("sold_at", "since", "until")}
    return [
        ss.Lookup(
            discounts,
            on={"item": "product"},
            how=how,
            where="quantity >= minimum",
            columns=["discount"],
            prefix="sale_",
        ),
        ss.Lookup(prices, on={"item": "product"}, columns=["price"], **rule),
    ]


def expected(sold: pa.Table, how: str, tolerance: int | None = None) -> list[tuple[Any, ...]]:
    """`tolerance`: the latest price that is no older than that, instead of the valid one."""
    found = []
    for n, item, at, quantity in zip(*(c.to_pylist() for c in sold.columns), strict=True):
        discounts = [
            name
            for product, minimum, name in rows_of(DISCOUNTS)
            if product == item and quantity is not None and quantity >= minimum
        ]
        prices = [
            (since, price)
            for product, since, until, price in rows_of(PRICES)
            if product == item
            and at is not None
            and since <= at
            and (tolerance is not None or until is None or at < until)
        ]
        if tolerance is not None:
            prices = sorted(one for one in prices if at - one[0] <= tolerance)[-1:]
        if not discounts and how == "left":
            discounts = [None]
        found += [(n, item, at, quantity, d, p) for d in discounts for _, p in prices]
    return found


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("memory", ["8MB", "400kB"])
def test_conditions_and_validity(tmp_path: Path, how: str, memory: str) -> None:
    sold = sales(700)
    with ss.star_engine(lookups(tmp_path, how), memory=memory) as star:
        found = rows_of(list(star.run(sold)))
        assert star.memory()["peak"] <= star.memory()["budget"]
    assert_same_rows(found, expected(sold, how))


def test_the_latest_row_within_a_tolerance(tmp_path: Path) -> None:
    sold = sales(300)
    given = lookups(tmp_path, "left", as_of=("sold_at", "since"), tolerance=60)
    with ss.star_engine(given, memory="4MB") as star:
        found = rows_of(list(star.run(sold)))
    assert_same_rows(found, expected(sold, "left", tolerance=60))


def test_the_least_memory_that_is_named_is_enough(tmp_path: Path) -> None:
    sold, given = sales(200), lookups(tmp_path, "inner")
    with pytest.raises(BudgetError, match="the least is") as refused:
        list(ss.star_engine(given, memory=1000).run(sold))
    least = int(str(refused.value).split("the least is ")[1].split(" ")[0].replace(",", ""))
    with ss.star_engine(given, memory=least) as star:
        assert_same_rows(rows_of(list(star.run(sold))), expected(sold, "inner"))


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        # That column is the other master's.
        ({"where": "discount is null"}, "Look-up prices: .*names the column 'discount'"),
        ({"where": "quantity >="}, "Look-up prices: "),
        ({"valid": ("sold_at", "since")}, "Look-up prices: valid=.*must name 3 columns"),
        ({"tolerance": 5}, "Look-up prices: tolerance=5"),
        ({"as_of": ("discount", "since")}, "Look-up prices: .*discount"),
        ({"preserve_order": True}, "Look-up prices: preserve_order is not for"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, terms: dict[str, Any], words: str) -> None:
    discounts, prices = lookups(tmp_path, "inner")

    def planned() -> None:
        given = [discounts, ss.Lookup(prices.master, on={"item": "product"}, **terms)]
        ss.star_engine(given, memory="4MB").planned(sales(3).schema)

    with pytest.raises(OptionError, match=words):
        planned()


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_look_up_that_filters_adds_nothing(tmp_path: Path, how: str) -> None:
    sold = sales(300)
    discounts, prices = lookups(tmp_path, "inner")
    terms: dict[str, Any] = {"on": {"item": "product"}, "how": how, "where": "quantity >= minimum"}
    given = [ss.Lookup(discounts.master, **terms), prices]
    kept = ss.engine(discounts.master, memory="2MB", **terms).run(sold)
    rule: dict[str, Any] = {"on": {"item": "product"}, "valid": ("sold_at", "since", "until")}
    chain = ss.engine(prices.master, memory="2MB", columns=["price"], **rule).run(kept)
    wanted = rows_of(list(chain))
    with ss.star_engine(given, memory="4MB", preserve_order=True) as star:
        found = rows_of(list(star.run(sold)))
        metrics = star.metrics()
    assert_same_rows(found, wanted)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    assert metrics.joined == len(found)
    with pytest.raises(OptionError, match="adds none"):
        ss.Lookup(discounts.master, columns=["discount"], **terms)


def test_stream_order_with_more_rows_than_a_round_holds(tmp_path: Path) -> None:
    many = pa.table(
        {"product": np.repeat([1, 2], 3000), "row": range(6000), "text": ["t" * 30] * 6000}
    )
    master = ss.MasterTable.from_arrow(many, tmp_path / "many.master", key="product")
    sold = pa.table({"n": range(60), "item": [1, 2, 3] * 20})
    given = [ss.Lookup(master, on={"item": "product"}, how="left")]
    with ss.star_engine(given, memory="1MB", preserve_order=True) as star:
        numbers = [row[0] for row in rows_of(list(star.run(sold)))]
        assert star.memory()["peak"] <= star.memory()["budget"]
    assert numbers == [n for n in range(60) for _ in range(1 if n % 3 == 2 else 3000)]
