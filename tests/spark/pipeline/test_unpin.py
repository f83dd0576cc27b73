"""A pipeline that stands still on a damaged version: `semistream unpin` lets it go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from typer.testing import CliRunner

import semistream as ss
from semistream import cli
from semistream.errors import CorruptPageError
from semistream.spark.pipeline.about import read_about
from semistream.spark.pipeline.lease import Lease
from semistream.testing import assert_same_rows, oracle_join
from tests.spark.pipeline.conftest import Shop

pytestmark = pytest.mark.service

OUTPUT = ("id", "n", "name")


def unpin(folder: Path) -> tuple[int, str]:
    """The command's exit code, and its one line."""
    result = CliRunner().invoke(cli.app, ["unpin", str(folder)])
    (line,) = (result.stdout + result.stderr).splitlines()
    return result.exit_code, line


def damage(master: ss.MasterTable) -> None:
    """A disk changes a byte of each page."""
    for file in Path(master.path).glob("data/*.pages.arrow"):
        content = bytearray(file.read_bytes())
        for offset, length in zip(master.pages.offset, master.pages.length, strict=True):
            content[int(offset) + int(length) // 2] ^= 0xFF
        file.write_bytes(content)


def test_a_batch_on_a_damaged_version_goes_on_with_a_new_one(shop: Shop) -> None:
    checkpoint = shop.folder / "checkpoint"
    master = shop.master()
    options: dict[str, Any] = {
        "unmatched": ss.Retry(backoff="1s", deadline="10d"),
        "rejected": str(shop.folder / "bad"),
    }
    first = shop.sell(100)
    shop.run(**options)
    code, said = unpin(checkpoint)
    assert (code, "All batches of" in said) == (1, True)

    # The batch with new sales and with those that wait begins with the version that is damaged.
    damage(master)
    second = shop.sell(100)
    with pytest.raises(CorruptPageError):
        shop.run(**options)
    about = read_about(checkpoint)
    assert about is not None
    assert (about.state, "is broken" in str(about.error)) == ("failed", True)
    code, said = unpin(checkpoint)
    assert (code, "there is no other to take" in said) == (1, True)
    more = pa.table({"id": range(shop.keys + 50), "name": [f"new {i}" for i in range(450)]})
    shop.master(more)
    with pytest.raises(CorruptPageError):
        shop.run(**options)

    lease = Lease.take(checkpoint / "semistream", "sales")
    code, said = unpin(checkpoint)
    assert (code, "is in use by the pipeline sales" in said) == (1, True)
    lease.release()

    code, said = unpin(checkpoint)
    assert (code, " began with version 1, and takes the newest" in said) == (0, True)
    third = shop.sell(100)
    status = shop.run(**options).status()
    assert (status.version, status.waiting_retry) == (2, 0)
    waited = first.filter(pc.greater_equal(first["id"], shop.keys))
    assert len(waited)
    rows = oracle_join(first, shop.goods, on="id").rows
    for table in (waited, second, third):
        rows += oracle_join(table, more, on="id").rows
    assert_same_rows(shop.rows("out", *OUTPUT), rows)
    bad = [
        row for table in (first, second, third) for row in table["id"].to_pylist() if row is None
    ]
    assert len(shop.rows("bad", "n")) == len(bad)


def test_what_is_joined_already_is_not_joined_again(shop: Shop) -> None:
    shop.master()
    shop.sell(50)

    def fails(frame: DataFrame, batch: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shop.run(sink=fails)
    shop.master()
    code, said = unpin(shop.folder / "checkpoint")
    assert (code, "is joined already, and may be written in part" in said) == (1, True)
    code, said = unpin(shop.folder / "elsewhere")
    assert (code, "No pipeline has run a batch with the checkpoint" in said) == (1, True)
    assert not (shop.folder / "elsewhere").exists()
