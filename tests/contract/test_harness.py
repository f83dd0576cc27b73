"""The harness itself: it must not let a test pass that tests nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import semistream as ss
from tests.contract.harness import Contract, having


def test_an_option_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="No algorithm has an option 'partition_page'"):
        having("partition_page")
    with pytest.raises(LookupError, match="renamed"):
        Contract("inlj", tmp_path).options(stream_slots=1, partition_page=1)


def test_an_option_chooses_the_algorithms_that_have_it() -> None:
    assert having() == list(ss.ALGORITHMS)
    assert having("pinned_partitions") == ["xhybridjoin", "oxhybridjoin"]
    assert having("chunk_tuples", "front_rows") == ["cmeshjoin"]
