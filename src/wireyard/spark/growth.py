"""Growing inputs in a lake: which there are, what of them is read next, and the commit of it.

The facts of an input (messages, deliveries, sessions and so on) follow from all of its packets, so
those of a growing one are made anew, now and then: half of the time as long as that takes a moment,
a tenth of it where it is longer, and when the input stands still. Where Spark makes them, parts are
committed meanwhile (`AllFacts`). Else nothing is, which is no longer than a moment. Parts with
which they are not made have facts of the newest packets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wireyard.captures.live_state import StateError
from wireyard.errors import SourceError
from wireyard.spark.all_facts import AllFacts
from wireyard.spark.bronze import Settings
from wireyard.spark.growing import GrowingInput
from wireyard.spark.growing_readers import GrowthSettings
from wireyard.spark.grown import (
    GrownPart,
    can_grow,
    make_part_staging,
    open_facts,
    open_growing,
    with_parts,
)
from wireyard.spark.inputs import FoundInput
from wireyard.spark.job import add_facts, commit_change
from wireyard.spark.lake import Change, Lake
from wireyard.spark.newest import NewestFacts, need_spark, until
from wireyard.spark.replacing import OPEN_STATES, compact, drop_inputs
from wireyard.spark.running import Runner
from wireyard.spark.workers import load_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Growth"]

_MOMENT_S: Final = 2.0
"""Rows of packets may wait for so long, which leaves them under five seconds old in all."""
_WAITS_AFTER_MOMENT: Final = 1.0
_WAITS_AFTER_MORE: Final = 9.0
"""How many times as long as they take facts wait for each other."""


class Growth:
    """The growing inputs of a lake, while one process reads them.

    Parameters
    ----------
    secrets, max_packet_bytes, decode_as, keylog, payload
        Those of `fill_lake`.
    """

    def __init__(
        self,
        lake: Lake,
        get_session: Callable[[], SparkSession],
        *,
        secrets: bool = False,
        max_packet_bytes: int | None = None,
        decode_as: tuple[str, ...] = (),
        keylog: tuple[str, ...] = (),
        payload: tuple[str, ...] = (),
    ) -> None:
        self._lake, self._get_session = lake, get_session
        self._secrets, self._max_packet_bytes = secrets, max_packet_bytes
        self._payload = payload
        self._settings = GrowthSettings(decode_as, keylog, max_packet_bytes)
        self._inputs: dict[str, GrowingInput] = {}
        self._newest: dict[str, NewestFacts] = {}
        self._claims: dict[str, str] = {}
        """Producers of JMS messages, and the inputs that have early rows of theirs."""
        self._written: dict[str, set[str]] = {}
        """Of each input the files of facts that its last part wrote, to be taken out again."""
        self._all_facts: AllFacts | None = None
        """Those that are made beside the commits of parts."""
        load_columns()

    def knows(self, path: str) -> bool:
        """Return whether a file is read part by part here, or was in a process before."""
        held = self._lake.record.inputs.get(path)
        return path in self._inputs or (held is not None and bool(held.files.get(OPEN_STATES)))

    def holds(self, path: str) -> bool:
        """Return whether a file is read part by part now, and is the same file still."""
        one = self._inputs.get(path)
        return one is not None and one.is_same

    def look(self, path: str, paths: Iterable[str]) -> bool:
        """Look how large the files of an input are; return whether it can be read on."""
        try:
            with suppress(SourceError):  # gone meanwhile: what is open of it is read
                self._inputs[path].look(paths)
        except StateError:
            self.forget(path)
            return False
        return True

    def unread_bytes(self, path: str) -> int:
        """Return how many bytes of an input were not read when its files were looked at."""
        return self._inputs[path].unread_bytes

    def begin(self, found: FoundInput) -> bool:
        """Take a file to be read part by part; return whether it can be.

        What the lake holds of it is read on where it is the same file still.
        """
        if not can_grow(found):
            return False
        self.forget(found.path)
        being_made = self._is_being_made(found.path)
        one = open_growing(self._lake, found, self._settings, being_made=being_made)
        if not one.has_begun:
            one.close()
            return False
        self._inputs[found.path] = one
        self._written[found.path] = self._open_facts(found.path)
        return True

    def forget(self, path: str) -> None:
        """Let go of an input; a state of it in the lake stays."""
        self._newest.pop(path, None)
        self._written.pop(path, None)
        if not self._is_being_made(path):
            self._let_claims_go(path)
        if (one := self._inputs.pop(path, None)) is not None:
            one.close()

    def _let_claims_go(self, path: str) -> None:
        for name in [name for name, source in self._claims.items() if source == path]:
            del self._claims[name]

    def commit(
        self, most_bytes: Mapping[str, int], ending: Collection[str]
    ) -> tuple[int, list[str]]:
        """Read inputs on, and commit what is new of them; return how many bytes, and notes.

        Facts of all packets that are due are made with them, or begun to be made beside.

        Parameters
        ----------
        most_bytes
            How much of each is to be read.
        ending
            Those that stand still: they get the rows that they would have if nothing followed.
        """
        lake = self._lake
        lake.begin_run()
        make_part_staging(lake)
        settings = Settings(
            lake.staged(""), self._secrets, self._max_packet_bytes, payload=self._payload
        )
        for path in most_bytes:
            if not self._written.get(path, set()) <= self._open_facts(path):
                # Another input shows the same messages, so facts of both were made with it.
                self._take_note_of_facts(path)
        read_bytes, notes, parts = 0, list[str](), []
        for number, (path, most) in enumerate(most_bytes.items()):
            one = self._inputs[path]
            before = one.position
            part = GrownPart(lake, one, settings, number)
            if self._all_facts is not None:
                part.kept = self._all_facts.kept(path)
            notes += part.read(most, ends=path in ending)
            read_bytes += one.position - before
            parts.append(part)
        due = [part for part in parts if part.source in ending or self._are_due(part.input)]
        beside = [part for part in due if not self.is_making and need_spark(part.input.rows)]
        with_facts = [part for part in due if part not in beside]
        stamps: dict[str, Mapping[str, Any] | None] = {}
        for part in parts:
            self._write_newest(part, due=part not in with_facts)
            if part in due:
                part.input.facts_s = _expected_s(part.input)
                self._take_note_of_facts(part.source)
            if part in beside:
                stamps[part.source] = part.wait_for_facts() if part.source in ending else None
            part.write_state(are_made=part not in beside and not self._is_being_made(part.source))
        notes += self._commit(parts, with_facts)
        if stamps:
            growing = {*self._inputs} - {*ending}
            self._all_facts = AllFacts(lake, self._get_session, stamps, growing)
        for part in parts:
            part.input.committed()
            self._written[part.source] = self._open_facts(part.source)
            if part.source in ending:
                self.forget(part.source)
        return read_bytes, notes

    # --- facts that are made beside -----------------------------------------------------------

    @property
    def is_making(self) -> bool:
        """Whether facts of all packets are made beside the commits of parts."""
        return self._all_facts is not None

    def _is_being_made(self, path: str) -> bool:
        return self._all_facts is not None and path in self._all_facts.sources

    def has_to_wait(self, path: str) -> bool:
        """Return whether the facts of an input cannot be made now, because others are."""
        if self._all_facts is None:
            return False
        return self._is_being_made(path) or need_spark(self._inputs[path].rows)

    def commit_facts(self, *, wait: bool = False) -> list[str]:
        """Commit facts that were made beside, if they are ready; return notes.

        Parameters
        ----------
        wait
            Whether to wait for them.
        """
        made = self._all_facts
        if made is None or not (wait or made.is_ready):
            return []
        anew, notes = made.commit(self._lake)
        self._all_facts = None
        for source in {*anew, *made.sources}:
            if (one := self._inputs.get(source)) is None:
                self._let_claims_go(source)
                continue
            if source in anew:
                self._take_note_of_facts(source)
            one.facts_s, one.facts_at_s = made.took_s, time.monotonic()
            self._written[source] = self._open_facts(source)
        return [*notes]

    def _commit(self, parts: Sequence[GrownPart], with_facts: Sequence[GrownPart]) -> Sequence[str]:
        lake = self._lake
        replaced = [part.source for part in parts if part.input.replaces]
        replaced = [source for source in replaced if source in lake.inputs]
        anew = {part.source for part in with_facts} & lake.inputs.keys() - {*replaced}

        def change_without(related: Collection[str]) -> Change:
            for part in parts:
                if part.source in related:
                    part.leave_out_newest()
            return with_parts(lake, drop_inputs(lake, replaced, {*anew, *related}), parts)

        notes: Sequence[str] = ()
        runner = Runner(self._get_session, lake)
        if with_facts:
            began_s = time.monotonic()
            sources = {part.source for part in with_facts}
            added = [each for each in change_without(()).inputs if each.source in sources]
            gone = {*replaced, *anew}
            change, notes, related = add_facts(runner, lake, change_without, added, gone)
            took_s = time.monotonic() - began_s
            for source in (sources | related) & self._inputs.keys():
                self._inputs[source].facts_s = took_s
                self._take_note_of_facts(source)
        else:
            change = change_without(())
        commit_change(runner, lake, change)
        return notes

    def _open_facts(self, path: str) -> set[str]:
        held = self._lake.inputs.get(path)
        return open_facts(held.files) if held is not None else set()

    def _take_note_of_facts(self, path: str) -> None:
        """Take note that facts of all packets of an input are made, as far as it was read."""
        one = self._inputs[path]
        one.take_note_of_facts(until(one.now_ns))
        if (newest := self._newest.get(path)) and one.now_ns is not None:
            newest.go_on(one.now_ns)

    def _write_newest(self, part: GrownPart, *, due: bool) -> None:
        """Stage the facts of the newest packets of a part, unless those of all packets are due."""
        one = part.input
        newest = self._newest.get(one.source)
        if newest is None:
            if not due or not one.facts_until_ns:
                return
            newest = NewestFacts(self._lake, one.source, one.facts_until_ns, self._claims)
            self._newest[one.source] = newest
        newest.add(part)
        if due:
            newest.write(part)
            one.facts_until_ns = newest.until_ns

    def is_behind(self, path: str) -> bool:
        """Return whether the facts of an input do not have all of its packets, and are due."""
        one = self._inputs.get(path)
        return one is not None and one.facts_position < one.position and self._are_due(one)

    def _are_due(self, one: GrowingInput) -> bool:
        """Return whether it is time to make the facts of all packets of an input again."""
        if self.has_to_wait(one.source):
            return False
        waits = _WAITS_AFTER_MORE if _takes_long(one) else _WAITS_AFTER_MOMENT
        return time.monotonic() - one.facts_at_s >= waits * _expected_s(one)

    def close(self) -> None:
        """Let go of all inputs."""
        for path in [*self._inputs]:
            self.forget(path)

    @property
    def paths(self) -> list[str]:
        """The inputs that are read part by part now."""
        return [*self._inputs]

    def expire(self, is_over: Callable[[str], bool]) -> None:
        """Forget the states of inputs that have stood still for long.

        Should one grow after that, it is read again as a whole.
        """
        lake = self._lake
        over = [
            each
            for source, each in lake.record.inputs.items()
            if each.files.get(OPEN_STATES) and source not in self._inputs and is_over(source)
        ]
        if over:
            lake.begin_run()
            names = [name for each in over for name in each.files[OPEN_STATES]]
            inputs = [replace(each, files={**each.files, OPEN_STATES: []}) for each in over]
            lake.commit(compact(lake, Change(tuple(inputs), {OPEN_STATES: names})))


def _takes_long(one: GrowingInput) -> bool:
    """Return whether that takes more than a moment; if it needs Spark, it does."""
    return _expected_s(one) > _MOMENT_S or need_spark(one.rows)


def _expected_s(one: GrowingInput) -> float:
    """Return how long that takes, which grows with the input."""
    return one.facts_s * one.position / max(one.facts_position, 1)
