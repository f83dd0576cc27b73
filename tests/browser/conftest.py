from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from semistream.page.server import PageServer
from semistream.page.status import Watched
from tests.browser.chromium import chromium
from tests.unit.page.made_up import checkpoint, master, outcomes

MANY = 10_000

Opened = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium. Without it the tests fail: `make page-test` installs it."""
    path = chromium()
    assert path is not None, "There is no Chromium here. Run: python -m tests.browser"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a pipeline that has run ten thousand batches."""
    folder = tmp_path_factory.mktemp("many")
    master(folder / "goods.master")
    return checkpoint(folder, outcomes(MANY))


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens the page of a checkpoint; nothing may go wrong in the browser meanwhile."""
    faults: list[str] = []
    with ExitStack() as stack:

        def open_page(
            place: Path, *, token: str | None = None, path: str = "", **more: object
        ) -> Page:
            server = stack.enter_context(PageServer(Watched(place), token=token))
            context = browser.new_context(**more)  # type: ignore[arg-type]
            stack.callback(context.close)
            page = context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "console",
                lambda told: faults.append(told.text) if told.type == "error" else None,
            )
            page.on("request", lambda asked: _check_near(asked.url, server.url, faults))
            page.goto(server.url + path)
            page.wait_for_selector("body[data-batches]")
            return page

        yield open_page
        assert faults == []


def _check_near(url: str, home: str, faults: list[str]) -> None:
    """Nothing may come from another machine."""
    if not url.startswith((home.partition("?")[0], "data:")):
        faults.append(f"asked for {url}")
