"""Parts of growing inputs: a part is a task, from the state of its input to the next state.

A task restores the states of some inputs, reads their new bytes, and stages final rows, provisional
rows (as if the inputs ended there), facts of the newest packets, and the states for the next parts.
So any process can read any part, and those of all growing inputs are read as tasks of one stage, as
many as run at once. The parts of a task share its files, and the facts of their newest packets are
derived together: most of the cost of a small part does not depend on its size.

A part replaces the rows of its input in provisional files (`OPEN_PREFIX`), except for facts that it
does not make anew.

The state of an input is in the lake: it shows from where the next part continues.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from wireyard.captures.live.state import StateError
from wireyard.errors import LakeDamaged
from wireyard.lake.ledgers import LedgerSum
from wireyard.lake.writer import Input, Lake
from wireyard.layers import newest
from wireyard.layers.tables import all_tables
from wireyard.pipeline.growing.input import FACTS, read_state
from wireyard.pipeline.growing.sessions import ALL_PREFIX
from wireyard.pipeline.growing.sources import has_begun
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.pipeline.replacing import OPEN_STATES, Draft, is_provisional


class FactsMade(NamedTuple):
    """How far the facts of all packets of an input are made."""

    position: int
    """Bytes of the input that they follow from."""
    seconds: float
    """How long that took."""
    until_ns: Mapping[str, int]
    """By protocol: the rows of messages sent up to this time stay until they are made again; empty
    for a bare stream."""


NONE_MADE: Final = FactsMade(-1, 0.0, {})
_FEWEST_NEWEST: Final = 1 << 10
"""Of each input at least so many of the newest packets are kept, however many inputs grow."""


class Part(NamedTuple):
    """The next part of an input: the task that reads it."""

    path: str
    format: str | None
    files: tuple[str, ...]
    states: tuple[str, ...]
    """Files with the state of the input; none to begin anew."""
    stop: int = sys.maxsize
    """Byte of the input up to which it is read."""
    ends: bool = True
    """Whether to write the rest as if the input had ended, if all of it was read."""
    facts: FactsMade = NONE_MADE
    makes_facts: bool = True
    """Whether facts of all packets are made as of this part."""
    facts_come: bool = True
    """Whether these are committed with it, and not made in the background."""
    unread_bytes: int = 0
    """About how many bytes it has."""
    most_newest: int = newest.MAX_NEWEST
    """The most of the newest packets of a protocol that are kept."""
    open_sessions: tuple[str, ...] = ()
    """Files with the sessions that are open in the lake."""
    closed_sessions: tuple[str, ...] = ()
    """Files with those that are closed, unless the state has them."""


class StagedPart(NamedTuple):
    """A part that is read and staged, for the commit."""

    source: str
    format: str | None
    is_whole: bool
    """Whether it begins at the beginning, and replaces all that the lake has of the input."""
    stamp: str
    """The stamp of the input, in JSON."""
    ledger: dict[str, LedgerSum]
    """By format, that of the input as far as it was read."""
    files: dict[str, list[str]]
    """The staged files, by table."""
    position: int
    """Bytes of the input that were read."""
    unread_bytes: int
    ended: bool
    """Whether its rows are written as if the input had ended."""
    now_ns: int | None
    """Time of its last packet; None for a bare stream."""
    facts: FactsMade
    has_newest: bool
    """Whether it has facts of the newest packets, which replace those of the part before."""
    producers: tuple[str, ...]
    """The producers of JMS messages among these."""
    notes: tuple[str, ...]

    def replaces(self, table: str, name: str) -> bool:
        """Return whether this part replaces a file of the input in the lake."""
        has_newer = table not in all_tables() or self.has_newest
        return is_provisional(name) and has_newer


def provisional_facts(files: Mapping[str, Iterable[str]]) -> set[str]:
    """Return an input's provisional files with facts of its newest packets.

    There is at least one if its last part has such facts. `files` are all files of the input, by
    table.
    """
    facts = {
        name for table in all_tables() for name in files.get(table, ()) if is_provisional(name)
    }
    return {name for name in facts if not name.rpartition("/")[2].startswith(ALL_PREFIX)}


_OLD_NS: Final = 24 * 60 * 60 * 1_000_000_000
"""After this time without a change an input's state is dropped: if it grows, it is read again."""


def can_grow(found: FoundInput) -> bool:
    """Return whether an input can be read part by part."""
    whole = found.compressed or found.stored or (not found.files and found.format is None)
    return not whole and "://" not in found.path


