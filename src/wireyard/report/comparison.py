"""The page of a comparison: what two brokers did differently, in one self-contained HTML file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wireyard.answers.evidence import RowPosition, find_evidence
from wireyard.answers.visibility import how_far
from wireyard.report.page import Dump, dump_of, environment, made
from wireyard.text import printable

if TYPE_CHECKING:
    from wireyard.answers import Tables

_MOST_SHOWN: Final = 100
_MOST_DUMPS: Final = 24
_BREAKS: Final = ("B", "A", "both", "neither")
_POSITIONS: Final = """
SELECT source, frame, min_by((stream, "offset"), "offset") AS place FROM (
  SELECT source, frame, stream, "offset", captured_ns FROM packets_mqtt
  UNION ALL SELECT source, frame, stream, "offset", captured_ns FROM packets_jmq
) WHERE captured_ns IS NOT NULL AND (source, frame) IN ({}) GROUP BY ALL
"""


@dataclass(frozen=True)
class Compared:
    """Two recordings, and what differs between them."""

    titles: Sequence[str]
    """Those of A and B."""
    sides: Sequence[Tables]
    rows: Sequence[Mapping[str, Any]]
    """The differences, with the columns of ``wireyard.shadow.Difference``."""
    noise: Counter[str] | None
    """How many of each class there are without a cause; None if that was not measured."""
    classes: Mapping[str, str]
    """The classes, and what each means."""


class _Side(NamedTuple):
    """What one side shows of a difference."""

    name: str
    text: str
    where: str
    command: str
    dump: Dump | None


def build_comparison(compared: Compared) -> str:
    """Return a comparison as a page of HTML."""
    rows = sorted(compared.rows, key=lambda row: _BREAKS.index(row["breaks"]))[:_MOST_SHOWN]
    counts = Counter((row["difference"], row["breaks"]) for row in compared.rows)
    dumps = [_dumps(side, letter, rows) for side, letter in zip(compared.sides, "ab", strict=False)]
    noise = compared.noise
    return (
        environment()
        .get_template("comparison.html.jinja")
        .render(
            titles=[printable(title) for title in compared.titles],
            unseen=[how_far(side) for side in compared.sides[:2]],
            breaks=_BREAKS,
            totals=Counter(row["breaks"] for row in compared.rows),
            kinds=dict.fromkeys([*(kind for kind, _ in counts), *(noise or ())]),
            counts=counts,
            noise=noise,
            classes=compared.classes,
            number=len(compared.rows),
            found=[
                (row, [_side(compared.sides[at], "ab"[at], row, dumps[at]) for at in (0, 1)])
                for row in rows
            ],
            made=made(),
            version=version("wireyard"),
        )
    )


def _side(
    tables: Tables, letter: str, row: Mapping[str, Any], dumps: Mapping[tuple[str, int], Dump]
) -> _Side:
    source, frame = row[f"{letter}_source"], row[f"{letter}_frame"]
    text = printable(row[letter])
    if source is None or frame is None:
        return _Side(letter.upper(), text, "", "", None)
    file, number = tables.frame_files.find(source, frame)
    command = f"wireyard inspect {shlex.quote(file)} --frame {number}"
    return _Side(letter.upper(), text, f"frame {number}", command, dumps.get((source, frame)))


def _dumps(
    tables: Tables, letter: str, rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, int], Dump]:
    """Return the bytes of the first frames of one side, by source and frame."""
    frames = [(row[f"{letter}_source"], row[f"{letter}_frame"]) for row in rows]
    wanted = {one: None for one in frames if None not in one}
    values = [value for one in [*wanted][:_MOST_DUMPS] for value in one]
    if not values:
        return {}
    marks = ", ".join(["(?, ?)"] * (len(values) // 2))
    found = tables.sql(_POSITIONS.format(marks), values).to_pylist()
    places: dict[RowPosition, tuple[str, int]] = {
        (row["source"], *row["place"].values()): (row["source"], row["frame"]) for row in found
    }
    evidence = find_evidence(places, tables.frame_files)
    return {places[position]: dump_of(one) for position, one in evidence.items()}
