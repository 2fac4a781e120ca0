"""Charts of answers, drawn to SVG when the page is made.

Colours are CSS variables of the page, so charts follow its light and dark modes. The data of a
chart is in the table beside it, so screen readers skip the chart. Names come from the wire: all
text is escaped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from wireyard.report.questions import WIDTHS_NS, Answer
from wireyard.text import bytes_text, clipped, moment, span_text

_WIDTH: Final = 520
_HEIGHT: Final = 150
_LABEL: Final = 60
"""Characters of a name in a chart; the table beside it has all."""
_CHARACTER: Final = 7.2
"""Width of a character of a name."""
_ROW: Final = 18
"""Height of a line of text."""
_SERIES: Final = {
    "mqtt": "var(--c1)",
    "jmq": "var(--c2)",
    "jms": "var(--c2)",
    "gpacket": "var(--c3)",
    "rmp": "var(--c4)",
}
"""The colours of formats and protocols."""
_DAY_NS: Final = 86_400 * 10**9
_SECOND_NS: Final = 10**9
_TICKS: Final = 5

Point = tuple[float, float]


# --- parts of a picture ---------------------------------------------------------------------


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    """Return a picture; the figure around it has its name."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    look = 'font-family="system-ui, sans-serif" font-size="12" fill="var(--ink)"'
    return f'<svg aria-hidden="true" focusable="false" {size} {look}>{"".join(parts)}</svg>'


def _moved(x: float, y: float, parts: Iterable[str]) -> str:
    return f'<g transform="translate({x:.1f} {y:.1f})">{"".join(parts)}</g>'


def _text(at: Point, text: str, anchor: str = "middle", colour: str = "var(--ink)") -> str:
    place = f'x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def _rectangle(start: Point, stop: Point, colour: str, opacity: float = 1) -> str:
    (x, y), (to_x, to_y) = start, stop
    size = f'width="{max(to_x - x, 0):.1f}" height="{max(to_y - y, 0):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" opacity="{opacity}"/>'


def _line(points: Iterable[Point], colour: str, width: float = 2) -> str:
    way = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<path fill="none" stroke="{colour}" stroke-width="{width}" d="M{way}"/>'


def _area(points: Iterable[Point], colour: str) -> str:
    way = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<path fill="{colour}" opacity="0.75" d="M{way}Z"/>'


def _legend(colours: Mapping[str, str], width: float) -> tuple[list[str], int]:
    """Return the legend of several series, in lines of a width, and its height."""
    if len(colours) < 2:
        return [], 0
    parts: list[str] = []
    x, y = 0.0, 0
    for name, colour in colours.items():
        needed = 28 + len(name) * _CHARACTER
        if x and x + needed > width:
            x, y = 0.0, y + _ROW
        parts += [
            _rectangle((x, y + 2), (x + 11, y + 13), colour),
            _text((x + 16, y + 12), name, "start"),
        ]
        x += needed
    return parts, y + _ROW + 6


# --- axes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """The values along one side of a plot, from `low` to `high`, and the texts at some of them."""

    low: float
    high: float
    texts: Mapping[float, str]
    title: str = ""

    def part(self, value: float) -> float:
        """Return where a value is, from 0 to 1."""
        return (value - self.low) / ((self.high - self.low) or 1)


def _counts(most: float, title: str, ticks: int = 4, least: float = 0.0) -> _Axis:
    """Return an axis from 0 to a count or a rate; `least` is the smallest step of its texts."""
    most = most or 1.0
    rough = max(most / ticks, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * many for many in (1, 2, 5, 10) if power * many >= rough * 0.999)
    steps = max(math.ceil(most / step - 1e-9), 1)
    texts = {number * step: f"{number * step:,.9g}" for number in range(steps + 1)}
    return _Axis(0, steps * step, texts, title)


