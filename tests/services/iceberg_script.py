"""A master follows changelog views of an Iceberg table, in a process of its own.

python iceberg_script.py <folder>
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import semistream as ss

COMMITS = [
    "insert into {goods} values (1, 'a'), (2, 'b'), (3, 'c')",
    "update {goods} set name = upper(name) where id < 3",
    "delete from {goods} where id = 2",
    "insert into {goods} values (2, 'again'), (4, 'd')",
    # A key that changes: 4 is gone, and 40 is new.
    "update {goods} set id = 40 where id = 4",
    "merge into {goods} as goods using (select 1 as id, 'm' as name union select 5, 'n') as new "
    "on goods.id = new.id when matched then update set * when not matched then insert *",
    "insert overwrite {goods} select id, concat(name, '!') as name from {goods} where id > 1",
]


def main(folder: Path) -> None:
    """Run it, and print the rows of both sides after each step."""
    catalog = "spark.sql.catalog.lake"
    settings = {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(folder / "lake"),
        "spark.sql.shuffle.partitions": "2",
    }
    spark = ss.local_session(2, "1g", connectors=["iceberg"], **settings)
    goods = "lake.shop.goods"
    spark.sql(f"create table {goods} (id bigint, name string) using iceberg")
    masters = {name: ss.MasterTable.open(folder / name) for name in ("plain", "named")}

    def snapshots() -> list[int]:
        made = spark.sql(f"select snapshot_id from {goods}.snapshots order by committed_at")
        return [row[0] for row in made.collect()]

    def follow(after: int | None) -> dict[str, int]:
        """Changes after a snapshot; with the key named, updates have rows of their own kinds."""
        begin = "" if after is None else f", options => map('start-snapshot-id', '{after}')"
        counts = {}
        for name, key in (("plain", ""), ("named", ", identifier_columns => array('id')")):
            spark.sql(
                "call lake.system.create_changelog_view(table => 'shop.goods', "
                f"changelog_view => '{name}'{begin}{key})"
            )
            done: ss.Sync = masters[name].sync(spark.table(name))
            counts[name] = done.status().fresh
        return counts

    steps = []
    for number, commit in enumerate(COMMITS):
        spark.sql(commit.format(goods=goods))
        if number in (0, 2, 6):
            # Views may overlap: this one begins two snapshots before what the masters have.
            known = snapshots()
            follow(None if number < 3 else known[1])
            rows = spark.table(goods).orderBy("id").collect()
            steps.append({"iceberg": [list(row) for row in rows], "version": masters_now(folder)})
    told = {"steps": steps, "again": follow(None)}
    print(json.dumps(told))
    spark.stop()


def masters_now(folder: Path) -> dict[str, int]:
    """The newest version of each."""
    return {name: ss.MasterTable.latest_version(folder / name) for name in ("plain", "named")}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
