"""Test set-up: deterministic Hypothesis, and seeds that are printed when a test fails."""

import os
import zlib
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings

# What a failed assert compared is told for test files only, unless a module is named here.
pytest.register_assert_rewrite("tests.contract.harness")
settings.register_profile("semistream", derandomize=True, deadline=None, database=None)
settings.load_profile("semistream")


@pytest.fixture(scope="session", autouse=True)
def _without_fsync() -> Iterator[None]:
    """Tests write thousands of small files, and no test has the machine lose its power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


_SEEDS = pytest.StashKey[list[int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="base of the seeds of all random tests")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    seeds = item.stash.get(_SEEDS, [])
    if report.failed and seeds:
        base = item.config.getoption("seed")
        text = f"{', '.join(map(str, seeds))} (run this test again with --seed={base})"
        report.sections.append(("seeds used, in order", text))
    return report


@pytest.fixture
def note_seed(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """Remembers a seed that the test is about to use, and gives it back."""
    seeds = request.node.stash.setdefault(_SEEDS, [])

    def note(seed: int) -> int:
        seeds.append(seed)
        return seed

    return note


@pytest.fixture
def seed(request: pytest.FixtureRequest, note_seed: Callable[[int], int]) -> int:
    """A seed of the test's own: the same in every run, moved by `--seed`."""
    return note_seed(zlib.crc32(request.node.nodeid.encode()) + request.config.getoption("seed"))