def _times(first_ns: int, last_ns: int) -> _Axis:
    """Return a time axis in UTC; its texts have the digits that its steps need."""
    span = last_ns - first_ns
    fitting = (width for width in WIDTHS_NS if span < width * (_TICKS + 1))
    step = next(fitting, span // _TICKS)
    texts: dict[float, str] = {}
    for at in range(-(-first_ns // step) * step, last_ns + 1, step):
        day, _, clock = moment(at, 3 if step < _SECOND_NS else 0).partition("T")
        clock = clock.removesuffix("Z").removesuffix(".")
        texts[at] = clock if span < _DAY_NS else f"{day[5:]} {clock[:5]}"
    return _Axis(first_ns, last_ns, texts, "UTC")


class _Plot:
    """A rectangle with two axes, inside of which marks are drawn."""

    def __init__(
        self, x: _Axis, y: _Axis, width: float = _WIDTH, height: float = _HEIGHT, left: float = 0
    ) -> None:
        self._x, self._y, self._width, self._height = x, y, width, height
        widest = max((len(text) for text in y.texts.values()), default=0)
        self.left = max(left, widest * _CHARACTER + 10)
        """Room for the texts of the y axis."""

    def at(self, x: float, y: float) -> Point:
        """Return the place of two values."""
        return self._x.part(x) * self._width, (1 - self._y.part(y)) * self._height

    def stepped(self, values: Iterable[tuple[float, float, float]]) -> list[Point]:
        """Return the points of a line with a step for each value: from, to, and value."""
        return [self.at(x, value) for start, stop, value in values for x in (start, stop)]

    def drawn(self, marks: Iterable[str], colours: Mapping[str, str]) -> tuple[str, float, float]:
        """Return the axes with marks, below a legend; and the width and height of all."""
        legend, above = _legend(colours, self._width)
        muted, floor = "var(--muted)", self._height
        parts: list[str] = []
        for value, text in self._y.texts.items():
            _, y = self.at(self._x.low, value)
            parts += [
                _line([(0, y), (self._width, y)], "var(--line)", 1),
                _text((-8, y + 4), text, "end"),
            ]
        parts += marks
        for value, text in self._x.texts.items():
            x, _ = self.at(value, self._y.low)
            parts += [_line([(x, floor), (x, floor + 5)], "var(--line)", 1)]
            parts += [_text((x, floor + _ROW), text)]
        parts.append(_text((self._width / 2, floor + 2 * _ROW), self._x.title, colour=muted))
        if self._y.title:
            above += _ROW + 4
            parts.append(_text((-self.left, -12), self._y.title, "start", muted))
        below = 2 * _ROW + 6 if self._x.title else _ROW + 6 if self._x.texts else 6
        inside = [_moved(self.left, 2, legend), _moved(self.left, above + 4, parts)]
        return "".join(inside), self.left + self._width + 30, above + floor + below


# --- over time ------------------------------------------------------------------------------


def _steps(answer: Answer, width_ns: int) -> range:
    """Return the beginnings of all intervals, with those in which nothing was."""
    return range(answer.rows[0]["from_ns"], answer.rows[-1]["from_ns"] + 1, width_ns)


def rates(answer: Answer, width_ns: int, measure: str) -> str:
    """Return packets or bytes per second over time, stacked by format."""
    found = {(row["from_ns"], row["format"]): row[measure] for row in answer.rows}
    there = {row["format"] for row in answer.rows}
    colours = {name: colour for name, colour in _SERIES.items() if name in there}
    steps = _steps(answer, width_ns)
    below = dict.fromkeys(steps, 0.0)
    layers = []
    for name, colour in colours.items():
        above = {at: below[at] + found.get((at, name), 0) * 1e9 / width_ns for at in steps}
        layers.append((below, above, colour))
        below = above
    x = _times(steps[0], steps[-1] + width_ns)
    plot = _Plot(x, _counts(max(below.values()), f"{measure} a second"))

    def edge(heights: Mapping[int, float]) -> list[Point]:
        return plot.stepped((at, at + width_ns, height) for at, height in heights.items())

    marks = [_area([*edge(above), *edge(low)[::-1]], colour) for low, above, colour in layers]
    body, width, height = plot.drawn(marks, colours)
    return _svg(width, height, [body])


def timeline(answer: Answer, width_ns: int, *, wide: bool) -> str:
    """Return messages sent and delivered a second over time, above deliveries that failed."""
    colours = {"sent": "var(--c1)", "delivered": "var(--c2)"}
    rows = {row["from_ns"]: row for row in answer.rows}
    steps = _steps(answer, width_ns)
    width = 2 * _WIDTH if wide else _WIDTH - 160
    x = _times(steps[0], steps[-1] + width_ns)
    counts = {kind: {at: rows[at][kind] if at in rows else 0 for at in steps} for kind in colours}
    most = max(max(of.values()) for of in counts.values())
    rate, failed = (
        _counts(most * 1e9 / width_ns, "a second"),
        _counts(max(row["failed"] for row in answer.rows), "failed", 2, 1),
    )
    left = max(_Plot(x, axis).left for axis in (rate, failed))
    above = _Plot(_Axis(x.low, x.high, {}), rate, width, 96, left)
    marks = []
    for kind, colour in colours.items():
        steps_of = ((at, at + width_ns, n * 1e9 / width_ns) for at, n in counts[kind].items())
        marks.append(_line(above.stepped(steps_of), colour))
    below = _Plot(x, failed, width, 40, left)
    bars = [
        _rectangle(below.at(at, row["failed"]), below.at(at + width_ns, 0), "var(--bad)")
        for at, row in rows.items()
        if row["failed"]
    ]
    upper, total, height = above.drawn(marks, colours)
    lower, _, more = below.drawn(bars, {})
    return _svg(total, height + more, [upper, _moved(0, height, [lower])])


def ages(answer: Answer, width_ns: int, end_ns: int) -> str:
    """Return the age of the oldest waiting message over time, a line for each destination.

    `end_ns` is the end of the captures, behind which nothing is known.
    """
    names = sorted({row["destination"] or "" for row in answer.rows})
    oldest = {(row["at_ns"], row["destination"] or ""): row["oldest_ns"] for row in answer.rows}
    first, last = answer.rows[0]["at_ns"], answer.rows[-1]["at_ns"]
    steps = range(first - width_ns, min(last + width_ns, end_ns) + 1, width_ns)
    colours = {name: f"var(--c{number})" for number, name in enumerate(names, 1)}
    most = max((age or 0 for age in oldest.values()), default=0) / 1e9
    plot = _Plot(_times(steps[0], steps[-1]), _counts(most, "seconds"))
    marks = [
        _line([plot.at(at, (oldest.get((at, name)) or 0) / 1e9) for at in steps], colour)
        for name, colour in colours.items()
    ]
    shown = {clipped(name, _LABEL): colour for name, colour in colours.items()}
    body, width, height = plot.drawn(marks, shown)
    return _svg(width, height, [body])


# --- distributions --------------------------------------------------------------------------


def sizes(answer: Answer) -> str:
    """Return a histogram of body sizes, by powers of two."""
    low = min(row["power"] for row in answer.rows)
    high = max(row["power"] for row in answer.rows) + 1
    step = max(math.ceil((high - low) / 8), 1)
    texts: dict[float, str] = {at: bytes_text(2**at) for at in range(low, high + 1, step)}
    return _histogram(answer, "power", "messages", _Axis(low, high, texts, "bytes of payload"))


def delays(answer: Answer) -> str:
    """Return a histogram of delivery delays, by fifths of powers of ten."""
    low = min(row["step"] for row in answer.rows)
    high = max(row["step"] for row in answer.rows) + 1
    texts: dict[float, str] = {
        at: span_text(10 ** (at / 5)) for at in range(-(-low // 5) * 5, high + 1, 5)
    }
    x = _Axis(low, high, texts, "from sent to delivered")
    return _histogram(answer, "step", "deliveries", x)


def _histogram(answer: Answer, place: str, measure: str, x: _Axis) -> str:
    """Return bars of the width 1, stacked by protocol."""
    there = {row["protocol"] for row in answer.rows}
    colours = {name: colour for name, colour in _SERIES.items() if name in there}
    total: Counter[int] = Counter()
    for row in answer.rows:
        total[row[place]] += row[measure]
    plot = _Plot(x, _counts(max(total.values()), measure, least=1))
    below: Counter[int] = Counter()
    marks = []
    for row in sorted(answer.rows, key=lambda row: [*colours].index(row["protocol"])):
        at, base = row[place], below[row[place]]
        below[at] = top = base + row[measure]
        (left, high), (right, low) = plot.at(at, top), plot.at(at + 1, base)
        colour = colours[row["protocol"]]
        marks.append(_rectangle((left + 0.5, high), (right - 0.5, low), colour, 0.85))
    body, width, height = plot.drawn(marks, colours)
    return _svg(width, height, [body])


def quantiles(answer: Answer) -> str:
    """Return the median, 90th and 99th percentile for each destination, the slowest first."""
    colours = {"p50": "var(--good)", "p90": "var(--c3)", "p99": "var(--bad)"}
    rows = sorted(answer.rows, key=lambda row: -row["p99_ns"])
    logs = [{name: math.log10(max(row[f"{name}_ns"], 1)) for name in colours} for row in rows]
    low = math.floor(min(min(each.values()) for each in logs))
    high = max(*(max(each.values()) for each in logs), low + 1)
    ticks: dict[float, str] = {
        power: span_text(10.0**power) for power in range(low, math.floor(high) + 1)
    }
    names = [clipped(row["destination"] or "unknown", _LABEL) for row in rows]
    last = len(rows)
    y = _Axis(0, last, {last - number - 0.5: name for number, name in enumerate(names)})
    x = _Axis(low, high, ticks, "from sent to delivered")
    plot = _Plot(x, y, _WIDTH - 130, max(last * 22, 44))
    marks = []
    for number, each in enumerate(logs):
        ends = [plot.at(value, last - number - 0.5) for value in each.values()]
        marks.append(_line(ends, "var(--line)", 3))
        marks += [
            f'<circle cx="{at:.1f}" cy="{line:.1f}" r="4.5" fill="{colour}"/>'
            for (at, line), colour in zip(ends, colours.values(), strict=True)
        ]
    body, width, height = plot.drawn(marks, colours)
    return _svg(width, height, [body])


# --- graph of producers, destinations and consumers -----------------------------------------


def graph(producers: Answer, consumers: Answer) -> str:
    """Return producers, destinations and consumers in columns; line width shows the messages."""
    weights: list[Counter[str]] = [Counter(), Counter(), Counter()]
    links: list[tuple[int, str, str, int]] = []
    for row in producers.rows:
        ends = _end(row["client"], "client"), _end(row["destination"], "destination")
        links.append((0, *ends, row["messages"]))
        weights[0][ends[0]] += row["messages"]
        weights[1][ends[1]] += row["messages"]
    for row in consumers.rows:
        ends = _end(row["destination"], "destination"), _end(row["client"], "client")
        links.append((1, *ends, row["deliveries"]))
        weights[1][ends[0]] += 0
        weights[2][ends[1]] += row["deliveries"]
    columns = [sorted(names, key=lambda name: (name.startswith("all other"), -of[name], name))
               for of in weights for names in [list(of)]]  # fmt: skip
    tallest = max(map(len, columns))
    lengths = [max(len(clipped(name, _LABEL)) for name in column or [""]) for column in columns]
    left, right = (lengths[side] * _CHARACTER + 16 for side in (0, 2))
    middle = lengths[1] * _CHARACTER / 2 + 12
    unit = max(330.0, middle + 150)
    xs = (left, left + unit, left + 2 * unit)
    places = {
        (side, name): 16 + 34 * (number + (tallest - len(column)) / 2)
        for side, column in enumerate(columns)
        for number, name in enumerate(column)
    }
    colours = {"sent": "var(--c1)", "delivered": "var(--c3)"}
    legend, above = _legend(colours, 2 * unit)
    most = max(count for *_, count in links)
    parts: list[str] = []
    for side, start, stop, count in links:
        from_x, to_x = (xs[0], xs[1] - middle) if side == 0 else (xs[1] + middle, xs[2])
        from_y, to_y = places[side, start], places[side + 1, stop]
        half = (from_x + to_x) / 2
        way = f"M{from_x:.1f},{from_y:.1f}C{half:.1f},{from_y:.1f} {half:.1f},{to_y:.1f}"
        colour = [*colours.values()][side]
        look = f'stroke="{colour}" stroke-width="{1 + 9 * math.sqrt(count / most):.1f}"'
        parts.append(f'<path fill="none" opacity="0.45" {look} d="{way} {to_x:.1f},{to_y:.1f}"/>')
    for (side, name), y in places.items():
        anchor, away = (("end", -8), ("middle", 0), ("start", 8))[side]
        at = xs[side] + away
        parts += [
            _text((at, y - 2), clipped(name, _LABEL), anchor),
            _text((at, y + 12), f"{weights[side][name]:,}", anchor, "var(--muted)"),
        ]
    inside = [_moved(left, 2, legend), _moved(0, above, parts)]
    return _svg(left + 2 * unit + right, above + 34 * tallest + 10, inside)


def _end(name: str | None, kind: str) -> str:
    return f"all other {kind}s" if name is None else name
