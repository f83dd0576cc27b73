"""The committed table of costs: compared with by the tests, written anew by `make costs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

Costs = dict[str, int]

_FILE = Path(__file__).parent / "expected.json"


class CostTable:
    """What each setting cost when the table was written, and what it costs now."""

    def __init__(self, writes: bool) -> None:
        """Read the file; with `writes`, what is noted replaces it in the end."""
        self.writes = writes
        self.expected: dict[str, Costs] = json.loads(_FILE.read_text()) if _FILE.exists() else {}
        self._found: dict[str, Costs] = {}
        self._changes: list[str] = []

    def note(self, setting: str, found: Costs, changes: list[str]) -> None:
        """Remember what a setting costs now, and how that differs."""
        self._found[setting] = found
        self._changes += [f"{setting}: {change}" for change in changes]

    def write(self) -> list[str]:
        """Write the file; what is different now, for people to read."""
        lines = [f"{json.dumps(name)}: {json.dumps(costs)}" for name, costs in self._found.items()]
        _FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        gone = self.expected.keys() - self._found.keys()
        return [*self._changes, *(f"{setting}: no longer measured" for setting in sorted(gone))]


_TABLE = pytest.StashKey[CostTable]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-costs", action="store_true", help="write the table of costs anew")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    table = config.stash.get(_TABLE, None)
    if table is None or not table.writes:
        return
    if exitstatus:
        terminalreporter.write_line("The table of costs was not written: a test failed.")
        return
    for line in table.write() or ["no cost has changed"]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def cost_table(pytestconfig: pytest.Config) -> CostTable:
    """The table; without the path of this folder on the command line it is only read."""
    table = CostTable(writes=bool(pytestconfig.getoption("write_costs", default=False)))
    pytestconfig.stash[_TABLE] = table
    return table
