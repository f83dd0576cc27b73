"""All figures at scale "smoke", priced: the claims that hold there keep their direction.

A guard against change, not evidence: claims that differ at this scale are marked so
(`in_smoke`) and left out; docs/reproduction.md has all of them.
"""

from __future__ import annotations

import pytest

from semistream_papers.claims.claim import DIFFERS
from semistream_papers.claims.table import CLAIMS, verdicts
from semistream_papers.figures.catalogue import FIGURES
from semistream_papers.figures.reproduction import Reproduction
from semistream_papers.report.claims_page import page_text
from semistream_papers.report.html_report import write_report


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_claims_hold_in_their_direction(tmp_path):
    reproduction = Reproduction(tmp_path, "priced", "smoke")
    reproduction.run(reproduction.missing(FIGURES.values()), processes=2)
    assert not reproduction.missing(FIGURES.values())
    drawn = [reproduction.drawn(figure) for figure in FIGURES.values()]
    found = verdicts({one.figure.name: one for one in drawn}, smoke=True)
    assert len(found) == sum(claim.in_smoke for claim in CLAIMS)
    wrong = [f"{one.claim.name}: {one.ours:.3g}" for one in found if one.says == DIFFERS]
    assert not wrong
    report = write_report(drawn, reproduction, tmp_path).read_text("utf-8")
    for figure in FIGURES.values():
        assert f'id="{figure.name}"' in report
    page = page_text(drawn, reproduction, {"skewed-hits": 0.512})
    assert page.count("| 2017, ") > 20
    assert sum(claim.in_smoke for claim in CLAIMS) > len(CLAIMS) / 2
    assert "| 0.512 |" in page
