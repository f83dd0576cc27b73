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

__all__ = ["harmless", "hides", "opened", "scrubbed", "without_secrets"]

_URI: Final = re.compile(r"[\s\"'<(]*((?:[A-Za-z0-9][\w+.-]*[:;\\]+)+)(/+)")
"""How a URI begins, also one that is written wrongly; `jdbc:` may come before its scheme."""
_URI_IN_TEXT: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)+/+[^\s\"'<>]+")
_PASSWORD: Final = re.compile(r"[^?#]*:[^?#]*@")
"""A user and a password without a scheme before them."""
_NAMED: Final = re.compile(
    r"((?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|signature|sig"
    r"|(?:account|access|api|shared|secret)[_.]?key)[\w.-]*"
    r"(?:\s*=\s*|\s*->\s*|[\"']\s*:\s*)[\"']?)[^\s&;,\"']+",
    re.IGNORECASE,
)
"""A secret that is given by name, as `password=…` or `{"password": "…"}`."""
_OPTIONS: Final = re.compile(r"[?]|;(?=[\w.]+=)")
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
        return _relative(text)
    scheme, rest = begin[1].lower().rstrip(":;\\"), text[begin.end() :]
    # A question mark or a hash sign may stand in a password: then the host comes after it.
    if "@" in "".join(re.split("[?#]", rest)[1:]):
        rest = rest.rpartition("@")[2]
    place, *options = _OPTIONS.split(rest.partition("#")[0], maxsplit=1)
    if not (scheme == "file" and begin[2] == "///"):
        place = _place(scheme, place)
    shown = [option for option in re.split("[&;]", "".join(options)) if _is_harmless(option)]
    whole = f"{text[: begin.end()]}{place}" + (f"?{'&'.join(shown)}" if shown else "")
    return _NAMED.sub(r"\1…", whole)


def hides(location: object) -> bool:
    """Whether the location has something that must not be shown."""
    return without_secrets(location) != str(location)


def scrubbed(text: str) -> str:
    """A message of another library, with the URIs in it as they may be shown.

    >>> scrubbed("Path does not exist: s3a://KEY:SECRET@bucket/x. password=SECRET")
    'Path does not exist: s3a://bucket/x. password=…'
    """
    shown = _URI_IN_TEXT.sub(lambda uri: without_secrets(uri[0]), text)
    return _NAMED.sub(r"\1…", shown)


def harmless(error: BaseException) -> BaseException | None:
    """The error, to name as a cause; None if its text, or that of its causes, has a secret."""
    told: BaseException | None = error
    while told is not None:
        if scrubbed(str(told)) != str(told):
            return None
        told = told.__cause__ or told.__context__
    return error


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


def _relative(text: str) -> str:
    """What is no URI, without a password if it seems to have one. Plain paths stay as they are."""
    if text.startswith((".", "~")) or (text.startswith("/") and not text.startswith("//")):
        return text
    if _PASSWORD.match(text):
        text = text.rpartition("@")[2]
    return _NAMED.sub(r"\1…", text)


def _place(scheme: str, place: str) -> str:
    """Host and path, without user and password."""
    place = place[_user_end(scheme, place) :]
    host, colon, port = place.partition("/")[0].partition(":")
    if colon and not port.isdigit() and not host.startswith("["):
        # No host has such a port. It is a user and a password, and the host was forgotten.
        return host
    return place


def _user_end(scheme: str, place: str) -> int:
    """Where the host begins, behind user and password."""
    authority = place.partition("/")[0]
    ends = [sign.end() for sign in re.finditer("@|%40", authority)]
    if scheme in _CONTAINERS and ends and not re.search(":|%3a", authority[: ends[-1]], re.I):
        return 0
    # A slash in a password makes the rest of it look like a path.
    is_torn = ":" in authority and "@" in place and scheme not in _HOSTS_WITH_PORTS
    if is_torn:
        return place.rindex("@") + 1
    return ends[-1] if ends else 0


def _is_harmless(option: str) -> bool:
    name, _, value = option.partition("=")
    return name.lower() in _HARMLESS and "@" not in unquote(value)


def _harmless_reason(reason: str, *uris: str) -> str:
    """Arrow's message, with URIs as they may be shown; or nothing of it, if it tells more."""
    kept = " ".join(without_secrets(uri) for uri in uris)
    for uri in uris:
        reason = reason.replace(uri, without_secrets(uri))
    reason = scrubbed(reason)
    words = {word for uri in uris for word in re.split(r"[:/@?&=#\s]+", f"{uri} {unquote(uri)}")}
    secrets = {word for word in words if word and word not in kept}
    if any(secret in reason for secret in secrets):
        return "pyarrow does not take it (what it says has parts of the URI that are secret)"
    return reason
