"""A server of the S3 protocol, as a program: `s3_server.py PORT LATENCY`."""

from __future__ import annotations

import sys
import time
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


def serve(port: int, latency: float) -> None:
    """Answer requests until the process is ended; each takes `latency` seconds longer."""
    WSGIRequestHandler.protocol_version = "HTTP/1.1"  # Clients keep connections.
    store = DomainDispatcherApplication(create_backend_app)

    def answer(request: Any, respond: Any) -> Any:
        time.sleep(latency)
        return store(request, respond)

    make_server("127.0.0.1", port, answer, threaded=True).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
