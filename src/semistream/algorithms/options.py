"""Options of an engine, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from semistream.algorithms.registry import AUTO, BY_NAME, needs_of
from semistream.algorithms.sizing import Needs
from semistream.errors import OptionError
from semistream.parts.admission import ADMISSIONS
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import IO_MODES, MasterTable

Options: TypeAlias = Mapping[str, int | str]
"""Sizes and rules that are fixed, by name."""


def check_engine(
    master: MasterTable,
    on: On,
    how: str,
    algorithm: str,
    io: str,
    use_filter: bool | None,
    options: Options,
) -> None:
    """Refuse whatever an engine cannot be made with."""
    check_master(master)
    _check_one_shard(master)
    check_options(algorithm, options)
    check_join(how, io)
    resolve_on(on, master.key)
    _check_filter(use_filter, master)


def check_master(master: MasterTable) -> None:
    """Refuse what is no master table."""
    if not isinstance(master, MasterTable):
        raise OptionError(
            f"master is a {type(master).__name__}; it must be a MasterTable. Open one with "
            "ss.MasterTable.open(path), or build it with ss.MasterTable.from_arrow(…)."
        )


def _check_one_shard(master: MasterTable) -> None:
    if master.shard_count > 1 and not master.is_shard:
        raise OptionError(
            f"The master table at {master.path} has {master.shard_count} shards, and an engine "
            "reads one. Make an engine for each, with master.shard(i), or join on Spark with "
            "ss.join."
        )


def check_join(how: str, io: str) -> None:
    """Refuse a kind of join, or a way to read, that there is not."""
    if how not in ("inner", "left"):
        raise OptionError(f'how={how!r} is not known. Use "inner" or "left".')
    if io not in IO_MODES:
        raise OptionError(f"io={io!r} is not known. Use one of: {', '.join(IO_MODES)}.")


def _check_filter(use_filter: bool | None, master: MasterTable) -> None:
    if use_filter not in (None, True, False):
        raise OptionError(f"use_filter={use_filter!r} must be True, False or None.")
    if use_filter and not master.filter_bytes:
        raise OptionError(
            f"use_filter=True, but the master table at {master.path} has no membership filter. "
            "Build it with MasterTable.from_arrow(…, filter_bits=10), or leave use_filter out."
        )


def check_options(algorithm: str, options: Options) -> None:
    """Refuse options that an algorithm, or with "auto" every one of them, has no use for."""
    if algorithm == AUTO:
        _check_auto_options(options)
    else:
        _check_options(needs_of(algorithm), options)
    _check_front_stage(options)


def _check_front_stage(options: Options) -> None:
    """Options that contradict each other would be ignored in silence."""
    if "front_rows" in options and "front_percent" in options:
        raise OptionError(
            "front_rows and front_percent both say how large the front stage is. Give one of them."
        )
    if "threshold" in options and options.get("admission", "paper") != "paper":
        raise OptionError(
            f"threshold is for admission='paper'; admission={options['admission']!r} has none."
        )


def _check_auto_options(options: Options) -> None:
    for name, value in options.items():
        users = [known.needs for known in BY_NAME.values() if name in known.needs.options]
        if not users:
            raise OptionError(f"No algorithm has an option {name!r}, so auto has no use for it.")
        _check_options(users[0], {name: value})


def _check_options(needs: Needs, options: Options) -> None:
    for name, value in options.items():
        if name not in needs.options:
            known = ", ".join(needs.options) or "none"
            raise OptionError(
                f"{needs.algorithm} has no option {name!r}. Its options for sizes are: {known}."
            )
        if name == "admission":
            if value not in ADMISSIONS:
                raise OptionError(
                    f"admission={value!r} is not known. Use one of: {', '.join(ADMISSIONS)}."
                )
            continue
        least = 0 if name in ("pinned_partitions", "look_ups") else 1
        if type(value) is not int or value < least:
            raise OptionError(f"{name}={value!r} must be a whole number of at least {least}.")
        if name == "front_percent" and value > 90:
            raise OptionError(f"{name}={value!r} must be at most 90: tuples that miss must wait.")