def has_grown(lake: Lake, found: FoundInput) -> bool:
    """Return whether an input has grown since the lake read it, and can be read part by part."""
    held = lake.inputs.get(found.path)
    if held is None or not can_grow(found) or held.format != found.format:
        return False
    now, before = _sizes(found.stamp), _sizes(held.stamp)
    if now is None:
        return False
    if held.files.get(OPEN_STATES):
        return True
    if before is None or not all(now.get(file, -1) >= size for file, size in before.items()):
        return False
    return sum(now.values()) > sum(before.values())


def _sizes(stamp: Mapping[str, Any]) -> dict[Any, int] | None:
    """Return the sizes of an input's files; None if its files are identified by content."""
    files = stamp.get("files", [stamp])
    if not all("file" in each and "content_sha256" not in each for each in files):
        return None
    return {tuple(each["file"]): each["size"] for each in files}


def grown_parts(lake: Lake, new: Sequence[FoundInput], most_bytes: int) -> list[Part]:
    """Return the parts of inputs that have grown, and that a task reads from their states on.

    An input without a state is read part by part from now on if it has at most `most_bytes`; more
    of them are read by several tasks, as before it grew.
    """
    parts = []
    for each in new:
        if has_grown(lake, each) and has_begun(each.path, each.files):
            states = states_of(lake, each.path)
            part = Part(each.path, each.format, each.files, states)
            read = read_progress(part)
            unread = each.size - (read[0] if read is not None else 0)
            if read is not None or unread <= most_bytes:
                parts.append(part._replace(unread_bytes=max(unread, 0)))
    most = most_of_each(len(parts))
    return [part._replace(most_newest=most) for part in parts]


def most_of_each(inputs: int) -> int:
    """Return the most of the newest packets to keep of each of several inputs."""
    return max(newest.MAX_NEWEST // max(inputs, 1), min(newest.MAX_NEWEST, _FEWEST_NEWEST))


def states_of(lake: Lake, source: str) -> tuple[str, ...]:
    """Return the files with the state of an input that are not damaged."""
    held, paths = lake.inputs.get(source), list[str]()
    for name in held.files.get(OPEN_STATES, ()) if held else ():
        with suppress(LakeDamaged):
            lake.check_file(OPEN_STATES, name)
            paths.append(lake.path(OPEN_STATES, name))
    return tuple(paths)


def read_progress(
    part: Part, *, has_provisional: bool = False, in_progress: bool = False
) -> tuple[int, FactsMade] | None:
    """Return how far an input was read, by its state, and which facts of it the lake has.

    None if there is no state, or it is damaged. `has_provisional` is whether the lake has
    provisional files of facts of it, and `in_progress` whether this process is making the facts
    that were missing when the state was taken.
    """
    for path in part.states:
        with suppress(StateError, KeyError, TypeError, ValueError, AttributeError):
            made = json.loads(read_state(path, part.path).others[FACTS])
            read, position, seconds = (
                int(made["read"]),
                int(made["position"]),
                float(made["seconds"]),
            )
            until_ns = {str(name): int(ns) for name, ns in made["until_ns"].items()}
            is_same = bool(made["has_open"]) == has_provisional
            are_there = bool(made["are_made"]) or in_progress
            is_valid = read >= position >= -1 and 0 <= seconds < math.inf
            if not is_valid:
                continue
            facts = FactsMade(position, seconds, until_ns)
            return read, facts if is_same and are_there else NONE_MADE
    return None


def add_parts(draft: Draft, parts: Sequence[StagedPart], kept: Collection[str] = ()) -> None:
    """Add parts to the inputs that there are, without the files that the parts replace.

    Provisional files in `kept` stay: their replacement is made in the background.
    """
    draft.unlist(
        {
            part.source: {
                table: {name for name in names if part.replaces(table, name)}.difference(kept)
                for table, names in draft.inputs[part.source].files.items()
            }
            for part in parts
            if part.source in draft.inputs
        }
    )
    for part in parts:
        held = draft.inputs.get(part.source)
        files = held.files if held is not None else {}
        own = part.source, part.format, json.loads(part.stamp), part.ledger
        draft.put(Input(*own, files), part.files)


def drop_old_states(draft: Draft) -> None:
    """Drop the states of inputs that have not changed for a day."""
    before_ns = time.time_ns() - _OLD_NS
    draft.unlist(
        {
            source: {OPEN_STATES: names}
            for source, held in draft.lake.inputs.items()
            if draft.inputs.get(source) is held
            and held.stamp.get("modified_ns", before_ns) < before_ns
            and (names := held.files.get(OPEN_STATES))
        }
    )
