"""URLs and request targets without what is secret in them.

User information is left out, and the values of a query are masked, as are a fragment and matrix
parameters of a request target. So the signature of a URL is no part of a source's name: the same
file under a new signature has the same name. Query options that only locate a store stay.
"""

from __future__ import annotations

import re
from typing import Final

_SHOWN: Final = frozenset(
    {"scheme", "region", "endpoint_override", "allow_bucket_creation", "force_virtual_addressing"}
)
"""Options of stores in the queries of Arrow's URLs, of which none is secret."""
_TUNNEL: Final = frozenset({"Type"})
"""The parameter by which a request of Open MQ's HTTP tunnel is recognized."""
_MASK: Final = "***"
_SCHEME: Final = r"([A-Za-z][A-Za-z0-9+.-]*://)"
_USER: Final = r"(?:[^{0}/?#:@]*:(?!\d+/)[^{0}?#]*@|[^{0}/?#]*@)?"
"""User information. A password may have a slash, the path behind a port number may have an @."""
_REST: Final = r"([^{0}?#]*)(\?[^{0}#]*)?(#[^{0}]*)?"
_URL: Final = re.compile(_SCHEME + (_USER + _REST).format(r"\0"))
_URL_IN_TEXT: Final = re.compile(_SCHEME + (_USER + _REST).format(r"\s'\"<>()"))
_TARGET: Final = re.compile(r"([^?#;]*)(;[^?#]*)?(\?[^#]*)?(#.*)?", re.DOTALL)


def shown_url(path: str) -> str:
    """Return a path, or a URL without secrets, as it is shown and stored."""
    return _URL.sub(_masked, path) if "://" in path else path


def shown_text(text: str) -> str:
    """Return a text with the URLs in it without secrets."""
    return _URL_IN_TEXT.sub(_masked, text) if "://" in text else text


def shown_target(target: str) -> str:
    """Return the target of an HTTP request without secrets."""
    path, matrix, query, fragment = _TARGET.fullmatch(shown_url(target)).groups()  # type: ignore[union-attr]
    parameters = _without_values(matrix[1:], frozenset()) if matrix else ""
    return (
        path
        + (f";{parameters}" if matrix else "")
        + (f"?{_without_values(query[1:], _TUNNEL)}" if query else "")
        + (f"#{_MASK}" if fragment else "")
    )


def _masked(url: re.Match[str]) -> str:
    scheme, path, query, fragment = url.groups()
    shown = f"{scheme}{path}"
    if query:
        shown += f"?{_without_values(query[1:], _SHOWN)}"
    return f"{shown}#{_MASK}" if fragment else shown


def _without_values(query: str, shown: frozenset[str]) -> str:
    """Return a query whose values are masked, except those of some names."""
    pairs = (pair.partition("=") for pair in re.split("[&;]", query))
    return "&".join(
        f"{name}={value if name in shown else _MASK}" if equals else _MASK
        for name, equals, value in pairs
    )
