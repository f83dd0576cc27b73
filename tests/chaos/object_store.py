"""Faults of an object store: a real S3 server on loopback that fails, slows down, cuts and lags.

500, 503     a request is refused; "lost answer": it is done, but the client is told 500
cut          the connection ends before the request is read to its end
slow         a request takes longer than usual
lagging      a listing is as old as some requests ago
"""

from __future__ import annotations

import io
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow.fs as pafs
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.chaos.attack import Attack, Verdict
from tests.chaos.storage_faults import Operation, Shop, ended, judged, tried

KINDS: Final = ("500", "503", "lost answer", "cut", "slow", "lagging")
_LAG: Final = 6
"""A lagging listing may be this many listings old."""

Environ = dict[str, Any]
StartResponse = Callable[..., Any]


class FaultyStore:
    """An S3 server whose requests fail when `kind` is set: the `at`-th, and `more` after it."""

    def __init__(self) -> None:
        self._inner = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._listings: dict[str, deque[tuple[Any, list[bytes]]]] = {}
        self.kind, self.at, self.more, self.calls, self.struck = "", 0, 0, 0, 0
        self.was_struck = False
        """Whether a request of the last operation failed."""
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def options(self) -> str:
        """The options of a URI that leads here."""
        place = f"127.0.0.1:{self._server.server_port}"
        return f"endpoint_override={place}&scheme=http&region=us-east-1"

    def bucket(self) -> str:
        """The URI of a new master table in a new bucket."""
        name = f"b{uuid4().hex[:12]}"
        uri = f"s3://AKIA:secret@{name}?{self.options}&allow_bucket_creation=true"
        filesystem, path = pafs.FileSystem.from_uri(uri)
        filesystem.create_dir(path)
        return f"s3://AKIA:secret@{name}/goods.master?{self.options}"

    def arm(self, kind: str, at: int, more: int) -> None:
        """From now on the request of number `at` fails, and `more` after it."""
        self.kind, self.at, self.more, self.calls, self.struck = kind, at, more, 0, 0

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, or not."""
        with self._lock:
            self.calls += 1
            hit = bool(self.kind) and self.at <= self.calls <= self.at + self.more
            self.struck += hit
        kind = self.kind if hit else ""
        if kind == "slow":
            time.sleep(0.05)
        if kind in ("500", "503"):
            _drain(environ)
            return _refusal(start_response, kind)
        if kind == "cut" and environ["REQUEST_METHOD"] == "PUT":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(size // 2)
            raise ConnectionError("cut")
        status, body = self._answered(environ, kind == "lagging")
        if kind == "lost answer":
            return _refusal(start_response, "500")
        start_response(*status)
        return body

    def _answered(self, environ: Environ, lagging: bool) -> tuple[Any, list[bytes]]:
        is_listing = environ["REQUEST_METHOD"] == "GET" and "list-type" in environ["QUERY_STRING"]
        place = f"{environ.get('HTTP_HOST')}{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        if lagging and is_listing and (known := self._listings.get(place)):
            return known[0]
        told: list[Any] = []
        body = list(self._inner(environ, lambda *status: told.append(status)))
        answer = (told[0], body)
        if is_listing:
            self._listings.setdefault(place, deque(maxlen=_LAG)).append(answer)
        return answer


def _drain(environ: Environ) -> None:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO()


def _refusal(start_response: StartResponse, code: str) -> list[bytes]:
    word = {"500": "InternalError", "503": "SlowDown"}[code]
    start_response(f"{code} {word}", [("Content-Type", "application/xml")])
    return [f"<Error><Code>{word}</Code><Message>chaos</Message></Error>".encode()]


_stores: Final[list[FaultyStore]] = []
"""The server of this process, once there is one."""


def _case(rng: random.Random, folder: Path) -> Verdict:
    """A history of some operations, each of which meets a fault."""
    if not _stores:
        _prepare()
        _stores.append(FaultyStore())
    store = _stores[0]
    shop = Shop(store.bucket(), np.random.default_rng(rng.getrandbits(64)))
    struck = 0
    for _ in range(5):
        kind = rng.choice(KINDS)
        at, more = rng.randint(1, 40), rng.choice([0, 0, 1, 3])
        if kind == "lagging":
            at, more = 1, 1000
        verdict = _struck(shop, store, kind, at, more)
        struck += store.was_struck
        if verdict != "ok":
            return judged(verdict)
    return Verdict(struck=struck)


def _prepare() -> None:
    """Any credentials will do, and none are looked for elsewhere; the server keeps quiet."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)


def _struck(shop: Shop, store: FaultyStore, kind: str, at: int, more: int) -> str:
    def run(operation: Operation) -> str:
        store.arm(kind, at, more)
        try:
            return ended(operation.perform, lambda: store.struck > 0)
        finally:
            store.was_struck = store.struck > 0
            store.arm("", 0, 0)

    return tried(shop, run, f"{kind} at request {at}")


ATTACK: Final = Attack("faults of an object store", _case, per_child=10)
