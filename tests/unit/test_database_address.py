"""Where a table in a database is: one text, without secrets, that opens it again."""

from __future__ import annotations

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
    with pytest.raises(OptionError, match="page_bytes=10 must be at least"):
        ss.DatabaseMaster("mysql://host/shop", table="t", key="id", page_bytes=10)
