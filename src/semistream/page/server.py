"""The server of the page: a few files, `/status.json` and `/metrics`, on this machine alone.

It answers GET only, and nothing it does changes anything. Other machines reach it only if it is
told to listen there, and then every request needs the token. A browser that was lured here under
another name (DNS rebinding) is refused by its Host header.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import platform
import socket
import threading
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from semistream.errors import OptionError, SemistreamError
from semistream.page.prometheus import metrics_text
from semistream.page.series import MOST_POINTS
from semistream.page.status import Watched

__all__ = ["PageServer"]

_STATIC: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    "/static/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/static/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/static/uPlot.js": ("uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/static/uPlot.css": ("uPlot.min.css", "text/css; charset=utf-8"),
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_COOKIE: Final = "semistream_token"
_MOST_POINTS: Final = 2000
_IDLE_SECONDS: Final = 30


class PageServer:
    """Serves the page of one pipeline, from a thread of its own, until `close`."""

    def __init__(
        self,
        watched: Watched,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        """Begin to listen; port 0 takes a free one. Without a token, on loopback only."""
        if token is not None and not token.strip():
            raise OptionError("The token is empty. Give some letters that nobody can guess.")
        if token is None and not _is_loopback(host):
            raise OptionError(
                f"Without a token the page is for this machine alone, and {host} can be reached "
                "from others. Give a token, or use 127.0.0.1."
            )
        self._token = token
        try:
            self._server = _Server(host, port, watched, token)
        except OSError as error:
            raise OptionError(
                f"The page cannot listen on {host}:{port}: {error.strerror or error}. Give another "
                "port, or 0 for any that is free."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """What to open in a browser; it has the token."""
        host, port = self._server.server_address[:2]
        name = str(host) if ":" not in str(host) else f"[{host!s}]"
        query = "" if self._token is None else f"?token={quote(self._token, safe='')}"
        return f"http://{name}:{port}/{query}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> PageServer:
        """The server itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, watched: Watched, token: str | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.watched, self.token = watched, token
        self.names = {"localhost", host.lower(), platform.node().lower()}
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has gone away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "semistream"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """Answer; the name is the library's."""
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        if not self._is_known_host():
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "This page has another name.")
        elif self.server.token is not None and "token" in query:
            self._welcome(query["token"][0], asked.path)
        elif not self._is_allowed():
            self._say(
                HTTPStatus.UNAUTHORIZED,
                "This page needs its token: open the address that semistream has printed.",
            )
        elif asked.path in _STATIC:
            name, kind = _STATIC[asked.path]
            self._send(HTTPStatus.OK, kind, _file(name))
        elif asked.path == "/status.json":
            self._status(query)
        elif asked.path == "/metrics":
            self._metrics()
        else:
            self._say(HTTPStatus.NOT_FOUND, "There is no such page.")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """The terminal is for the pipeline."""

    def _status(self, query: dict[str, list[str]]) -> None:
        points = min(_number(query, "points") or MOST_POINTS, _MOST_POINTS)
        try:
            found = self.server.watched.status(points, _number(query, "last"))
        except (SemistreamError, OSError) as error:
            told = {"error": str(error)}
            self._send(
                HTTPStatus.SERVICE_UNAVAILABLE, "application/json", json.dumps(told).encode()
            )
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(found).encode())

    def _metrics(self) -> None:
        try:
            text = metrics_text(self.server.watched)
        except (SemistreamError, OSError) as error:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        else:
            self._send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", text.encode())

    def _is_known_host(self) -> bool:
        """A name must be ours. An address cannot lie: only names can be pointed elsewhere."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return host.lower() in self.server.names or _is_address(host)

    def _is_allowed(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(given.strip())
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(self.headers.get("Cookie", ""))
        except CookieError:
            return False
        return _COOKIE in cookies and self._is_token(cookies[_COOKIE].value)

    def _is_token(self, given: str) -> bool:
        assert self.server.token is not None
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _welcome(self, given: str, path: str) -> None:
        """Put the token into a cookie, so that it does not stay in the address."""
        if not self._is_token(given):
            self._say(HTTPStatus.UNAUTHORIZED, "This is not the token.")
            return
        cookie: SimpleCookie = SimpleCookie()
        cookie[_COOKIE] = given
        cookie[_COOKIE]["httponly"] = True
        cookie[_COOKIE]["samesite"] = "Strict"
        cookie[_COOKIE]["path"] = "/"
        there = {"Location": path, "Set-Cookie": cookie[_COOKIE].OutputString()}
        self._send(HTTPStatus.SEE_OTHER, "text/plain; charset=utf-8", b"", there)

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _send(
        self, status: HTTPStatus, kind: str, body: bytes, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _file(name: str) -> bytes:
    return files("semistream.page").joinpath("static", name).read_bytes()


def _number(query: dict[str, list[str]], name: str) -> int | None:
    """A number of the query; None unless it is one above 0."""
    text = query.get(name, [""])[0]
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
