"""A master follows a Delta table, in a process of its own.

python delta_sync_script.py <folder> follow    commits, followed now and then
python delta_sync_script.py <folder> vacuum    the change feed's start is removed, then followed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import semistream as ss
from semistream.errors import SemistreamError

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
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


def main(folder: Path, what: str) -> None:
    """Run it, and print the rows of both sides."""
    spark = ss.local_session(2, "1g", connectors=["delta"], **SETTINGS)
    goods = f"delta.`{folder}/goods`"
    master = ss.MasterTable.open(folder / "master")

    def follow(checkpoint: str) -> ss.SyncStatus:
        feed = spark.readStream.format("delta").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", "0")
        changes = feed.load(f"{folder}/goods")
        running: ss.Sync = master.sync(
            changes, checkpoint=folder / checkpoint, trigger="availableNow"
        )
        running.await_termination(300)
        return running.status()

    if what == "vacuum":
        spark.sql(f"vacuum {goods} retain 0 hours").collect()
        try:
            follow("late")
        except SemistreamError as error:
            print(type(error).__name__, error)
        spark.stop()
        return
    if not (folder / "goods").exists():
        spark.sql(
            f"create table {goods} (id long, name string) using delta "
            "tblproperties ('delta.enableChangeDataFeed' = 'true')"
        )
    done = spark.sql(f"describe history {goods}").count() - 1
    for number, commit in enumerate(COMMITS):
        if number >= done:
            spark.sql(commit.format(goods=goods))
        if number == 2:
            follow("checkpoint")
    follow("checkpoint")
    # All of it again, from the first version on.
    again = follow("another")
    keys = spark.createDataFrame([(n,) for n in range(50)], "id long")
    joined = ss.join(keys, ss.MasterTable.open(folder / "master"), on="id", memory="4MB")
    told = {
        "master": sorted(map(list, joined.collect())),
        "delta": sorted(map(list, spark.read.format("delta").load(f"{folder}/goods").collect())),
        "again": again.fresh,
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
