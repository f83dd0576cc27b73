"""What a person sees, hears and does on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from semistream.spark.pipeline.batch_log import BatchLog
from tests.browser.conftest import MANY, Opened
from tests.unit.page.made_up import checkpoint, finish, master, outcomes

pytestmark = pytest.mark.browser


def figures(page: Page) -> dict[str, str]:
    """The large numbers, by what is said of them."""
    cells = page.locator("#figures > div").all()
    return {one.locator("dt").inner_text(): one.locator("dd").inner_text() for one in cells}


def test_ten_thousand_batches_are_shown_in_few_points(opened: Opened, many: Path) -> None:
    page = opened(many)
    expect(page.locator("#name")).to_have_text("sales")
    expect(page.locator("#state")).to_have_text("stopped")
    expect(page.locator("body")).to_have_attribute("data-batches", str(MANY))
    charts = page.locator("#charts figure")
    expect(charts).to_have_count(8)
    for chart in charts.all():
        assert "300 points" in (chart.get_attribute("aria-label") or "")
        assert chart.locator("canvas").count() == 1
    found = figures(page)
    assert found["of 64 MB memory"].startswith("52")
    assert found["from memory"].endswith("%")


def test_a_batch_that_ends_meanwhile_appears(opened: Opened, tmp_path: Path) -> None:
    master(tmp_path / "goods.master")
    made = outcomes(6)
    page = opened(checkpoint(tmp_path, made[:5]))
    expect(page.locator("#facts")).to_contain_text("batch 4")
    finish(BatchLog(tmp_path / "checkpoint" / "semistream"), made[5])
    expect(page.locator("#facts")).to_contain_text("batch 5", timeout=15_000)


def test_a_pipeline_without_batches_has_a_page(opened: Opened, tmp_path: Path) -> None:
    page = opened(checkpoint(tmp_path, [], state="unknown"))
    expect(page.locator("#facts")).to_have_text("no batch yet")
    expect(page.locator("#charts figure:visible")).to_have_count(0)


def test_a_failure_is_told_first_and_in_words(opened: Opened, tmp_path: Path) -> None:
    place = checkpoint(tmp_path, outcomes(8), state="failed", error="The disk is full.")
    page = opened(place)
    first = page.locator("#warnings li").first
    expect(first).to_have_text("error: The pipeline has failed. The disk is full.")
    expect(page.locator("#warnings")).to_have_attribute("aria-live", "polite")


def test_keys_walk_along_a_chart_and_its_numbers_are_told(opened: Opened, many: Path) -> None:
    page = opened(many)
    chart = page.locator("#charts figure").first
    chart.focus()
    readout = page.locator("#charts .readout").first
    at_the_end = readout.inner_text()
    page.keyboard.press("Home")
    expect(readout).not_to_have_text(at_the_end)
    at_the_start = readout.inner_text()
    page.keyboard.press("ArrowRight")
    expect(readout).not_to_have_text(at_the_start)
    expect(readout).to_have_attribute("aria-live", "polite")


def test_every_chart_has_its_numbers_in_a_table(opened: Opened, many: Path) -> None:
    page = opened(many, viewport={"width": 1200, "height": 900})
    page.get_by_role("button", name="Pause").click()
    for panel in page.locator("#charts article").all():
        panel.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(panel.locator("tbody tr")).to_have_count(300)
        assert panel.locator("table").get_attribute("aria-label")


def test_everything_is_reached_by_the_tab_key(opened: Opened, many: Path) -> None:
    page = opened(many)
    page.get_by_role("button", name="Pause").click()
    page.locator("h1").click()
    reached = []
    page.keyboard.press("Tab")
    while page.locator(":focus").count():
        reached.append(page.locator(":focus").evaluate("node => node.id || node.tagName"))
        page.keyboard.press("Tab")
    assert {"span", "pause", "A"} <= set(reached)
    assert reached.count("FIGURE") == reached.count("SUMMARY") >= 8


def test_fewer_batches_can_be_chosen(opened: Opened, many: Path) -> None:
    page = opened(many)
    page.get_by_label("Show").select_option("100")
    expect(page.locator("#charts figure").first).to_have_attribute(
        "aria-label", re.compile("100 points"), timeout=15_000
    )


def test_a_pause_stops_the_questions(opened: Opened, many: Path) -> None:
    page = opened(many)
    button = page.get_by_role("button", name="Pause")
    button.click()
    expect(page.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.wait_for_timeout(3000)
    assert asked == []


@pytest.mark.parametrize("width", [320, 390, 800, 1600])
def test_nothing_is_wider_than_the_screen(opened: Opened, many: Path, width: int) -> None:
    page = opened(many, viewport={"width": width, "height": 800})
    assert page.locator("html").evaluate("node => node.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(opened: Opened, many: Path, scheme: str) -> None:
    """The contrast that WCAG asks of text, 4.5 to 1."""
    page = opened(many, color_scheme=scheme)
    for selector in (
        "#facts",
        "#figures dt",
        "#figures dd",
        "#memory th",
        ".readout",
        ".note",
        "a",
    ):
        found = page.locator(f"{selector} >> visible=true").first
        ink, ground = (_rgb(text) for text in found.evaluate(_COLOURS))
        assert _contrast(ink, ground) >= 4.5, selector


def test_with_a_token_the_page_opens_and_the_address_forgets_it(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(checkpoint(tmp_path, outcomes(3)), token="tüpfel & co")
    assert "token" not in page.url
    expect(page.locator("#facts")).to_contain_text("batch 2")


_COLOURS = """node => {
    let under = node;
    const ground = node => getComputedStyle(node).backgroundColor;
    while (ground(under) === "rgba(0, 0, 0, 0)") under = under.parentElement;
    return [getComputedStyle(node).color, ground(under)];
}"""


def _rgb(text: str) -> list[float]:
    numbers = text.partition("(")[2].rstrip(")").split(",")[:3]
    return [float(number) / 255 for number in numbers]


def _contrast(one: list[float], other: list[float]) -> float:
    def luminance(rgb: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
