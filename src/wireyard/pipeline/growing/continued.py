"""Inputs that have grown since the last run: each is continued from its state by a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from wireyard.errors import SourceError
from wireyard.formats import load_columns
from wireyard.lake.staging import Staging
from wireyard.lake.writer import Lake
from wireyard.pipeline.decoding.results import FailureResult, GoneResult
from wireyard.pipeline.decoding.task import FAILURES, BronzeSettings
from wireyard.pipeline.growing.grown import (
    GrownPart,
    StagedPart,
    has_grown,
    make_part_staging,
    open_growing,
    restored,
    states_of,
)
from wireyard.pipeline.growing.newest import by_protocol
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.inputs.finding import MISSING, FoundInput
from wireyard.pipeline.inputs.listing import is_missing
from wireyard.pipeline.running import Runner
from wireyard.pipeline.typed_json import from_json, to_json

__all__ = ["Continued", "continue_inputs", "grown_inputs"]


class Continued(NamedTuple):
    """An input that has grown."""

    path: str
    format: str | None
    files: tuple[str, ...]
    states: tuple[str, ...]
    """Files with its state in the lake; none to begin anew."""
    has_provisional: bool
    """Whether the lake has facts of its newest packets."""


class _Read(NamedTuple):
    """The result of a task."""

    part: StagedPart
    notes: list[str]


_Result = _Read | FailureResult | GoneResult
_RESULTS: Final = pa.schema([("result", pa.string())])
"""A `_Result` in JSON for each task."""


def grown_inputs(
    lake: Lake, new: Sequence[FoundInput], settings: GrowthSettings, most_bytes: int
) -> list[Continued]:
    """Return the inputs that have grown, and that a task reads from their states on.

    Parameters
    ----------
    most_bytes
        An input without a state is read part by part from now on if it has at most so many bytes;
        more of them are read by several tasks, as before it grew.
    """
    grown = []
    for each in new:
        if has_grown(lake, each):
            try:
                growing = open_growing(lake, each, settings)
            except SourceError:
                continue  # reading it as a whole reports the error
            few = not growing.replaces or growing.unread_bytes <= most_bytes
            if growing.has_begun and few:
                states, has_provisional = states_of(lake, each.path)
                own = each.path, each.format, each.files
                grown.append(Continued(*own, tuple(states), has_provisional))
            growing.close()
    return grown


def continue_inputs(
    runner: Runner,
    lake: Lake,
    grown: Sequence[Continued],
    settings: BronzeSettings,
    growth: GrowthSettings,
    first: int,
) -> tuple[list[StagedPart], list[str]]:
    """Stage the new parts of inputs; return them, and notes.

    Parameters
    ----------
    first
        Number of the first task, which no other task of the run has.

    Raises
    ------
    SourceError, LakeError, LedgerError
        As `fill_lake`.
    """
    if not grown:
        return [], []
    make_part_staging(lake)
    work = partial(_continue, settings=settings, growth=growth)
    parts, notes = list[StagedPart](), list[str]()
    for text in runner.run(list(enumerate(grown, first)), work, _RESULTS)["result"].to_pylist():
        result: _Result = from_json(text, _Result)
        if isinstance(result, FailureResult):
            raise FAILURES[result.error](result.message)
        if isinstance(result, GoneResult):
            notes.append(f"left out: {result.source}: {MISSING}")
            continue
        parts.append(result.part)
        notes += result.notes
    return parts, notes


def _continue(
    task: tuple[int, Continued], settings: BronzeSettings, growth: GrowthSettings
) -> Iterator[pa.RecordBatch]:
    """Stage the new part of an input; yield a row of `_RESULTS`."""
    number, found = task
    load_columns()
    try:
        result: _Result = _read(number, found, settings, growth)
    except tuple(FAILURES.values()) as error:
        failed = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
        result = FailureResult(failed, str(error))
        if settings.skip_missing and any(map(is_missing, found.files or (found.path,))):
            result = GoneResult(found.path)
    yield pa.RecordBatch.from_pylist([{"result": to_json(result, _Result)}], _RESULTS)


def _read(number: int, found: Continued, settings: BronzeSettings, growth: GrowthSettings) -> _Read:
    growing = restored(found, growth, found.states, found.has_provisional)
    try:
        part = GrownPart(Staging(settings.staging), growing, settings, number)
        notes = part.read(growing.unread_bytes, ends=True)
        growing.mark_facts_made(by_protocol(growing.now_ns))
        part.write_state()
        return _Read(part.staged(), notes)
    finally:
        growing.close()
