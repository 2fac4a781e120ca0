"""Charts of answers: Vega-Lite specifications, rendered to SVG when the page is made.

Colours are CSS variables of the page, so charts follow its light and dark modes. The data of a
chart is in the table beside it, so screen readers skip the chart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import altair as alt
import vl_convert as vlc

from wireyard.report.questions import Answer
from wireyard.report.text import bytes_text, clipped, count_text, span_text

__all__ = ["delays", "graph", "quantiles", "rates", "sessions", "sizes", "throughput"]

_WIDTH: Final = 520
_SERIES: Final = {
    "mqtt": "var(--c1)",
    "jmq": "var(--c2)",
    "jms": "var(--c2)",
    "gpacket": "var(--c3)",
    "rmp": "var(--c4)",
}
"""The colours of formats and protocols."""
_ENDINGS: Final = {
    "client": "var(--good)",
    "server": "var(--c3)",
    "dropped": "var(--bad)",
    "refused": "var(--warn)",
    "open": "var(--c1)",
    "unknown": "var(--muted)",
}
_NS_PER_MS: Final = 1_000_000
_DAY_NS: Final = 86_400 * 10**9
_CURVE: Final = 24
"""Segments of a curve."""
_FONT: Final = "system-ui, sans-serif"


def _svg(chart: Any) -> str:
    """Draw a chart."""
    axis = alt.AxisConfig(
        labelColor="var(--ink)", labelFontSize=12, titleColor="var(--muted)", titleFontSize=12,
        titleFontWeight="normal", gridColor="var(--line)", domainColor="var(--line)",
        tickColor="var(--line)", labelLimit=190,
    )  # fmt: skip
    legend = alt.LegendConfig(
        labelColor="var(--ink)",
        labelFontSize=12,
        orient="top",
        title=None,
        symbolType="square",
        symbolStrokeWidth=0,
        symbolOpacity=1,
    )
    styled = chart.configure(
        background="transparent", font=_FONT, axis=axis, legend=legend, padding=4,
        view=alt.ViewConfig(stroke=None),
    )  # fmt: skip
    text: str = vlc.vegalite_to_svg(styled.to_dict())
    # The figure around it has the name; screen readers skip the parts of the picture.
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def _data(rows: Iterable[Mapping[str, Any]]) -> Any:
    return alt.InlineData(values=[dict(row) for row in rows])


def _colour(
    field: str, colours: Mapping[str, str], there: Iterable[str], *, lines: bool = False
) -> Any:
    """Return the colour encoding of a field, with a legend if it has several values."""
    names = [name for name in colours if name in set(there)]
    scale = alt.Scale(domain=names, range=[colours[name] for name in names])
    symbol: dict[str, Any] = {"symbolType": "stroke", "symbolStrokeWidth": 4, "symbolSize": 200}
    legend = alt.Legend(**(symbol if lines else {})) if len(names) > 1 else None
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def _time_axis(field: str, span_ns: int) -> Any:
    """Return a time axis in UTC, formatted for the length of the span."""
    form = "%H:%M:%S" if span_ns < _DAY_NS else "%d %b %H:%M"
    return alt.X(
        f"{field}:T",
        title="UTC",
        scale=alt.Scale(type="utc"),
        axis=alt.Axis(tickCount=6, grid=False, format=form),
    )


# --- over time ------------------------------------------------------------------------------


def _filled(
    answer: Answer, series: str, names: Sequence[str], width_ns: int
) -> list[dict[str, Any]]:
    """Return a row for every interval of each series; zeros fill intervals without packets."""
    by_key = {(row["from_ns"], row[series]): row for row in answer.rows}
    times = range(answer.rows[0]["from_ns"], answer.rows[-1]["from_ns"] + 2 * width_ns, width_ns)
    filled = []
    for at in times:
        for name in names:
            row = by_key.get((at, name), {"packets": 0, "bytes": 0})
            filled.append({"at": at / _NS_PER_MS, series: name, **_rates(row, width_ns)})
    return filled


def _rates(row: Mapping[str, Any], width_ns: int) -> dict[str, float]:
    seconds = width_ns / 1e9
    return {"packets": row["packets"] / seconds, "bytes": row["bytes"] / seconds}


def rates(answer: Answer, width_ns: int, measure: str) -> str:
    """Return packets or bytes per second over time, stacked by format."""
    names = sorted({row["format"] for row in answer.rows})
    rows = _filled(answer, "format", names, width_ns)
    axis = alt.Axis(format="~s", tickCount=4)
    chart = (
        alt.Chart(_data(rows), width=_WIDTH, height=150)
        .mark_area(interpolate="step-after", opacity=0.75)
        .encode(
            x=_time_axis("at", answer.rows[-1]["from_ns"] - answer.rows[0]["from_ns"]),
            y=alt.Y(f"{measure}:Q", title=f"{measure} a second", stack=True, axis=axis),
            color=_colour("format", _SERIES, names),
        )
    )
    return _svg(chart)


def throughput(answer: Answer, width_ns: int) -> str:
    """Return messages sent and delivered per second, over time."""
    kinds = {"sent": "var(--c1)", "delivered": "var(--c3)"}
    by_time = {row["from_ns"]: row for row in answer.rows}
    times = range(answer.rows[0]["from_ns"], answer.rows[-1]["from_ns"] + 2 * width_ns, width_ns)
    rows = [
        {
            "at": at / _NS_PER_MS,
            "kind": kind,
            "rate": by_time.get(at, {}).get(kind, 0) / (width_ns / 1e9),
        }
        for at in times
        for kind in kinds
    ]
    chart = (
        alt.Chart(_data(rows), width=_WIDTH, height=150)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=_time_axis("at", answer.rows[-1]["from_ns"] - answer.rows[0]["from_ns"]),
            y=alt.Y("rate:Q", title="messages a second", axis=alt.Axis(format="~s", tickCount=4)),
            color=_colour("kind", kinds, kinds, lines=True),
        )
    )
    return _svg(chart)


def ages(answer: Answer, width_ns: int) -> str:
    """Return the age of the oldest waiting message over time, a line for each destination."""
    names = sorted({row["destination"] or "" for row in answer.rows})
    oldest = {(row["at_ns"], row["destination"] or ""): row["oldest_ns"] for row in answer.rows}
    first, last = answer.rows[0]["at_ns"], answer.rows[-1]["at_ns"]
    rows = [
        {
            "at": at / _NS_PER_MS,
            "destination": clipped(name, 30),
            "age": (oldest.get((at, name)) or 0) / 1e9,
        }
        for at in range(first - width_ns, last + 2 * width_ns, width_ns)
        for name in names
    ]
    shown = [clipped(name, 30) for name in names]
    series = {name: f"var(--c{number})" for number, name in enumerate(shown, 1)}
    chart = (
        alt.Chart(_data(rows), width=_WIDTH, height=150)
        .mark_line(strokeWidth=2)
        .encode(
            x=_time_axis("at", last - first + 2 * width_ns),
            y=alt.Y("age:Q", title="seconds", axis=alt.Axis(format="~s", tickCount=4)),
            color=_colour("destination", series, shown, lines=True),
        )
    )
    return _svg(chart)


def sessions(answer: Answer, first_ns: int, last_ns: int) -> str:
    """Return sessions as bars over time, in the order of opening."""
    rows: list[dict[str, Any]] = []
    ordered = sorted(
        answer.rows, key=lambda row: (row["opened_ns"] or first_ns, row["client"] or "")
    )
    for number, row in enumerate(ordered):
        start = row["opened_ns"] if row["opened_ns"] is not None else first_ns
        stop = row["closed_ns"] if row["closed_ns"] is not None else last_ns
        least = max((last_ns - first_ns) // 250, 1)
        rows.append(
            {
                "row": number,
                "client": clipped(row["client"] or row["endpoint"] or "unknown", 22),
                "from": start / _NS_PER_MS,
                "to": max(stop, start + least) / _NS_PER_MS,
                "ended": row["ended_by"] or "unknown",
            }
        )
    base = alt.Chart(_data(rows), width=2 * _WIDTH - 190, height=max(len(rows) * 20, 40))
    y = alt.Y("row:O", title=None, axis=None)
    bars = base.mark_bar(height=11, cornerRadius=3).encode(
        x=_time_axis("from", last_ns - first_ns),
        x2="to:T",
        y=y,
        color=_colour("ended", _ENDINGS, {r["ended"] for r in rows}),
    )
    texts = base.mark_text(align="right", dx=-8, fontSize=12, color="var(--ink)").encode(
        x=alt.value(0), y=y, text="client:N"
    )
    return _svg(bars + texts)


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
    axis = alt.Axis(values=list(labels), labelExpr=f"{{{texts}}}[datum.value]", grid=False)
    chart = (
        alt.Chart(_data(rows), width=_WIDTH, height=150)
        .mark_bar(opacity=0.85, binSpacing=1)
        .encode(
            x=alt.X("from:Q", bin="binned", title=title, axis=axis),
            x2="to:Q",
            y=alt.Y("n:Q", title=measure, stack=True, axis=alt.Axis(format="~s", tickCount=4)),
            color=_colour("protocol", _SERIES, names),
        )
    )
    return _svg(chart)


def quantiles(answer: Answer) -> str:
    """Return the median, 90th and 99th percentile for each destination, the slowest first."""
    rows = []
    for row in answer.rows:
        for name in ("p50", "p90", "p99"):
            rows.append(
                {
                    "destination": clipped(row["destination"] or "unknown", 30),
                    "quantile": name,
                    "ms": max(row[f"{name}_ns"], 1) / _NS_PER_MS,
                    "p99": row["p99_ns"] / _NS_PER_MS,
                }
            )
    colours = {"p50": "var(--good)", "p90": "var(--c3)", "p99": "var(--bad)"}
    order = alt.EncodingSortField(field="p99", op="max", order="descending")
    y = alt.Y("destination:N", sort=order, title=None)
    scale = alt.Scale(type="log", nice=False)
    powers = {round(math.log10(row["ms"]) - 0.5) for row in rows}
    ticks = [10.0**power for power in range(min(powers), max(powers) + 2)]
    texts = ", ".join(f"'{tick:g}': '{span_text(tick * _NS_PER_MS)}'" for tick in ticks)
    axis = alt.Axis(values=ticks, labelExpr=f"{{{texts}}}[format(datum.value, '~g')]")
    x = alt.X("ms:Q", scale=scale, title="from sent to delivered", axis=axis)
    base = alt.Chart(_data(rows), width=_WIDTH - 130, height=max(len(answer.rows) * 22, 44))
    lines = base.mark_line(color="var(--line)", strokeWidth=3).encode(
        x=x, y=y, detail="destination:N"
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x, y=y, color=_colour("quantile", colours, colours)
    )
    return _svg(lines + points)


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
                    "x": _curve_x(side, part),
                    "y": from_y + (to_y - from_y) * eased,
                    "width": 1 + 9 * math.sqrt(count / most),
                    "side": "sent" if side == 0 else "delivered",
                }
            )
    for (side, name), place in places.items():
        weight = count_text(weights[side][name])
        nodes[side].append({"x": side, "y": place, "name": clipped(name, 22), "n": weight})
    scales = {
        "x": alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.55, 2.55])),
        "y": alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[tallest - 0.4, -0.6])),
    }
    size: dict[str, Any] = {"width": 2 * _WIDTH, "height": tallest * 34 + 10}
    kinds = {"sent": "var(--c1)", "delivered": "var(--c3)"}
    lines = (
        alt.Chart(_data(curves), **size)
        .mark_line(opacity=0.45, strokeCap="round")
        .encode(
            **scales,
            detail="link:N",
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
            color=_colour("side", kinds, kinds, lines=True),
        )
    )
    layers = [lines]
    for align, dx, column in zip(("right", "center", "left"), (-8, 0, 8), nodes, strict=True):
        base = alt.Chart(_data(column), **size)
        marks: dict[str, Any] = {"align": align, "dx": dx, "baseline": "middle"}
        names = base.mark_text(fontSize=12, color="var(--ink)", dy=-6, **marks)
        counts = base.mark_text(fontSize=11, color="var(--muted)", dy=8, **marks)
        layers += [names.encode(**scales, text="name:N"), counts.encode(**scales, text="n:N")]
    return _svg(alt.layer(*layers))


def _curve_x(side: int, part: float) -> float:
    """Return the x of a curve between two columns; it leaves room for the names in the middle."""
    start, stop = (0.0, 0.74) if side == 0 else (1.26, 2.0)
    return start + part * (stop - start)


def _end(name: str | None, kind: str) -> str:
    return f"all other {kind}s" if name is None else name
