"""Master tables: R on disk, in versions.

A master table is a folder, on a local disk or anywhere that `pyarrow.fs` opens. Data files never
change; a version is its manifest.

    products.master/
      versions/00000001.json                    the manifest; the highest number is the newest
      data/00000001-<random>.pages.arrow        rows, a record batch per page; one or more files
      data/00000001-<random>.index.arrow        a row per page
      data/00000001-<random>.locator.arrow      layout "given" only, with its own index file
      data/00000001-<random>.filter             which keys may be there, if asked for

The files of older versions stay until a vacuum, so a version can be read as long as it is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, ClassVar, Final, Protocol

from semistream.display.html import block, table
from semistream.history import check_no_overlap
from semistream.relation.build import Recipe, build
from semistream.relation.build_progress import Report
from semistream.relation.columns import ArrowData, SparkFrame
from semistream.relation.master_version import MasterVersion
from semistream.relation.storage import (
    CacheSetting,
    Location,
    Storage,
    is_database,
    storage_at,
    storage_faults,
)
from semistream.relation.updates.change import Change, KeyData, deletion, upsertion
from semistream.relation.updates.update import update
from semistream.relation.versions.manifest import read_manifest
from semistream.relation.versions.vacuum import Vacuumed, VersionInfo, history, vacuum

__all__ = ["MasterTable", "SparkBuilder"]

_SHOWN_VERSIONS: Final = 20


class SparkBuilder(Protocol):
    """Builds the next version of a master table from a Spark frame, and gives its number."""

    def __call__(
        self,
        df: SparkFrame,
        storage: Storage,
        *,
        key: str | Sequence[str],
        page_bytes: int | None,
        layout: str | None,
        order_by: str | None,
        sample: SparkFrame | None,
        shards: int,
        filter_bits: int,
        valid: tuple[str, str] | None,
        compression: str | None,
        replace: bool,
        progress: bool | Report | None,
    ) -> int:
        """See `MasterTable.build`."""


class MasterTable(MasterVersion):
    """One version of a master table, open for reading, from which the next can be made.

    Made by `from_arrow`, `build` or `open`. It never changes once open: an update gives the next
    version as another `MasterTable`.
    """

    _builder: ClassVar[Callable[[], SparkBuilder]]
    """Returns the builder for Spark, which is in a layer above."""

    _follower: ClassVar[Callable[[], Callable[..., Any]]]
    """The same for `sync`."""

    _in_database: ClassVar[Callable[[str], MasterTable]]
    """Opens a table in a database."""

    @classmethod
    def use_databases(cls, opened: Callable[[str], MasterTable]) -> None:
        """Set the function that opens a table in a database; `open` calls it."""
        cls._in_database = staticmethod(opened)

    @classmethod
    def use_follower(cls, follower: Callable[[], Callable[..., Any]]) -> None:
        """Set the function that returns what follows a source on Spark; `sync` calls it."""
        cls._follower = staticmethod(follower)

    @classmethod
    def use_builder(cls, builder: Callable[[], SparkBuilder]) -> None:
        """Set the function that returns the builder for Spark; `build` calls it."""
        cls._builder = staticmethod(builder)

    @classmethod
    def from_arrow(
        cls,
        data: ArrowData,
        path: Location,
        *,
        key: str | Sequence[str],
        page_bytes: int | None = None,
        layout: str = "key",
        replace: bool = False,
        filter_bits: int = 0,
        shards: int = 1,
        valid: tuple[str, str] | None = None,
        compression: str | None = None,
    ) -> MasterTable:
        """Build a master table from Arrow data and open it.

        The rows are collected and ordered in memory; rows with a null key are left out and
        counted. Nothing is visible at `path` until all of it is written.

        Args:
            data: a table, a record batch, a reader, or an iterable of record batches.
            path: the folder of the master table: a local path, or a URI that pyarrow opens.
            key: the key column, or several of them.
            page_bytes: the most bytes of a page, before it is compressed; a longer row has a page
                of its own. By default 65,536, and 32,768 if packed.
            layout: "key" for code order, "given" for the data's own order with the rows of
                one key gathered where its first row is (by access frequency, for example).
            replace: whether to write the next version of a master table that exists.
            filter_bits: bits per key of a membership filter, 4 to 32, so that joins need not
                look for absent keys on the disk (10 lets 1 % of them pass); 0 for none.
            shards: the number of parts that the pages are divided into, by a hash of the key.
            valid: for a history, the columns from when to when (not included; null for open) a
                row is valid. It is an error if two rows of a key are valid at a time, here and in
                every later upsert, and joins with `valid=` need not look for that.
            compression: "packed" for pages in fewer bytes of which look-ups unpack single rows,
                which is fastest where R is read from a disk; "lz4" or "zstd" for tools that know
                these. None, the default, is fastest where R stays in memory: such pages are
                searched in place.
        """
        storage = storage_at(path)
        recipe = Recipe.of(key, page_bytes, layout, filter_bits, shards, valid, compression)
        version = build(data, storage, recipe, replace)
        return cls(storage, read_manifest(storage, version))

    @classmethod
    def open(cls, path: Location, version: int | None = None) -> MasterTable:
        """Open a version of the master table at a path or URI, by default the newest.

        The URL of a database, as "postgresql://host/shop?table=products&key=id", opens a table that
        stays there: see `DatabaseMaster`.
        """
        if is_database(path):
            return MasterTable._in_database(str(path))
        storage = storage_at(path)
        return cls(storage, read_manifest(storage, version))

    def at_version(self, version: int) -> MasterTable:
        """Another version of the same master table, read through the same cache."""
        other = MasterTable(self._storage, read_manifest(self._storage, version))
        other._cache = self._cache
        return other

    @staticmethod
    def latest_version(path: Location) -> int:
        """The number of the newest version. Only its manifest is read; a database has only one."""
        if is_database(path):
            return 1
        return read_manifest(storage_at(path)).version

    @classmethod
    def build(
        cls,
        df: SparkFrame,
        path: Location,
        *,
        key: str | Sequence[str],
        page_bytes: int | None = None,
        layout: str | None = None,
        order_by: str | None = None,
        sample: SparkFrame | None = None,
        shards: int = 1,
        filter_bits: int = 0,
        valid: tuple[str, str] | None = None,
        compression: str | None = None,
        replace: bool = False,
        progress: bool | Report | None = None,
    ) -> MasterTable:
        """Build a master table from a Spark DataFrame, as Spark jobs, and open it.

        No process holds more of R than a few pages and an index entry per page. The frame is
        evaluated twice (once to divide it evenly), with `order_by` or `sample` a few times.
        For more on the options, see `from_arrow`.

        Args:
            df: a batch DataFrame, classic or of Spark Connect.
            path: a folder that driver and executors all reach.
            key: the key column, or several of them.
            page_bytes: the most bytes of a page, by default as there.
            layout: "key", or "given", which is the default with `order_by` or `sample`.
            order_by: the column by which keys are laid out, the highest first, such as an access
                frequency; for a key with several rows, the highest value counts.
            sample: a DataFrame of stream tuples with the key columns; keys are laid out by how
                often they occur in it, the most frequent first.
            shards: the number of parts that the pages are divided into, by a hash of the key.
            filter_bits: bits per key of a membership filter; 0 for none.
            valid: the columns from when to when a row is valid, checked for overlaps.
            compression: "packed", "lz4" or "zstd", for R that is larger than memory; None for
                none.
            replace: whether to write the next version of a master table that exists.
            progress: whether to show progress on stderr, by default only if that is a terminal;
                or a function that is called with a `BuildProgress` from time to time.
        """
        storage = storage_at(path)
        version = cls._builder()(
            df,
            storage,
            key=key,
            page_bytes=page_bytes,
            layout=layout,
            order_by=order_by,
            sample=sample,
            shards=shards,
            filter_bits=filter_bits,
            valid=valid,
            compression=compression,
            replace=replace,
            progress=progress,
        )
        return cls(storage, read_manifest(storage, version))

    def upsert(self, data: ArrowData | SparkFrame) -> MasterTable:
        """Replace all rows of each key in the data with the data's rows of that key.

        New keys are added; a key may have several rows; rows with a null key are left out and
        counted. `data` has the master's columns and is collected in memory, a Spark frame too.
        The new version is returned; this one stays as it is. `MasterExistsError` if another
        writer has made a newer version meanwhile: then nothing has changed.
        """
        hidden = self._manifest.code_column
        change = upsertion(data, self._codec, self.key, self._stored_schema, hidden)
        if self.valid is not None:
            # An upsert brings all rows of a key, so its own rows are all that can overlap.
            check_no_overlap(change.rows, self.key, self.valid)
        return self._updated(change)

    def delete(self, keys: KeyData) -> MasterTable:
        """Remove all rows of the keys; a key that the table does not have is ignored.

        `keys` is an Arrow table or a Spark frame with the key columns, or, for a single key
        column, an array or a list of values; for several, a list of tuples. See `upsert`.
        """
        return self._updated(deletion(keys, self._codec, self.key, self._stored_schema))

    def sync(
        self,
        changes: SparkFrame,
        *,
        sequence_by: str | Sequence[str] | None = None,
        apply_as_deletes: Any = None,
        format: str = "auto",
        checkpoint: Location | None = None,
        trigger: float | str | None = None,
        every: float | str = "30s",
        stored_as: str = "scd1",
        keep: float | str | None = "1h",
        pinned_by: Sequence[Location] = (),
        metrics: Location | None = None,
    ) -> Any:
        """Follow a source: its changes become versions of this master table.

        The last change of a key by `sequence_by` wins. Changes that come late, or again, do
        nothing, also after the key was deleted. The newest version of the table is updated,
        whichever this one is. A batch of changes is done when this returns; a stream goes on.
        Returns an `ss.Sync`, with `status()`, `await_termination()`, `stop()` and `master`.

        Args:
            changes: a batch or streaming DataFrame. It has the master's columns, and may have more.
            sequence_by: the column, or SQL expression, that rises with every change of a key; or
                several, the most significant first. By default what the format has: the commit's
                version, the log position of the database, the offset of the topic.
            apply_as_deletes: an SQL condition under which a change removes its key's row.
            format: "changes" (Delta's change data feed, Spark's own), "debezium", "iceberg" (a
                changelog view), "upsert" (a compacted topic, or a table that is polled); "auto"
                takes the one that has such columns.
            checkpoint: for a stream, the folder where Spark keeps how far it has read.
            trigger: as for `Pipeline`; by default a batch every `every`.
            every: how often a stream makes a version at most.
            stored_as: "scd1" for one row per key; "scd2" for a history, in a master that was built
                with `valid=`: each change begins a row, from the first of `sequence_by` on.
            keep: versions made by following are removed when they are older; None keeps all.
            pinned_by: checkpoints of pipelines that join with this master: what they may still
                need is kept.
            metrics: a file that gets a JSON line for each batch.
        """
        return type(self)._follower()(
            self,
            changes,
            sequence_by=sequence_by,
            apply_as_deletes=apply_as_deletes,
            format=format,
            checkpoint=checkpoint,
            trigger=trigger,
            every=every,
            stored_as=stored_as,
            keep=keep,
            pinned_by=pinned_by,
            metrics=metrics,
        )

    def compact(self) -> MasterTable:
        """Pack all rows into full pages of one fresh file: the next version, with the same rows.

        Updates leave pages half full and scattered over files; afterwards reads are as fast as
        after a build. Rows stream through; layout "given" also needs 16 bytes of memory per key.
        """
        nothing = deletion([], self._codec, self.key, self._stored_schema)
        return self._updated(dataclasses.replace(nothing, operation="compact"), everything=True)

    def history(self) -> list[VersionInfo]:
        """The versions that are still there, oldest first, and what made each."""
        with storage_faults(self.path, "read"):
            return history(self._storage)

    def vacuum(
        self,
        keep_versions: int = 2,
        pinned: Iterable[int] = (),
        grace_seconds: float = 3600.0,
    ) -> Vacuumed:
        """Remove old versions, and files that no remaining version names. Returns what was removed.

        The newest `keep_versions` stay, and those in `pinned`. Files that no version ever named
        are left-overs of stopped builds, or belong to one that is running: they go only when
        they are older than `grace_seconds`. A reader that has an old version open on a local
        disk can go on (with up to 128 files, which it holds open); elsewhere its next read fails.
        What cannot be removed, on a read-only disk for example, is told as `left`.
        A streaming `ss.join` with freshness="pinned" opens its version again and again: name it in
        `pinned` as long as the query runs. `ss.pinned_versions` lists what a pipeline still needs.
        """
        with storage_faults(self.path, "read"):
            return vacuum(self._storage, keep_versions, pinned, grace_seconds)

    def _repr_html_(self) -> str:
        """What it holds, and its history, for notebooks."""
        rows = [
            (one.version, one.created, one.operation, f"{one.row_count:,}", f"{one.page_count:,}")
            for one in self.history()[::-1][:_SHOWN_VERSIONS]
        ]
        columns = [(field.name, field.type) for field in self.schema]
        return block(
            f"Master table, version {self.version}: {self.row_count:,} rows",
            f"<pre>{escape(self.describe())}</pre>",
            table(["version", "made", "by", "rows", "pages"], rows),
            f"<details><summary>Columns</summary>{table(['column', 'type'], columns)}</details>",
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle its location and version, not its content; unpickling opens it again."""
        return _reopened, (self.location, self.version, self._shard, self._cache)

    def _updated(self, change: Change, everything: bool = False) -> MasterTable:
        version = update(self, change, everything)
        return MasterTable(self._storage, read_manifest(self._storage, version))


def _reopened(
    location: str, version: int, shard: int | None, cache: CacheSetting | None
) -> MasterTable:
    master = MasterTable.open(location, version)
    if cache is not None:
        master = master.cached(*cache)
    return master if shard is None else master.shard(shard)
