"""Charts of answers: Vega-Lite specifications, rendered to SVG when the page is made.

Colours are CSS variables of the page, so charts follow its light and dark modes. The data of a
chart is in the table beside it, so screen readers skip the chart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import vl_convert as vlc

from wireyard.report.questions import Answer
from wireyard.text import bytes_text, clipped, span_text

__all__ = ["delays", "graph", "quantiles", "rates", "sizes", "timeline"]

_WIDTH: Final = 520
_LABEL: Final = 60
"""Characters of a name in a chart; the table beside it has all."""
_CHARACTER: Final = 7.6
"""Width of a character of a name."""
_HEIGHT: Final = 150
_SERIES: Final = {
    "mqtt": "var(--c1)",
    "jmq": "var(--c2)",
    "jms": "var(--c2)",
    "gpacket": "var(--c3)",
    "rmp": "var(--c4)",
}
"""The colours of formats and protocols."""
_NS_PER_MS: Final = 1_000_000
_DAY_NS: Final = 86_400 * 10**9
_CURVE: Final = 24
"""Segments of a curve."""
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
_STYLE: Final = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "labelLimit": 0,
        "titleColor": "var(--muted)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
    },
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "labelLimit": 0,
        "orient": "top",
        "columns": 2,
        "title": None,
        "symbolType": "square",
        "symbolStrokeWidth": 0,
        "symbolOpacity": 1,
    },
}
_COUNTS: Final = {"format": ",~r", "tickCount": 4}
"""An axis of counts or rates."""

Spec = dict[str, Any]
"""A part of a specification in Vega-Lite."""


def _svg(chart: Spec, width: int | None = None, height: int | None = None) -> str:
    """Draw a chart, of a size unless its parts have theirs."""
    size = {} if width is None else {"width": width, "height": height}
    text: str = vlc.vegalite_to_svg({"$schema": _SCHEMA, "config": _STYLE, **size, **chart})
    # The figure around it has the name; screen readers skip the parts of the picture.
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def _chart(rows: Sequence[Mapping[str, Any]], mark: str, encoding: Spec, **look: Any) -> Spec:
    """Return marks of rows: a chart, or a layer of one."""
    return {"data": {"values": rows}, "mark": {"type": mark, **look}, "encoding": encoding}


def _field(name: str, kind: str, **more: Any) -> Spec:
    """Return the encoding of a field; `kind` is quantitative, nominal, ordinal or temporal."""
    return {"field": name, "type": kind, **more}


def _colour(
    field: str, colours: Mapping[str, str], there: Iterable[str], *, lines: bool = False
) -> Spec:
    """Return the colour encoding of a field, with a legend if it has several values."""
    names = [name for name in colours if name in set(there)]
    scale = {"domain": names, "range": [colours[name] for name in names]}
    symbol = {"symbolType": "stroke", "symbolStrokeWidth": 4, "symbolSize": 200}
    legend = (symbol if lines else {}) if len(names) > 1 else None
    return _field(field, "nominal", scale=scale, legend=legend)


def _time_axis(field: str, span_ns: int, ends: Sequence[float] = ()) -> Spec:
    """Return a time axis in UTC, formatted for the length of the span."""
    form = "%H:%M:%S" if span_ns < _DAY_NS else "%d %b %H:%M"
    axis = {"tickCount": 5, "grid": False, "format": form, "labelOverlap": "greedy"}
    scale = {"type": "utc", **({"domain": list(ends)} if ends else {})}
    return _field(field, "temporal", title="UTC", scale=scale, axis=axis)


# --- over time ------------------------------------------------------------------------------


def _filled(
    answer: Answer, series: str, names: Sequence[str], width_ns: int
) -> list[dict[str, Any]]:
    """Return a row for every interval of each series; zeros fill intervals without packets."""
    by_key = {(row["from_ns"], row[series]): row for row in answer.rows}
    filled = []
    for at, interval in _intervals(answer, width_ns):
        for name in names:
            row = by_key.get((interval, name), {"packets": 0, "bytes": 0})
            filled.append({"at": at / _NS_PER_MS, series: name, **_rates(row, width_ns)})
    return filled


def _intervals(answer: Answer, width_ns: int) -> Iterator[tuple[int, int]]:
    """Yield points in time, each with the interval that begins there; the end has the last one."""
    first, last = answer.rows[0]["from_ns"], answer.rows[-1]["from_ns"]
    yield from ((at, at) for at in range(first, last + width_ns, width_ns))
    yield last + width_ns, last


def _rates(row: Mapping[str, Any], width_ns: int) -> dict[str, float]:
    seconds = width_ns / 1e9
    return {"packets": row["packets"] / seconds, "bytes": row["bytes"] / seconds}


def rates(answer: Answer, width_ns: int, measure: str) -> str:
    """Return packets or bytes per second over time, stacked by format."""
    names = sorted({row["format"] for row in answer.rows})
    rows = _filled(answer, "format", names, width_ns)
    title = f"{measure} a second"
    encoding = {
        "x": _time_axis("at", answer.rows[-1]["from_ns"] - answer.rows[0]["from_ns"]),
        "y": _field(measure, "quantitative", title=title, stack=True, axis=_COUNTS),
        "color": _colour("format", _SERIES, names),
    }
    chart = _chart(rows, "area", encoding, interpolate="step-after", opacity=0.75)
    return _svg(chart, _WIDTH, _HEIGHT)


def timeline(answer: Answer, width_ns: int, *, wide: bool) -> str:
    """Return messages sent and delivered a second over time, above deliveries that failed."""
    kinds = {"sent": "var(--c1)", "delivered": "var(--c2)"}
    by_time = {row["from_ns"]: row for row in answer.rows}
    rows = [
        {
            "at": at / _NS_PER_MS,
            "kind": kind,
            "rate": by_time.get(interval, {}).get(kind, 0) / (width_ns / 1e9),
        }
        for at, interval in _intervals(answer, width_ns)
        for kind in kinds
    ]
    failed = [
        {
            "from": row["from_ns"] / _NS_PER_MS,
            "to": (row["from_ns"] + width_ns) / _NS_PER_MS,
            "failed": row["failed"],
        }
        for row in answer.rows
    ]
    ends = [rows[0]["at"], rows[-1]["at"]]
    span = answer.rows[-1]["from_ns"] - answer.rows[0]["from_ns"]
    x = _time_axis("at", span, ends)
    encoding = {
        "x": {**x, "axis": None},
        "y": _field("rate", "quantitative", title="a second", axis=_COUNTS),
        "color": _colour("kind", kinds, kinds, lines=True),
    }
    losses = {
        "x": _time_axis("from", span, ends),
        "x2": {"field": "to"},
        "y2": {"datum": 0},
        "y": _field(
            "failed",
            "quantitative",
            title="failed",
            axis={**_COUNTS, "tickCount": 2, "tickMinStep": 1},
        ),
    }
    size = {"width": 2 * _WIDTH if wide else _WIDTH - 160}
    above = _chart(rows, "line", encoding, interpolate="step-after", strokeWidth=2)
    below = _chart(failed, "rect", losses, color="var(--bad)")
    return _svg({"vconcat": [{**above, **size, "height": 110}, {**below, **size, "height": 44}],
                 "spacing": 8})  # fmt: skip


def ages(answer: Answer, width_ns: int, end_ns: int) -> str:
    """Return the age of the oldest waiting message over time, a line for each destination.

    Parameters
    ----------
    end_ns
        The end of the captures, behind which nothing is known.
    """
    names = sorted({row["destination"] or "" for row in answer.rows})
    oldest = {(row["at_ns"], row["destination"] or ""): row["oldest_ns"] for row in answer.rows}
    first, last = answer.rows[0]["at_ns"], answer.rows[-1]["at_ns"]
    rows = [
        {
            "at": at / _NS_PER_MS,
            "destination": clipped(name, _LABEL),
            "age": (oldest.get((at, name)) or 0) / 1e9,
        }
        for at in range(first - width_ns, min(last + width_ns, end_ns) + 1, width_ns)
        for name in names
    ]
    shown = [clipped(name, _LABEL) for name in names]
    series = {name: f"var(--c{number})" for number, name in enumerate(shown, 1)}
    encoding = {
        "x": _time_axis("at", last - first + 2 * width_ns),
        "y": _field("age", "quantitative", title="seconds", axis=_COUNTS),
        "color": _colour("destination", series, shown, lines=True),
    }
    return _svg(_chart(rows, "line", encoding, strokeWidth=2), _WIDTH, _HEIGHT)


# --- distributions --------------------------------------------------------------------------


def sizes(answer: Answer) -> str:
    """Return a histogram of body sizes, by powers of two."""
    rows = [
        {
            "from": row["power"],
            "to": row["power"] + 1,
            "n": row["messages"],
            "protocol": row["protocol"],
        }
        for row in answer.rows
    ]
    ticks = _ticks([row["from"] for row in rows])
    labels = {power: bytes_text(2**power) for power in ticks}
    return _histogram(rows, "messages", "bytes of payload", labels)


def delays(answer: Answer) -> str:
    """Return a histogram of delivery delays, by fifths of powers of ten."""
    rows = [
        {
            "from": row["step"],
            "to": row["step"] + 1,
            "n": row["deliveries"],
            "protocol": row["protocol"],
        }
        for row in answer.rows
    ]
    low, high = rows[0]["from"], rows[0]["from"]
    for row in rows:
        low, high = min(low, row["from"]), max(high, row["to"])
    labels = {step: span_text(10 ** (step / 5)) for step in range(-(-low // 5) * 5, high + 1, 5)}
    return _histogram(rows, "deliveries", "from sent to delivered", labels)


def _ticks(values: Sequence[int]) -> list[int]:
    low, high = min(values), max(values) + 1
    step = max(math.ceil((high - low) / 8), 1)
    return list(range(low, high + 1, step))


def _histogram(
    rows: Sequence[Mapping[str, Any]], measure: str, title: str, labels: Mapping[int, str]
) -> str:
    names = {row["protocol"] for row in rows}
    texts = ", ".join(f"'{place}': '{text}'" for place, text in labels.items())
    axis = {"values": list(labels), "labelExpr": f"{{{texts}}}[datum.value]", "grid": False}
    encoding = {
        "x": _field("from", "quantitative", bin="binned", title=title, axis=axis),
        "x2": {"field": "to"},
        "y": _field("n", "quantitative", title=measure, stack=True, axis=_COUNTS),
        "color": _colour("protocol", _SERIES, names),
    }
    chart = _chart(rows, "bar", encoding, opacity=0.85, binSpacing=1)
    return _svg(chart, _WIDTH, _HEIGHT)


def quantiles(answer: Answer) -> str:
    """Return the median, 90th and 99th percentile for each destination, the slowest first."""
    rows = []
    for row in answer.rows:
        for name in ("p50", "p90", "p99"):
            rows.append(
                {
                    "destination": clipped(row["destination"] or "unknown", _LABEL),
                    "quantile": name,
                    "ms": max(row[f"{name}_ns"], 1) / _NS_PER_MS,
                    "p99": row["p99_ns"] / _NS_PER_MS,
                }
            )
    colours = {"p50": "var(--good)", "p90": "var(--c3)", "p99": "var(--bad)"}
    order = {"field": "p99", "op": "max", "order": "descending"}
    y = _field("destination", "nominal", sort=order, title=None)
    scale = {"type": "log", "nice": False}
    powers = {round(math.log10(row["ms"]) - 0.5) for row in rows}
    ticks = [10.0**power for power in range(min(powers), max(powers) + 2)]
    texts = ", ".join(f"'{tick:g}': '{span_text(tick * _NS_PER_MS)}'" for tick in ticks)
    axis = {"values": ticks, "labelExpr": f"{{{texts}}}[format(datum.value, '~g')]"}
    x = _field("ms", "quantitative", scale=scale, title="from sent to delivered", axis=axis)
    ends = {"x": x, "y": y, "detail": _field("destination", "nominal")}
    marks = {"x": x, "y": y, "color": _colour("quantile", colours, colours)}
    lines = _chart(rows, "line", ends, color="var(--line)", strokeWidth=3)
    points = _chart(rows, "point", marks, filled=True, size=70, opacity=1)
    return _svg({"layer": [lines, points]}, _WIDTH - 130, max(len(answer.rows) * 22, 44))


# --- graph of producers, destinations and consumers -----------------------------------------


def graph(producers: Answer, consumers: Answer) -> str:
    """Return producers, destinations and consumers in columns; line width shows the messages."""
    weights: list[defaultdict[str, int]] = [defaultdict(int) for _ in range(3)]
    links: list[tuple[int, str, str, int]] = []
    for row in producers.rows:
        ends = _end(row["client"], "client"), _end(row["destination"], "destination")
        links.append((0, *ends, row["messages"]))
        weights[0][ends[0]] += row["messages"]
        weights[1][ends[1]] += row["messages"]
    for row in consumers.rows:
        ends = _end(row["destination"], "destination"), _end(row["client"], "client")
        links.append((1, *ends, row["deliveries"]))
        weights[1].setdefault(ends[0], 0)
        weights[2][ends[1]] += row["deliveries"]
    columns = [sorted(names, key=lambda name: (name.startswith("all other"), -of[name], name))
               for of in weights for names in [list(of)]]  # fmt: skip
    tallest = max(map(len, columns))
    places = {
        (side, name): (number + (tallest - len(column)) / 2)
        for side, column in enumerate(columns)
        for number, name in enumerate(column)
    }
    lengths = [max(len(clipped(name, _LABEL)) for name in column or [""]) for column in columns]
    beside = max(lengths[0], lengths[2]) * _CHARACTER + 16
    middle = lengths[1] * _CHARACTER / 2 + 12
    unit = max(330.0, middle + 150)
    most = max(count for *_, count in links)
    curves: list[dict[str, Any]] = []
    nodes: list[list[dict[str, Any]]] = [[], [], []]
    for number, (side, start, stop, count) in enumerate(links):
        from_y, to_y = places[side, start], places[side + 1, stop]
        for point in range(_CURVE + 1):
            part = point / _CURVE
            eased = part * part * (3 - 2 * part)
            curves.append(
                {
                    "link": number,
                    "x": _curve_x(side, part, middle / unit),
                    "y": from_y + (to_y - from_y) * eased,
                    "width": 1 + 9 * math.sqrt(count / most),
                    "side": "sent" if side == 0 else "delivered",
                }
            )
    for (side, name), place in places.items():
        weight = f"{weights[side][name]:,}"
        nodes[side].append({"x": side, "y": place, "name": clipped(name, _LABEL), "n": weight})
    domain = [-beside / unit, 2 + beside / unit]
    scales = {
        "x": _field("x", "quantitative", axis=None, scale={"domain": domain, "nice": False}),
        "y": _field("y", "quantitative", axis=None, scale={"domain": [tallest - 0.4, -0.6]}),
    }
    kinds = {"sent": "var(--c1)", "delivered": "var(--c3)"}
    encoding = {
        **scales,
        "detail": _field("link", "nominal"),
        "strokeWidth": _field("width", "quantitative", scale=None),
        "color": _colour("side", kinds, kinds, lines=True),
    }
    layers = [_chart(curves, "line", encoding, opacity=0.45, strokeCap="round")]
    for align, dx, column in zip(("right", "center", "left"), (-8, 0, 8), nodes, strict=True):
        marks = {"align": align, "dx": dx, "baseline": "middle"}
        names = {**scales, "text": _field("name", "nominal")}
        counts = {**scales, "text": _field("n", "nominal")}
        layers += [
            _chart(column, "text", names, fontSize=12, color="var(--ink)", dy=-6, **marks),
            _chart(column, "text", counts, fontSize=11, color="var(--muted)", dy=8, **marks),
        ]
    return _svg({"layer": layers}, round(2 * (unit + beside)), tallest * 34 + 10)


def _curve_x(side: int, part: float, room: float) -> float:
    """Return the x of a curve between two columns; it leaves room for the names in the middle."""
    start, stop = (0.0, 1 - room) if side == 0 else (1 + room, 2.0)
    return start + part * (stop - start)


def _end(name: str | None, kind: str) -> str:
    return f"all other {kind}s" if name is None else name
