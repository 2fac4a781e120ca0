"""The page of a report: answers as tiles, tables and charts, in one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.evidence import MOST_SOURCE_BYTES, Evidence, find_evidence
from wireyard.answers.symptoms import symptoms as all_symptoms
from wireyard.answers.visibility import how_far
from wireyard.layers.facts import facts_of, registered
from wireyard.report.filters import NO_FILTER, Filter
from wireyard.report.findings import find_all
from wireyard.report.questions import Answer, ask_all, bucket_ns
from wireyard.report.topics import topic_tree
from wireyard.text import bytes_text, clipped, moment, payload_text, printable, span_text

if TYPE_CHECKING:
    from wireyard.answers import Tables

_MOST_CELL: Final = 80
_MOST_FINDINGS: Final = 24
_HEX_BYTES: Final = 8
_HEX_LINES: Final = 6
_MOST_MARKS: Final = 24
_LEAST_BAR: Final = 0.4
"""Width of the shortest bar of a session, in percent."""
_MOMENTS: Final = frozenset({"first_ns", "last_ns", "from_ns", "at_ns", "opened_ns", "closed_ns"})
_SPANS: Final = frozenset(
    {"p50_ns", "p90_ns", "p99_ns", "max_ns", "oldest_ns", "oldest_unacknowledged_ns"}
)
_COUNTS_OF_BYTES: Final = frozenset(
    {
        "bytes", "bytes_read", "bytes_ok", "bytes_malformed", "bytes_garbage", "bytes_tail",
        "bytes_gap", "bytes_sent",
    }
)  # fmt: skip


def build_report(
    tables: Tables,
    inputs: Sequence[str],
    shown_as: str,
    *,
    format: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
    only: Filter | None = None,
) -> str:
    """Return a report as a page of HTML.

    Parameters
    ----------
    tables
        The tables of the inputs.
    inputs
        The inputs that they were opened from.
    shown_as
        The inputs with all options, as on a command line.
    format, decode_as, keylog
        The options that they were opened with.
    only
        What it is about; if not None, it has a form for another filter.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    filtered = only or NO_FILTER
    answers = ask_all(tables, filtered)
    asked = filtered.client or filtered.topic
    found = find_all(tables, answers["quarantined"], shown_as, asked)
    answers |= found.answers
    shown = found.shown[:_MOST_FINDINGS]
    overview = answers["overview"].rows[0]
    first, last = overview["first_ns"], overview["last_ns"]
    evidence = find_evidence(
        {finding.position for finding in shown if None not in finding.position},
        tables.frame_files,
        format=format,
        decode_as=decode_as,
        keylog=keylog,
    )
    environment = Environment(
        loader=PackageLoader("wireyard.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"cell": _cell, "value": _value, "clipped": clipped}
    page = environment.get_template("page.html.jinja")
    return page.render(
        answers=answers,
        charts=_charts(answers),
        command=f"wireyard sql {shown_as}",
        findings=shown,
        found=found,
        only=only,
        asked=asked,
        topics=topic_tree(answers["topics"].rows),
        rate=lambda count: _rate(count, last - first) if first is not None else "",
        bars=_bars(answers["sessions"].rows, first, last),
        all_symptoms=len(all_symptoms()),
        why=f"wireyard why {shown_as}",
        dumps={position: _dump(one) for position, one in evidence.items()},
        inputs=[clipped(name, 60) for name in inputs],
        meanings={facts.protocol: facts.verdicts for facts in registered()},
        severity=_severity,
        most_source=bytes_text(MOST_SOURCE_BYTES),
        unseen=how_far(tables),
        notes=[printable(note) for note in tables.notes],
        made=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        version=version("wireyard"),
        moment=partial(moment, digits=3),
        span=span_text,
    )


def _severity(protocol: str | None, verdict: str | None) -> str:
    """Return the severity of a verdict: good, warn, bad or unknown."""
    facts = facts_of(protocol or "")
    known = facts.verdicts.get(verdict or "") if facts else None
    return known.condition if known else "unknown"


# --- values ---------------------------------------------------------------------------------


def _value(value: Any) -> str:
    """Return a value as JSON, as ``wireyard sql`` writes it."""
    return json.dumps(value.hex() if isinstance(value, bytes) else value, ensure_ascii=False)


def _cell(column: str, value: Any) -> str:
    """Return a value of a column as text for people."""
    if value is None:
        return "-"
    if column in _MOMENTS:
        return moment(value, 3)
    if column in _SPANS:
        return span_text(value)
    if column in _COUNTS_OF_BYTES:
        return bytes_text(value)
    if isinstance(value, bytes):
        return printable(payload_text(value, is_whole=False))
    if isinstance(value, int | float):
        return f"{value:,}"
    shown = clipped(str(value), _MOST_CELL)
    cut = len(str(value)) > _MOST_CELL
    return f"{shown} ({_MOST_CELL} of {len(value)} characters)" if cut else shown


def _rate(count: int, span_ns: int) -> str:
    """Return how many there were a second; empty if no time passed."""
    if not span_ns:
        return ""
    rate = count * 1e9 / span_ns
    return f"{rate:,.{0 if rate >= 99.5 else 1 if rate >= 0.95 else 3}f}/s"


# --- parts of the page ----------------------------------------------------------------------


def _charts(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return the charts that have data, as SVG."""
    from wireyard.report import charts

    overview = answers["overview"].rows[0]
    first, last = overview["first_ns"], overview["last_ns"]
    width = bucket_ns(first, last)
    drawn: Mapping[str, Callable[[], str]] = {
        "packets": lambda: charts.rates(answers["rates"], width, "packets"),
        "bytes": lambda: charts.rates(answers["rates"], width, "bytes"),
        "wide": lambda: charts.timeline(answers["flow"], width, wide=True),
        "narrow": lambda: charts.timeline(answers["flow"], width, wide=False),
        "sizes": lambda: charts.sizes(answers["sizes"]),
        "delays": lambda: charts.delays(answers["delays"]),
        "ages": lambda: charts.ages(answers["ages"], width, last),
        "slowest": lambda: charts.quantiles(answers["slowest"]),
        "graph": lambda: charts.graph(answers["producers"], answers["consumers"]),
    }
    source = {"packets": "rates", "bytes": "rates", "graph": "producers"}
    source |= {"wide": "flow", "narrow": "flow"}
    has_data = {name: bool(answers[source.get(name, name)]) for name in drawn}
    has_data["graph"] |= bool(answers["consumers"])
    return {name: draw() for name, draw in drawn.items() if has_data[name]}


def _bars(
    sessions: Sequence[Mapping[str, Any]], first_ns: int | None, last_ns: int | None
) -> list[tuple[float, float]]:
    """Return where the bar of each session begins and how long it is, in percent of the time."""
    if first_ns is None or last_ns is None:
        return []
    bars = []
    for row in sessions:
        opened, closed = row["opened_ns"], row["closed_ns"]
        start, stop = (
            100 * (at - first_ns) / max(last_ns - first_ns, 1)
            for at in (
                first_ns if opened is None else opened,
                last_ns if closed is None else closed,
            )
        )
        start = min(max(start, 0), 100 - _LEAST_BAR)
        bars.append((round(start, 2), round(max(min(stop, 100) - start, _LEAST_BAR), 2)))
    return bars


@dataclass(frozen=True)
class _Line:
    start: int
    hex: str
    field: str
    value: str
    spec: str


@dataclass(frozen=True)
class _Dump:
    title: str
    lines: list[_Line]
    cut: str
    """How much is shown; empty if everything is."""


def _dump(evidence: Evidence) -> _Dump:
    """Return a hex dump, with the meaning of the bytes beside it."""
    title = f"{evidence.format.name}, {evidence.size:,} bytes"
    if not evidence.marks:
        width = 2 * _HEX_BYTES
        most = evidence.data[: width * _HEX_LINES]
        lines = [
            _Line(at, most[at : at + width].hex(" "), "", _ascii(most[at : at + width]), "")
            for at in range(0, len(most), width)
        ]
        cut = f"{len(most):,} of {evidence.size:,} bytes" if len(most) < evidence.size else ""
        return _Dump(title, lines, cut)
    lines = []
    for mark in evidence.marks[:_MOST_MARKS]:
        data = evidence.data[mark.start : mark.stop]
        if mark.hidden:
            dump = f"-- ({len(data)} bytes)"
        else:
            shown = data[: _HEX_BYTES * _HEX_LINES]
            parts = [shown[at : at + _HEX_BYTES] for at in range(0, len(shown), _HEX_BYTES)]
            dump = "\n".join(part.hex(" ") for part in parts)
            if len(shown) < len(data):
                dump += f"\n{len(shown)} of {len(data):,} bytes"
        lines.append(
            _Line(mark.start, dump, printable(mark.field), clipped(mark.value, 200), mark.spec)
        )
    count = len(evidence.marks)
    return _Dump(title, lines, f"{len(lines)} of {count} fields" if len(lines) < count else "")


def _ascii(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
