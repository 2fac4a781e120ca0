"""A report over HTTP on the loopback address, with filters.

Rules of this file:

1. It listens on the loopback address alone, and answers only requests whose Host header names it:
   a page of another site, whose name resolves to this address, gets nothing. Nor does one that
   requests it by its own name, as browsers say: the time of an answer would tell it something.
2. It answers GET of one path; nothing can be changed by it. A few connections are read at a time,
   and pages are made one by one.
3. A value of a filter is data: it is text of a literal in SQL, and escaped on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, active_count
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from wireyard.errors import WireError
from wireyard.report.filters import Filter
from wireyard.streams.conditions import time_ns

LOOPBACK: Final = "127.0.0.1"
_NAMES: Final = ("client", "topic", "since", "until")
_TIMEOUT_S: Final = 10
"""Time for bytes of a request to arrive."""
_MOST_THREADS: Final = 32
_OWN_SITE: Final = ("none", "same-origin")
_HEADERS: Final = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self';"
     " frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)  # fmt: skip


class ReportServer(ThreadingHTTPServer):
    """Serves pages until it is interrupted.

    `build` returns the page of a filter. `port` is 0 for any that is free.
    """

    def __init__(self, build: Callable[[Filter], str], port: int) -> None:
        super().__init__((LOOPBACK, port), partial(_Handler, build, Lock()))
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def verify_request(self, *request: Any) -> bool:
        """Return whether one more connection is read."""
        return active_count() < _MOST_THREADS

    def handle_error(self, *request: Any) -> None:
        """Do nothing about a browser that has gone away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*request)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "wireyard"
    sys_version = ""
    timeout = _TIMEOUT_S

    def __init__(self, build: Callable[[Filter], str], one_by_one: Lock, *given: Any) -> None:
        self._build, self._one_by_one = build, one_by_one
        super().__init__(*given)

    def do_GET(self) -> None:
        """Answer with the page of the filter in the query."""
        is_named = self.headers.get_all("Host") in [[host] for host in self.server.hosts]
        if not is_named or self.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITE:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "this server answers no other site")
            return
        try:
            asked = urlsplit(self.path)
            if asked.path != "/":
                self._answer(HTTPStatus.NOT_FOUND, "there is one page: /")
                return
            with self._one_by_one:
                page = self._build(filter_of(asked.query))
        except (ValueError, WireError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._answer(HTTPStatus.OK, page, "text/html")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        for name, value in _HEADERS:
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *given: object) -> None:
        """Log nothing: requests name clients and topics."""


def filter_of(query: str) -> Filter:
    """Return the filter in the query of a URL.

    A `ValueError` is raised if it has other fields, or a time that is none.
    """
    fields = parse_qs(query, strict_parsing=bool(query), max_num_fields=len(_NAMES))
    unknown = fields.keys() - set(_NAMES)
    if unknown or any(len(values) > 1 for values in fields.values()):
        raise ValueError(f"a filter has the fields {', '.join(_NAMES)}, each once")
    given = {name: values[0].strip() for name, values in fields.items() if values[0].strip()}
    since, until = given.get("since"), given.get("until")
    return Filter(
        client=given.get("client"),
        topic=given.get("topic"),
        since=since,
        until=until,
        since_ns=None if since is None else time_ns(since),
        until_ns=None if until is None else time_ns(until),
    )
