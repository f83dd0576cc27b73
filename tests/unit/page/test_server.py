"""The server answers this machine and those who have the token, and nobody else."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semistream.errors import OptionError
from semistream.page.server import PageServer
from semistream.page.status import Watched
from tests.unit.page.made_up import checkpoint, outcomes

TOKEN = "a token; with signs"


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(checkpoint(tmp_path, outcomes(5)))


@pytest.fixture
def server(watched: Watched) -> Iterator[PageServer]:
    with PageServer(watched) as made:
        yield made


@pytest.fixture
def guarded(watched: Watched) -> Iterator[PageServer]:
    with PageServer(watched, "0.0.0.0", token=TOKEN) as made:
        yield made


def ask(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    place = urlsplit(server.url)
    assert place.port is not None
    connection = HTTPConnection("127.0.0.1", place.port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_all_it_names_are_there(server: PageServer) -> None:
    answer, page = ask(server, "/")
    assert answer.status == 200
    named = re.findall(r'(?:src|href)="([^"#:]+)"', page.decode())
    assert len(named) >= 6
    for path in named:
        assert ask(server, f"/{path}")[0].status == 200, path


def test_nothing_names_another_machine() -> None:
    static = files("semistream.page") / "static"
    for file in static.iterdir():
        if not file.name.startswith("uPlot"):
            assert not re.search(r"(https?:)?//\w+\.\w+", file.read_text("utf-8")), file.name
    assert "MIT" in (static / "uPlot.LICENSE").read_text("utf-8")


def test_a_browser_is_told_to_load_nothing_from_elsewhere(server: PageServer) -> None:
    headers = ask(server, "/")[0].headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_numbers_are_given(server: PageServer) -> None:
    answer, body = ask(server, "/status.json?points=2")
    assert answer.headers["Content-Type"] == "application/json"
    assert len(json.loads(body)["series"]["at"]) == 2
    answer, body = ask(server, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"semistream_batches_total" in body


@pytest.mark.parametrize("points", ["0", "-3", "x", "9" * 400, "%00"])
def test_a_strange_number_is_as_none(server: PageServer, points: str) -> None:
    answer, body = ask(server, f"/status.json?points={points}&last={points}")
    assert answer.status == 200
    assert len(json.loads(body)["series"]["at"]) == 5


@pytest.mark.parametrize(
    "path", ["/static/", "/static/../server.py", "/static/%2e%2e/server.py", "//etc/passwd", "/x"]
)
def test_other_files_are_not_given(server: PageServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(server: PageServer, method: str) -> None:
    assert ask(server, "/status.json", method)[0].status == 501


def test_a_head_has_no_body(server: PageServer) -> None:
    answer, body = ask(server, "/", "HEAD")
    assert (answer.status, body) == (200, b"")


@pytest.mark.parametrize("host", ["localhost", "localhost:99", "127.0.0.1", "[::1]:80"])
def test_its_own_names_are_answered(server: PageServer, host: str) -> None:
    assert ask(server, "/status.json", Host=host)[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.x", ""])
def test_another_name_is_refused(server: PageServer, host: str) -> None:
    """A page of evil.example, whose name was pointed here, may not read this one."""
    for path in ("/", "/status.json", "/metrics"):
        answer, body = ask(server, path, Host=host)
        assert answer.status == 421
        assert b"sales" not in body


def test_it_listens_on_loopback_only(server: PageServer) -> None:
    assert urlsplit(server.url).hostname == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "machine.example"])
def test_beyond_loopback_a_token_is_needed(watched: Watched, host: str) -> None:
    with pytest.raises(OptionError, match="Without a token"):
        PageServer(watched, host)


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/static/page.js", "/nothing"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "semistream_token=wrong"},
        {"Cookie": "\x01=;;"},
    ],
)
def test_without_the_token_nothing_is_given(
    guarded: PageServer, path: str, headers: dict[str, str]
) -> None:
    assert ask(guarded, path, **headers)[0].status == 401


def test_the_token_is_taken_as_a_header(guarded: PageServer) -> None:
    assert ask(guarded, "/metrics", Authorization=f"Bearer {TOKEN}")[0].status == 200


def test_the_token_in_the_address_becomes_a_cookie(guarded: PageServer) -> None:
    place = urlsplit(guarded.url)
    answer, body = ask(guarded, f"/?{place.query}")
    assert (answer.status, answer.headers["Location"], body) == (303, "/", b"")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    given = cookie.partition("; Path")[0].partition("; HttpOnly")[0]
    assert ask(guarded, "/status.json", Cookie=given)[0].status == 200
    assert ask(guarded, "/?token=wrong")[0].status == 401


def test_an_empty_token_is_refused(watched: Watched) -> None:
    with pytest.raises(OptionError, match="token is empty"):
        PageServer(watched, token=" ")


def test_a_port_that_is_taken_is_named(watched: Watched) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"cannot listen on 127.0.0.1:{port}"):
            PageServer(watched, port=port)


def test_a_damaged_checkpoint_is_an_answer_too(watched: Watched, tmp_path: Path) -> None:
    with PageServer(watched) as server:
        log = tmp_path / "checkpoint" / "semistream" / "batches"
        (log / "00000004.done.json").write_text("{")
        answer, body = ask(server, "/status.json")
        assert answer.status == 503
        assert "missing or broken" in json.loads(body)["error"]
        assert ask(server, "/metrics")[0].status == 503
