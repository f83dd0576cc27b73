"""URIs without their secrets, for messages, logs and plans; and how a URI is opened.

A URI may hold a user and a password before its host, and keys among its options. People also write
such URIs wrongly, with a slash in a password or an unknown scheme: exactly then they are shown.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from semistream.errors import OptionError

__all__ = ["opened", "without_secrets"]

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)", re.DOTALL)
_HARMLESS: Final = frozenset(
    {
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "endpoint_override",
        "region",
        "replication",
        "scheme",
    }
)
"""Options that may be shown: those of pyarrow that hold no secret."""
_HOSTS_WITH_PORTS: Final = frozenset({"hdfs", "viewfs", "webhdfs", "file"})
_CONTAINERS: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes where a container stands before the host: abfss://container@account/path."""


def without_secrets(location: object) -> str:
    """The location, without user, password and keys if it is a URI.

    >>> without_secrets("s3://KEY:SEC/RET@bucket/r?region=eu&session_token=T")
    's3://bucket/r?region=eu'
    >>> without_secrets("data/products.master")
    'data/products.master'
    """
    text = str(location)
    begin = _URI.match(text)
    if begin is None:
        return text
    rest = text[begin.end() :]
    # A question mark or a hash sign may stand in a password: then the host comes after it.
    if "@" in "".join(re.split("[?#]", rest)[1:]):
        rest = rest.rpartition("@")[2]
    place, _, options = rest.partition("#")[0].partition("?")
    place = place[_user_end(begin[1].lower(), place) :]
    host, colon, port = place.partition("/")[0].partition(":")
    if colon and not port.isdigit() and not host.startswith("["):
        # No host has such a port. It is a user and a password, and the host was forgotten.
        place = host
    shown = [option for option in re.split("[&;]", options) if _is_harmless(option)]
    return f"{text[: begin.end()]}{place}" + (f"?{'&'.join(shown)}" if shown else "")


def opened(uri: str, advice: str, shown: str | None = None) -> tuple[pafs.FileSystem, str]:
    """The filesystem of a URI, and the path in it; `OptionError`, with advice, if it has none.

    `shown` is the URI as the user gave it, if that is another.
    """
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        given = uri if shown is None else shown
        reason = _harmless_reason(str(error), uri, given)
        # Not "from error": the traceback would show Arrow's own message, and the URI with it.
        raise OptionError(
            f"{without_secrets(given)} cannot be opened: {reason}. {advice}"
        ) from None
    return filesystem, path


def _user_end(scheme: str, place: str) -> int:
    """Where the host begins, behind user and password."""
    authority = place.partition("/")[0]
    user = authority.rpartition("@")[0]
    if scheme in _CONTAINERS and user and ":" not in user:
        return 0
    # A slash in a password makes the rest of it look like a path.
    is_torn = ":" in authority and "@" in place and scheme not in _HOSTS_WITH_PORTS
    return (place.rindex("@") if is_torn else len(user)) + 1 if user or is_torn else 0


def _is_harmless(option: str) -> bool:
    name, _, value = option.partition("=")
    return name.lower() in _HARMLESS and "@" not in unquote(value)


def _harmless_reason(reason: str, *uris: str) -> str:
    """Arrow's message, with URIs as they may be shown; or nothing of it, if it tells more."""
    kept = " ".join(without_secrets(uri) for uri in uris)
    for uri in uris:
        reason = reason.replace(uri, without_secrets(uri))
    words = {word for uri in uris for word in re.split(r"[:/@?&=#\s]+", f"{uri} {unquote(uri)}")}
    secrets = {word for word in words if word and word not in kept}
    if any(secret in reason for secret in secrets):
        return "pyarrow does not take it (what it says has parts of the URI that are secret)"
    return reason
