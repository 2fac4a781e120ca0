"""Growing inputs of a lake: which there are, and the commits of their parts.

The facts of an input (messages, deliveries, sessions and so on) follow from all of its packets, so
those of a growing input are made again from time to time, and when it stands still. That takes at
most half of the time while one pass takes up to `_SHORT_S`, and a tenth of it if it takes longer.
Those of many packets are made in the background, while parts are committed (`AllFacts`); otherwise
commits wait. Parts in between have facts of the newest packets only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from wireyard.captures.live.state import StateError
from wireyard.errors import SourceError
from wireyard.formats import load_columns
from wireyard.lake.writer import Lake
from wireyard.pipeline.decoding.task import BronzeSettings
from wireyard.pipeline.growing.all_facts import AllFacts
from wireyard.pipeline.growing.grown import (
    GrownPart,
    add_parts,
    can_grow,
    make_part_staging,
    open_growing,
    provisional_facts,
)
from wireyard.pipeline.growing.input import GrowingInput
from wireyard.pipeline.growing.newest import NewestFacts, by_protocol, take_long
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.pipeline.job import add_facts, commit_draft
from wireyard.pipeline.replacing import OPEN_STATES, Draft, compact
from wireyard.pipeline.running import Runner, StartCluster

__all__ = ["Growth"]

_SHORT_S: Final = 2.0
"""Time for which commits may wait for facts: rows are then under five seconds old in all."""
_PAUSES_AFTER_SHORT: Final = 1.0
_PAUSES_AFTER_LONG: Final = 9.0
"""Pause between two passes that make all facts, in durations of a pass."""


class Growth:
    """The growing inputs of a lake that one process reads.

    Parameters
    ----------
    secrets, max_packet_bytes, decode_as, keylog, payload
        Those of `fill_lake`.
    """

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
        self._secrets, self._max_packet_bytes = secrets, max_packet_bytes
        self._payload = payload
        self._settings = GrowthSettings(decode_as, keylog, max_packet_bytes)
        self._inputs: dict[str, GrowingInput] = {}
        self._newest: dict[str, NewestFacts] = {}
        self._claims: dict[str, str] = {}
        """Producers of JMS messages, and the input whose parts have rows of their messages."""
        self._written: dict[str, set[str]] = {}
        """By input: the provisional files of facts that its last part has written."""
        self._all_facts: AllFacts | None = None
        """The facts that are being made in the background."""
        load_columns()

    def has_state(self, path: str) -> bool:
        """Return whether an input is open, or an earlier process left its state in the lake."""
        held = self._lake.record.inputs.get(path)
        return path in self._inputs or (held is not None and bool(held.files.get(OPEN_STATES)))

    def is_open(self, path: str) -> bool:
        """Return whether an input is open, and its bytes that were read are still there."""
        growing = self._inputs.get(path)
        return growing is not None and growing.is_unchanged

    def refresh(self, path: str, paths: Iterable[str]) -> bool:
        """Update the file sizes of an open input; return whether it can be continued."""
        try:
            with suppress(SourceError):  # deleted in the meantime: the open file is still read
                self._inputs[path].refresh(paths)
        except StateError:
            self.close_input(path)
            return False
        return True

    def unread_bytes(self, path: str) -> int:
        """Return the number of unread bytes of an open input, at the last `refresh`."""
        return self._inputs[path].unread_bytes

    def open_input(self, found: FoundInput) -> bool:
        """Open an input to read it part by part; return whether that is possible.

        It continues from its state in the lake if it is still the same file.
        """
        if not can_grow(found):
            return False
        self.close_input(found.path)
        in_progress = self._is_being_made(found.path)
        growing = open_growing(self._lake, found, self._settings, in_progress=in_progress)
        if not growing.has_begun:
            growing.close()
            return False
        self._inputs[found.path] = growing
        self._written[found.path] = self._provisional_facts(found.path)
        return True

    def close_input(self, path: str) -> None:
        """Close an input; its state in the lake stays."""
        self._newest.pop(path, None)
        self._written.pop(path, None)
        if not self._is_being_made(path):
            self._release_claims(path)
        if (growing := self._inputs.pop(path, None)) is not None:
            growing.close()

    def _release_claims(self, path: str) -> None:
        for name in [name for name, source in self._claims.items() if source == path]:
            del self._claims[name]

    def commit(
        self, most_bytes: Mapping[str, int], ending: Collection[str]
    ) -> tuple[int, list[str]]:
        """Read and commit the next parts of inputs; return the number of bytes read, and notes.

        Facts of all packets that are due are committed with them, or started in the background.

        Parameters
        ----------
        most_bytes
            How many bytes to read of each input.
        ending
            Inputs that stand still: their rows are written as if they had ended.
        """
        before = sum(self._inputs[path].position for path in most_bytes)
        parts, notes = self._read_parts(most_bytes, ending)
        read_bytes = sum(part.input.position for part in parts) - before
        due = [part for part in parts if part.source in ending or self._are_due(part.input)]
        in_background = [part for part in due if not self.is_making and take_long(part.input.rows)]
        with_facts = [part for part in due if part not in in_background]
        stamps: dict[str, Mapping[str, Any] | None] = {}
        for part in parts:
            self._write_newest(part, due=part not in with_facts)
            if part in due:
                part.input.facts_s = _expected_s(part.input)
                self._mark_facts_made(part.source)
            if part in in_background:
                stamps[part.source] = part.defer_stamp() if part.source in ending else None
            is_pending = part in in_background or self._is_being_made(part.source)
            part.write_state(are_made=not is_pending)
        notes += self._commit(parts, with_facts)
        if stamps:
            still_growing = {*self._inputs} - {*ending}
            self._all_facts = AllFacts(self._lake, self._start_cluster, stamps, still_growing)
        for part in parts:
            part.input.mark_committed()
            self._written[part.source] = self._provisional_facts(part.source)
            if part.source in ending:
                self.close_input(part.source)
        return read_bytes, notes

    def _read_parts(
        self, most_bytes: Mapping[str, int], ending: Collection[str]
    ) -> tuple[list[GrownPart], list[str]]:
        """Stage the rows of the next parts of inputs; return the parts, and notes."""
        lake = self._lake
        lake.begin_run()
        make_part_staging(lake)
        settings = BronzeSettings(
            lake.staged(""), self._secrets, self._max_packet_bytes, payload=self._payload
        )
        parts, notes = list[GrownPart](), list[str]()
        for number, (path, most) in enumerate(most_bytes.items()):
            if not self._written.get(path, set()) <= self._provisional_facts(path):
                # Another input shows the same messages, so facts of both were made with it.
                self._mark_facts_made(path)
            part = GrownPart(lake, self._inputs[path], settings, number)
            if self._all_facts is not None:
                part.kept = self._all_facts.kept(path)
            notes += part.read(most, ends=path in ending)
            parts.append(part)
        return parts, notes

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
        return self._is_being_made(path) or take_long(self._inputs[path].rows)

    def commit_facts(self, *, wait: bool = False) -> list[str]:
        """Commit facts that were made in the background, if they are ready; return notes.

        Parameters
        ----------
        wait
            Whether to wait until they are.
        """
        made = self._all_facts
        if made is None or not (wait or made.is_ready):
            return []
        remade, notes = made.commit(self._lake)
        self._all_facts = None
        for source in {*remade, *made.sources}:
            if (growing := self._inputs.get(source)) is None:
                self._release_claims(source)
                continue
            if source in remade:
                self._mark_facts_made(source)
            growing.facts_s, growing.facts_at_s = made.took_s, time.monotonic()
            self._written[source] = self._provisional_facts(source)
        return [*notes]

    def _commit(self, parts: Sequence[GrownPart], with_facts: Sequence[GrownPart]) -> Sequence[str]:
        lake = self._lake
        draft = Draft(lake)
        replaced = {part.source for part in parts if part.input.replaces} & lake.inputs.keys()
        draft.drop(replaced)
        add_parts(draft, [part.staged() for part in parts])
        notes: Sequence[str] = ()
        runner = Runner(self._start_cluster, lake)
        if with_facts or replaced:
            began_s = time.monotonic()
            sources = {part.source for part in with_facts}
            notes, related = add_facts(runner, draft, sources)
            took_s = time.monotonic() - began_s
            for source in (sources | related) & self._inputs.keys():
                self._inputs[source].facts_s = took_s
                self._mark_facts_made(source)
        commit_draft(runner, draft)
        return notes

    def _provisional_facts(self, path: str) -> set[str]:
        held = self._lake.inputs.get(path)
        return provisional_facts(held.files) if held is not None else set()

    def _mark_facts_made(self, path: str) -> None:
        """Record that facts of all packets of an input are made, as far as it was read."""
        growing = self._inputs[path]
        growing.mark_facts_made(by_protocol(growing.now_ns))
        if (newest := self._newest.get(path)) and growing.now_ns is not None:
            newest.advance(growing.now_ns)

    def _write_newest(self, part: GrownPart, *, due: bool) -> None:
        """Stage the facts of the newest packets of a part, if `due`; else only track its packets.

        They are due unless facts of all packets are committed with the part.
        """
        growing = part.input
        newest = self._newest.get(growing.source)
        if newest is None:
            if not due or not growing.facts_until_ns:
                return
            newest = NewestFacts(self._lake, growing.source, growing.facts_until_ns, self._claims)
            self._newest[growing.source] = newest
        newest.add(part)
        if due:
            newest.write(part)
            growing.facts_until_ns = newest.until_ns

    def is_behind(self, path: str) -> bool:
        """Return whether facts of an input lack some of its packets, and are due."""
        growing = self._inputs.get(path)
        if growing is None or growing.facts_position >= growing.position:
            return False
        return self._are_due(growing)

    def _are_due(self, growing: GrowingInput) -> bool:
        """Return whether it is time to make the facts of all packets of an input again."""
        if self.has_to_wait(growing.source):
            return False
        pauses = _PAUSES_AFTER_LONG if _takes_long(growing) else _PAUSES_AFTER_SHORT
        return time.monotonic() - growing.facts_at_s >= pauses * _expected_s(growing)

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
        over = [
            each
            for source, each in lake.record.inputs.items()
            if each.files.get(OPEN_STATES) and source not in self._inputs and is_over(source)
        ]
        if over:
            lake.begin_run()
            draft = Draft(lake)
            names = (name for each in over for name in each.files[OPEN_STATES])
            draft.replace_files(OPEN_STATES, dict.fromkeys(names, ()))
            compact(draft)
            lake.commit(draft.change())


def _takes_long(growing: GrowingInput) -> bool:
    """Return whether making all facts takes longer than `_SHORT_S`, as for many packets."""
    return _expected_s(growing) > _SHORT_S or take_long(growing.rows)


def _expected_s(growing: GrowingInput) -> float:
    """Return the time that making all facts will take, which grows with the input."""
    return growing.facts_s * growing.position / max(growing.facts_position, 1)
