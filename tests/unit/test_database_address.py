"""Where a table in a database is: one text, without secrets, that opens it again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import OptionError
from semistream.relation.databases.address import Address

URL = "postgresql://shop@db.example.com/my%20shop?sslmode=require"


def test_a_location_says_all_but_the_password() -> None:
    address = Address.of(URL, "sales.products", "id", ["a,b", "c&d"], 4096, "SHOP")
    assert address.columns == ("id", "a,b", "c&d")
    assert address.port == 5432
    assert Address.parse(address.location) == address
    assert address.shown == "postgresql://db.example.com:5432/my shop/sales.products"
    assert address.variables == ("SHOP_USER", "SHOP_PASSWORD")


def test_credentials_come_from_the_environment_and_are_not_shown() -> None:
    address = Address.of("mysql://[::1]:3307/shop", "t", "id", None, 4096, None)
    found = address.taken_from({"MYSQL_USER": "u", "MYSQL_PWD": "hunter2"})
    assert (found.user, found.password) == ("u", "hunter2")
    assert "hunter2" not in f"{found!r}{found}"
    assert Address.parse(address.location) == address
    named = Address.of(URL, "t", "id", None, 4096, None)
    assert named.taken_from({"PGUSER": "other", "PGPASSWORD": "p"}).user == "shop"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oracle://host/shop", "is no database"),
        ("/products.master", "is no database"),
        ("postgresql:///shop", "must have a host and a database"),
        ("mysql://host", "must have a host and a database"),
        ("mysql://host:port/shop", "a port that is no number"),
        ("mysql://u:hunter2@[host/shop", "cannot be read. Write it as"),
        ("mysql://host/shop?sslmode=x", "settings that are not known: sslmode"),
        ("mysql://u:hunter2@host/shop", "from MYSQL_USER and MYSQL_PWD"),
        ("postgresql://host/shop?password=hunter2", "from PGUSER and PGPASSWORD"),
        ("postgresql://host/shop?sslpassword=hunter2", "from PGUSER and PGPASSWORD"),
    ],
)
def test_urls_that_cannot_be(url: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as told:
        ss.DatabaseMaster(url, table="t", key="id")
    assert "hunter2" not in str(told.value)


def test_a_location_with_a_password_is_refused() -> None:
    for end in (
        "u:hunter2@host/shop?",
        "host/shop?password=hunter2&",
        "host/shop?passfile=hunter2&",
    ):
        with pytest.raises(OptionError, match="taken from the environment") as told:
            ss.MasterTable.open(f"postgresql://{end}table=t&key=id")
        assert "hunter2" not in str(told.value)


def test_a_database_without_a_table_is_told_what_is_missing() -> None:
    with pytest.raises(OptionError, match=r"names a database, but not the table in it"):
        ss.MasterTable.open("postgresql://host/shop")
    with pytest.raises(OptionError, match="must be the name of a table"):
        ss.DatabaseMaster("mysql://host/shop", table="", key="id")
    for table in ('"open', 'a."b', "a..b", ".b", "a.", "a.b.c", '"a"b'):
        with pytest.raises(OptionError, match=r"Names with a dot have quotes"):
            ss.DatabaseMaster("mysql://host/shop", table=table, key="id")
    with pytest.raises(OptionError, match="page_bytes=10 must be at least"):
        ss.DatabaseMaster("mysql://host/shop", table="t", key="id", page_bytes=10)


def test_names_with_dots_and_quotes() -> None:
    names = {
        "products": ("products",),
        "sales.products": ("sales", "products"),
        '"my.sales".products': ("my.sales", "products"),
        "`my.sales`.`a``b`": ("my.sales", "a`b"),
        'sales."a ""b"""': ("sales", 'a "b"'),
        "with space": ("with space",),
    }
    for table, wanted in names.items():
        address = Address.of(URL, table, "id", None, 4096, None)
        assert address.names == wanted
        assert Address.parse(address.location).names == wanted


def test_a_master_in_a_database_is_not_built_and_is_no_folder(tmp_path: Path) -> None:
    for refused in (ss.DatabaseMaster.build, ss.DatabaseMaster.from_arrow):
        with pytest.raises(OptionError, match=r"builds none\. Open it with ss.DatabaseMaster"):
            refused(pa.table({"id": [1]}), tmp_path, key="id")
    with pytest.raises(OptionError, match=r"is no database\. Open a master table of files with"):
        ss.DatabaseMaster.open(tmp_path)
