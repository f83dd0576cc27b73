"""`Lookup`: one master of a star, with the terms on which it is joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from semistream.algorithms.options import check_join, check_master, check_options
from semistream.algorithms.registry import AUTO
from semistream.durations import parse_duration
from semistream.errors import OptionError, SemistreamError
from semistream.matching.terms import Terms
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable

__all__ = ["Lookup", "check_lookups", "check_routes", "named"]


class Lookup:
    """A master table to look up in, and how; for `join_star`, `star_engine` and `Pipeline`."""

    def __init__(
        self,
        master: MasterTable,
        *,
        on: On,
        how: str = "inner",
        algorithm: str = AUTO,
        columns: Sequence[str] | None = None,
        where: Any = None,
        valid: Sequence[str] | None = None,
        as_of: Sequence[str] | None = None,
        tolerance: Any = None,
        io: str = "buffered",
        name: str | None = None,
        prefix: str = "",
        max_staleness: float | str | None = None,
        **options: int | str | bool | None,
    ) -> None:
        """The terms are those of a single join.

        Args:
            master: the master table.
            on: the stream's key columns: a name, a list, or a dict from stream column to master
                key column.
            how: "inner" to drop stream tuples without a master row, "left" to keep them, with
                nulls. "semi" to keep those that have a master row and "anti" those that have
                none: such a look-up adds no columns.
            algorithm: one of `ALGORITHMS`, or "auto".
            columns: the master's columns to add, by default all but its key.
            where: a condition beside equal keys, as in `engine`, on columns of the stream and of
                this master.
            valid: which columns say from when to when a master row is valid, as in `engine`.
            as_of: which columns say from when on a master row counts, as in `engine`.
            tolerance: how much older the row of `as_of` may be.
            io: "buffered", "unmapped" or "direct", as in `engine`.
            name: what plans, metrics and errors call it; by default the name of its folder.
            prefix: goes before the names of the columns it adds, so that a master can be looked
                up twice, on different keys.
            max_staleness: how old the master may be, as in `ss.join` and `ss.Pipeline`; for both,
                not for `star_engine`.
            options: sizes and rules of the algorithm, as `engine` takes them.
        """
        check_master(master)
        if name is not None and not name:
            raise OptionError("name='' must not be empty. Leave it out, or give the look-up one.")
        self.master = master
        self.on = on
        self.how = how
        self.algorithm = algorithm
        self.columns = columns
        if how in ("semi", "anti"):
            if columns:
                raise OptionError(
                    f"columns={list(columns)!r} are the master's, and how={how!r} adds none. Leave "
                    "columns out."
                )
            self.columns = []
        self.io = io
        self.prefix = prefix
        self.max_staleness = max_staleness
        self.options: Mapping[str, Any] = options
        self.name = _folder(master) if name is None else name
        self._asked = {"where": where, "valid": valid, "as_of": as_of, "tolerance": tolerance}
        with named(self):
            self.asked = Terms.of("inner", where, valid, as_of, tolerance)
            most = None if max_staleness is None else parse_duration(max_staleness, "max_staleness")
        self.most_behind = most
        """`max_staleness` in seconds."""
        self.known_as: Mapping[str, str] = {}
        """Stream columns and the names by which conditions know them, where these are others."""

    def __repr__(self) -> str:
        """The master and the terms that are always there."""
        return f"Lookup({self.master!r}, on={self.on!r}, how={self.how!r})"

    def check(self) -> None:
        """Refuse terms that no join has."""
        if "preserve_order" in self.options:
            raise OptionError(
                "preserve_order is not for one look-up but for the star. Give it to ss.join_star "
                "or ss.star_engine."
            )
        sizes = {name: value for name, value in self.options.items() if name != "use_filter"}
        check_join("inner" if self.filters else self.how, self.io)
        check_options(self.algorithm, sizes)
        resolve_on(self.on, self.master.key)

    def pairs(self) -> dict[str, str]:
        """The stream's key columns, and the master's that they are looked up by."""
        return {name: key for key, name in resolve_on(self.on, self.master.key).items()}

    def changed(self, **terms: Any) -> Lookup:
        """The same look-up but for some of its arguments."""
        known: dict[str, Any] = {
            "master": self.master,
            "on": self.on,
            "how": self.how,
            "columns": self.columns,
        }
        known |= {"algorithm": self.algorithm, "io": self.io, "name": self.name}
        known |= {"prefix": self.prefix, "max_staleness": self.max_staleness}
        known |= {**self._asked, **self.options}
        made = Lookup(**{**known, **terms})
        made.known_as = self.known_as
        return made

    @property
    def keeps(self) -> bool:
        """Whether tuples without a master row stay."""
        return self.how == "left"

    @property
    def filters(self) -> bool:
        """Whether it only says which tuples stay."""
        return self.how in ("semi", "anti")

    def terms(self) -> dict[str, Any]:
        """The arguments of a join that finds its rows; the star itself keeps the others."""
        return {
            "how": "inner" if self.keeps or self.filters else self.how,
            "algorithm": self.algorithm,
            "columns": self.columns,
            "io": self.io,
            **self.options,
        }

    def conditions(self) -> dict[str, Any]:
        """The arguments of a join that say more than equal keys; empty if there are none."""
        return {} if self.asked.is_plain else self._asked


@contextmanager
def named(lookup: Lookup) -> Iterator[None]:
    """Let errors say which look-up they are about."""
    try:
        yield
    except SemistreamError as error:
        raise type(error)(f"Look-up {lookup.name}: {error}") from error


def check_lookups(lookups: Sequence[Lookup]) -> tuple[Lookup, ...]:
    """The look-ups of a star, after all checks that need no stream; names must differ."""
    given: object = lookups
    if not isinstance(given, Sequence) or not given:
        raise OptionError("Give a list of look-ups: [ss.Lookup(master, on=…), …].")
    for one in given:
        if not isinstance(one, Lookup):
            raise OptionError(
                f"A look-up is a {type(one).__name__}; it must be an ss.Lookup(master, on=…)."
            )
        with named(one):
            one.check()
    names = [one.name for one in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(
            f"Look-ups have the same name: {', '.join(twice)}. Tell them apart with name=…."
        )
    return tuple(given)


def check_routes(lookups: Sequence[Lookup]) -> None:
    """Raise unless each tuple of a pipeline with these look-ups can end in one route."""
    for one in lookups:
        if one.filters:
            raise OptionError(
                f"Look-up {one.name}: how={one.how!r} is not for a pipeline with several masters, "
                "where each tuple must end in one route. Filter the stream before it, with ss.join."
            )


def _folder(master: MasterTable) -> str:
    """The name of the master's folder, without its ending."""
    return str(master.path).rstrip("/").rsplit("/", 1)[-1].removesuffix(".master")
