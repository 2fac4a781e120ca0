"""Growing inputs of a lake: which there are, and the commits of their parts.

The parts of a turn are tasks of one stage (`read_parts`). This process has of an input its files'
sizes and how far its facts are made; everything else is in its state in the lake.

The facts of an input (messages, deliveries, sessions and so on) follow from all of its packets, so
those of a growing input are made again from time to time, and when it stands still. That takes at
most half of the time while one pass takes up to `_SHORT_S`, and a tenth of it if it takes longer.
Those of many packets are made in the background, while parts are committed (`AllFacts`); otherwise
commits wait. Parts in between have facts of the newest packets only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from wireyard.lake.writer import Lake
from wireyard.layers.tables import fact_table
from wireyard.pipeline.decoding.task import BronzeSettings
from wireyard.pipeline.facts.stage import related_to
from wireyard.pipeline.growing.all_facts import AllFacts
from wireyard.pipeline.growing.newest import JMS, by_protocol, take_long
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.growing.sessions import SESSIONS
from wireyard.pipeline.growing.sources import has_begun, is_rotated
from wireyard.pipeline.growing.states import (
    FactsMade,
    Part,
    StagedPart,
    add_parts,
    can_grow,
    most_of_each,
    provisional_facts,
    read_progress,
    states_of,
)
from wireyard.pipeline.growing.tasks import read_parts
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.pipeline.job import add_facts, commit_draft
from wireyard.pipeline.replacing import OPEN_STATES, Draft, compact, is_provisional
from wireyard.pipeline.running import Runner, StartCluster

_SHORT_S: Final = 2.0
"""Time for which commits may wait for facts: rows are then under five seconds old in all."""
_PAUSES_AFTER_SHORT: Final = 1.0
_PAUSES_AFTER_LONG: Final = 9.0
"""Pause between two passes that make all facts, in durations of a pass."""


@dataclass(slots=True)
class _Open:
    """An input that is read part by part."""

    part: Part
    """Its next part."""
    position: int
    """Bytes of it that are in the lake."""
    unread_bytes: int
    """Bytes that were there besides, at the last look."""
    size: int
    """Size of its files at the last look."""
    now_ns: int | None = None
    """Time of its last packet that was read; None if not known."""
    facts_at_s: float = 0.0
    """When its facts were made, by the monotonic clock."""
    has_newest_rows: bool = False
    """Whether the lake has provisional files of facts of it."""
    was_read: bool = False
    """Whether this process has read a part of it."""
    has_closed: bool = False
    """Whether its state has all sessions that are closed in the lake."""
    shares: bool | None = None
    """Whether other inputs show the same JMS messages; None if not known."""

    @property
    def source(self) -> str:
        """Its name in the lake."""
        return self.part.path

    @property
    def facts(self) -> FactsMade:
        """How far its facts are made."""
        return self.part.facts

    @property
    def expected_s(self) -> float:
        """The time that making all facts will take, which grows with the input."""
        return self.facts.seconds * self.position / max(self.facts.position, 1)

    def set_facts(self, facts: FactsMade) -> None:
        """Set how far its facts are made."""
        self.part = self.part._replace(facts=facts)


class Growth:
    """The growing inputs of a lake that one process follows; settings are those of `fill_lake`."""

    def __init__(
        self,
        lake: Lake,
        start_cluster: StartCluster | None,
        *,
        secrets: bool = False,
        max_packet_bytes: int | None = None,
        decode_as: tuple[str, ...] = (),
        keylog: tuple[str, ...] = (),
        payload: tuple[str, ...] = (),
    ) -> None:
        self._lake, self._start_cluster = lake, start_cluster
        self._runner = Runner(start_cluster, lake)
        self._secrets, self._max_packet_bytes = secrets, max_packet_bytes
        self._payload = payload
        self._settings = GrowthSettings(decode_as, keylog, max_packet_bytes)
        self._inputs: dict[str, _Open] = {}
        self._claims: dict[str, str] = {}
        """Producers of JMS messages, and the input whose parts have rows of their messages."""
        self._all_facts: AllFacts | None = None
        """The facts that are being made in the background."""

    # --- inputs -------------------------------------------------------------------------------

    def has_state(self, path: str) -> bool:
        """Return whether an input is open, or an earlier process left its state in the lake."""
        held = self._lake.record.inputs.get(path)
        return path in self._inputs or (held is not None and bool(held.files.get(OPEN_STATES)))

    def is_open(self, path: str) -> bool:
        """Return whether an input is open."""
        return path in self._inputs

    def refresh(self, path: str, paths: Iterable[str]) -> bool:
        """Update the files of an open input; return whether it can be continued."""
        each, files = self._inputs[path], tuple(paths)
        size = _size_of(files)
        if is_rotated(path, files):
            each.part = each.part._replace(files=files)
        elif 0 < size < each.position:
            self.close_input(path)  # another file has taken its name
            return False
        each.unread_bytes += max(size - each.size, 0)
        each.size = size
        return True

    def unread_bytes(self, path: str) -> int:
        """Return about how many bytes of an open input were unread at the last `refresh`."""
        return self._inputs[path].unread_bytes

    def open_input(self, found: FoundInput) -> bool:
        """Prepare to read an input part by part; return whether that is possible.

        It continues from its state in the lake if it is still the same file.
        """
        if not (can_grow(found) and has_begun(found.path, found.files)):
            return False
        self.close_input(found.path)
        part = Part(found.path, found.format, found.files, states_of(self._lake, found.path))
        has_provisional = self._provisional_facts(found.path)
        progress = read_progress(
            part, has_provisional=has_provisional, in_progress=self._is_being_made(found.path)
        )
        size = _size_of(found.files or (found.path,))
        each = _Open(part, 0, size, size, has_newest_rows=has_provisional)
        if progress is not None:
            each.position, facts = progress
            each.set_facts(facts)
            each.facts_at_s = time.monotonic()
            if not is_rotated(found.path, found.files):  # else some of its files may be gone
                each.unread_bytes = max(size - each.position, 0)
        self._inputs[found.path] = each
        return True

    def close_input(self, path: str) -> None:
        """Close an input; its state in the lake stays."""
        self._inputs.pop(path, None)
        if not self._is_being_made(path):
            self._release_claims(path)

    def _release_claims(self, path: str) -> None:
        for name in [name for name, source in self._claims.items() if source == path]:
            del self._claims[name]

    # --- turns --------------------------------------------------------------------------------

    def commit(
        self, most_bytes: Mapping[str, int], ending: Collection[str]
    ) -> tuple[int, list[str]]:
        """Read and commit the next parts of inputs; return the number of bytes read, and notes.

        Facts of all packets that are due are committed with them, or started in the background.
        `most_bytes` is how many bytes to read of each input. Inputs that are `ending` stand still:
        they are read to their ends, and their rows are written as if they had ended.
        """
        turn = [self._inputs[path] for path in most_bytes]
        for each in turn:
            if each.has_newest_rows and not self._provisional_facts(each.source):
                # Another input shows the same messages, so facts of both were made with it.
                self._mark_facts_made(each)
        due = {each.source for each in turn if each.source in ending or self._are_due(each)}
        background = set[str]()
        if due and not self.is_making and take_long(self._packets_of(due)):
            background = {*due}
        parts, gone = self._read(turn, most_bytes, ending, due, background)
        read_bytes = sum(part.position - self._inputs[part.source].position for part in parts)
        notes = [note for part in parts for note in part.notes]
        background &= {part.source for part in parts}
        # One that is gone keeps its rows as they are, with facts of all of its packets.
        there = {part.source for part in parts} | (self._lake.inputs.keys() & gone)
        whole = {part.source for part in parts if part.is_whole}
        with_facts = ((due | whole | {*gone}) - background) & there
        stamps: dict[str, Mapping[str, Any] | None] = {}
        for place, part in enumerate(parts):
            if part.source in background:
                stamps[part.source] = json.loads(part.stamp) if part.ended else None
                growing = json.dumps({"growing": part.position})
                parts[place] = part._replace(stamp=growing)
        notes += self._commit(parts, with_facts)
        if stamps:
            still_growing = {*self._inputs} - {*ending}
            self._all_facts = AllFacts(self._lake, self._start_cluster, stamps, still_growing)
        for source in [*gone, *(part.source for part in parts if part.ended)]:
            self.close_input(source)
        return read_bytes, notes

    def _read(
        self,
        turn: Sequence[_Open],
        most_bytes: Mapping[str, int],
        ending: Collection[str],
        due: Collection[str],
        background: Collection[str],
    ) -> tuple[list[StagedPart], list[str]]:
        """Stage the next parts of inputs; return them, and the inputs that are gone."""
        most_newest = most_of_each(len(turn))
        tasks = [
            each.part._replace(
                states=self._states_of(each),
                stop=sys.maxsize
                if each.source in ending
                else each.position + most_bytes[each.source],
                ends=each.source in ending,
                facts=self._facts_before(each),
                makes_facts=each.source in due,
                facts_come=each.source not in background and not self._is_being_made(each.source),
                unread_bytes=min(most_bytes[each.source], each.unread_bytes),
                most_newest=most_newest,
                open_sessions=self._sessions_of(each, are_open=True),
                closed_sessions=() if each.has_closed else self._sessions_of(each, are_open=False),
            )
            for each in turn
        ]
        while True:
            self._lake.begin_run()
            settings = BronzeSettings(
                self._lake.staged(""),
                self._secrets,
                self._max_packet_bytes,
                skip_missing=True,
                payload=self._payload,
            )
            parts, gone = read_parts(self._runner, self._lake, tasks, settings, self._settings)
            shared = self._shared_among(parts)
            if not shared:
                return parts, gone
            tasks = [
                task._replace(facts=_without_jms(task.facts)) if task.path in shared else task
                for task in tasks
            ]

    def _facts_before(self, each: _Open) -> FactsMade:
        """Return how far facts are made for the next part of an input."""
        if each.shares is None and JMS.name in each.facts.until_ns:
            # The lake has the producers of all packets whose facts are made.
            none = fact_table("producers", ())
            has_jms = not self._packets_of([each.source]).keys().isdisjoint(JMS.needed)
            each.shares = has_jms and bool(related_to(self._lake, none, [each.source]))
        if each.shares:
            each.set_facts(_without_jms(each.facts))
        return each.facts._replace(seconds=each.expected_s)

    def _sessions_of(self, each: _Open, *, are_open: bool) -> tuple[str, ...]:
        """Return the files with the sessions of an input that are open, or closed, in the lake."""
        held = self._lake.inputs.get(each.source)
        names = held.files.get(SESSIONS, ()) if held is not None else ()
        return tuple(
            self._lake.path(SESSIONS, name) for name in names if is_provisional(name) is are_open
        )

    def _shared_among(self, parts: Iterable[StagedPart]) -> set[str]:
        """Return the inputs with rows of JMS messages that another growing input shows too.

        Each message has one row. A producer that appeared since facts were made belongs to the
        input that first has rows of its messages; parts are read again without those of others.
        """
        shared = set[str]()
        for part in parts:
            owners = {self._claims.setdefault(name, part.source) for name in part.producers}
            if owners - {part.source}:
                shared.add(part.source)
        return shared

    def _commit(self, parts: Sequence[StagedPart], with_facts: Collection[str]) -> Sequence[str]:
        lake, runner = self._lake, self._runner
        draft = Draft(lake)
        draft.drop({part.source for part in parts if part.is_whole} & lake.inputs.keys())
        add_parts(draft, parts, self._all_facts.kept if self._all_facts is not None else ())
        notes: Sequence[str] = ()
        related, took_s = set[str](), 0.0
        if with_facts or draft.changed:
            began_s = time.monotonic()
            notes, related = add_facts(runner, draft, with_facts)
            took_s = time.monotonic() - began_s
        commit_draft(runner, draft)
        for part in parts:
            self._continue(part)
        for source in related.union(with_facts) & self._inputs.keys():
            each = self._inputs[source]
            each.set_facts(each.facts._replace(seconds=took_s))
            self._mark_facts_made(each)
        return notes

    def _continue(self, part: StagedPart) -> None:
        """Set what the next part of an input begins with."""
        each = self._inputs[part.source]
        if part.facts.position != each.facts.position:
            each.facts_at_s, each.shares = time.monotonic(), None
        each.part = each.part._replace(facts=part.facts)
        each.position, each.unread_bytes = part.position, part.unread_bytes
        each.now_ns = part.now_ns
        each.has_newest_rows = self._provisional_facts(part.source)
        each.has_closed = bool(self._lake.inputs[part.source].files.get(OPEN_STATES))
        each.was_read = True

    def _states_of(self, each: _Open) -> tuple[str, ...]:
        """Return the files with the state of an input, which may be copies by now."""
        if not each.was_read:
            return each.part.states  # those that are not damaged
        names = self._lake.inputs[each.source].files.get(OPEN_STATES, ())
        return tuple(self._lake.path(OPEN_STATES, name) for name in names)

    def _packets_of(self, sources: Iterable[str]) -> Counter[str]:
        """Return how many packets of inputs the lake has, by format."""
        packets = Counter[str]()
        for source in sources:
            held = self._lake.inputs.get(source)
            for label, ledger in held.ledger.items() if held is not None else ():
                packets[label.partition("/")[0]] += ledger.packets
        return packets

    # --- facts that are made in the background ------------------------------------------------

    @property
    def is_making(self) -> bool:
        """Whether facts of all packets are being made in the background."""
        return self._all_facts is not None

    def _is_being_made(self, path: str) -> bool:
        return self._all_facts is not None and path in self._all_facts.sources

    def has_to_wait(self, path: str) -> bool:
        """Return whether the facts of an input cannot be started now, because others are made."""
        if self._all_facts is None:
            return False
        return self._is_being_made(path) or take_long(self._packets_of(self._inputs))

    def commit_facts(self, *, wait: bool = False) -> list[str]:
        """Commit facts that were made in the background, if they are ready; return notes.

        With `wait`, wait until they are ready.
        """
        made = self._all_facts
        if made is None or not (wait or made.is_ready):
            return []
        remade, notes = made.commit(self._lake)
        self._all_facts = None
        for source in {*remade, *made.sources}:
            if (each := self._inputs.get(source)) is None:
                self._release_claims(source)
                continue
            if source in remade:
                self._mark_facts_made(each)
            each.set_facts(each.facts._replace(seconds=made.took_s))
            each.facts_at_s, each.shares, each.has_closed = time.monotonic(), None, False
            each.has_newest_rows = self._provisional_facts(source)
        return [*notes]

    def _provisional_facts(self, path: str) -> bool:
        held = self._lake.inputs.get(path)
        return held is not None and bool(provisional_facts(held.files))

    def _mark_facts_made(self, each: _Open) -> None:
        """Record that facts of all packets of an input are made, as far as it was read."""
        until_ns = by_protocol(each.now_ns) or each.facts.until_ns
        each.set_facts(FactsMade(each.position, each.facts.seconds, until_ns))
        each.facts_at_s, each.shares, each.has_closed = time.monotonic(), None, False

    def is_behind(self, path: str) -> bool:
        """Return whether facts of an input lack some of its packets, and are due."""
        each = self._inputs.get(path)
        return each is not None and each.facts.position < each.position and self._are_due(each)

    def _are_due(self, each: _Open) -> bool:
        """Return whether it is time to make the facts of all packets of an input again."""
        if self.has_to_wait(each.source):
            return False
        takes_long = each.expected_s > _SHORT_S or take_long(self._packets_of([each.source]))
        pauses = _PAUSES_AFTER_LONG if takes_long else _PAUSES_AFTER_SHORT
        return time.monotonic() - each.facts_at_s >= pauses * each.expected_s

    def close(self) -> None:
        """Close all inputs."""
        for path in [*self._inputs]:
            self.close_input(path)

    @property
    def paths(self) -> list[str]:
        """The open inputs."""
        return [*self._inputs]

    def expire(self, is_over: Callable[[str], bool]) -> None:
        """Drop the states of inputs that have stood still for long.

        If one grows after that, it is read again as a whole.
        """
        lake = self._lake
        over = {
            source: {OPEN_STATES: names}
            for source, each in lake.record.inputs.items()
            if (names := each.files.get(OPEN_STATES))
            and source not in self._inputs
            and is_over(source)
        }
        if over:
            lake.begin_run()
            draft = Draft(lake)
            draft.unlist(over)
            compact(draft)
            lake.commit(draft.change())


def _size_of(paths: Iterable[str]) -> int:
    """Return the size of files together; those that are gone have none."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += os.stat(path).st_size
    return size


def _without_jms(facts: FactsMade) -> FactsMade:
    """Return how far facts are made if JMS messages get no rows before all facts are made again."""
    until_ns = {name: ns for name, ns in facts.until_ns.items() if name != JMS.name}
    return facts._replace(until_ns=until_ns)
