"""Facts of all packets of growing inputs, made in the background while parts are committed.

A thread makes them, or waits for Spark. The facts follow from one commit, whose files do not change
and are not deleted in the meantime. Once made, they replace the facts that this commit had. Facts
that later parts have added stay, because they are about messages that were sent later. If another
growing input shows the same messages, if one that shows them came in the meantime, or if the facts
to be replaced were made again, all are made once more in the foreground, and no part is committed
until then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Thread, get_native_id
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.lake.writer import Input, Lake
from wireyard.layers.tables import all_tables
from wireyard.pipeline.facts.stage import read_producers, related_to
from wireyard.pipeline.growing.sessions import SESSIONS, merge_open_sessions
from wireyard.pipeline.job import add_facts, commit_draft
from wireyard.pipeline.replacing import Draft, is_provisional, split_by_day
from wireyard.pipeline.running import Runner, StartCluster

_NICENESS: Final = 10
"""Nice value of the thread and of all that it starts, Spark included: parts come first."""
_Files = dict[str, list[str]]
_Made = tuple[Draft, Sequence[str], set[str]]
"""The draft with them, notes for the user, and the inputs that get new facts by it."""


class _OthersGrow(Exception):
    """Other growing inputs show the same messages."""


class AllFacts:
    """A background thread that makes the facts of some inputs, as of the newest commit.

    `stamps` has the inputs, and the stamp that each gets with its facts; None if it keeps growing.
    `growing` are the inputs that get parts in the meantime.
    """

    def __init__(
        self,
        lake: Lake,
        start_cluster: StartCluster | None,
        stamps: Mapping[str, Mapping[str, Any] | None],
        growing: Collection[str],
    ) -> None:
        self._lake = lake.fork()
        self._runner = Runner(start_cluster, self._lake)
        self._stamps = stamps
        self._others = {*growing} - stamps.keys()
        self._before = lake.inputs
        self._stamp_before = {source: self._before[source].stamp for source in stamps}
        self.took_s = 0.0
        """Seconds that it took to make them."""
        self._made: Future[_Made] = Future()
        Thread(target=self._run, name="all facts", daemon=True).start()

    @property
    def sources(self) -> Collection[str]:
        """The inputs."""
        return self._stamps.keys()

    @property
    def is_ready(self) -> bool:
        """Whether they can be committed."""
        return self._made.done()

    @property
    def kept(self) -> set[str]:
        """The provisional files of the inputs that their next parts must not remove.

        They stay until these facts are committed, except sessions, which the parts write again.
        """
        return {
            name
            for source in self.sources
            for table, names in self._before[source].files.items()
            if table in all_tables() and table != SESSIONS
            for name in names
            if is_provisional(name)
        }

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere a thread has the priority of its process
            thread = os.PRIO_PROCESS, get_native_id()
            os.setpriority(*thread, max(os.getpriority(*thread), _NICENESS))
        try:
            self._made.set_result(self._make())
        except BaseException as error:  # raised again by `commit`
            self._made.set_exception(error)

    def _make(self) -> _Made:
        began_s, draft = time.monotonic(), Draft(self._lake)
        notes, related = add_facts(self._runner, draft, self.sources)
        if not self._others.isdisjoint(related):
            raise _OthersGrow
        split_by_day(self._runner, draft)
        self.took_s = time.monotonic() - began_s
        return draft, notes, {*self.sources, *related}

    def commit(self, lake: Lake) -> tuple[set[str], Sequence[str]]:
        """Wait for the facts and commit them to the lake as it is now.

        Return the inputs whose facts had to be made again, from everything that is committed, and
        notes for the user. A `SourceError` is raised if files of the inputs in the lake cannot be
        read, a `LakeError` if the lake cannot be written.
        """
        remade = set[str]()
        try:
            try:
                made, notes, sources = self._made.result()
            except _OthersGrow:
                made, sources = None, set()
            self._lake.update_from(lake)
            draft = None
            if made is not None and not self._has_newly_related(made, sources):
                draft = self._rebased(made, sources)
            if draft is None:
                self._lake.begin_run()
                self._before, self._others = lake.inputs, set()
                made, notes, remade = self._make()
                draft = self._rebased(made, remade)
            assert draft is not None
            commit_draft(self._runner, draft)
            lake.update_from(self._lake)
        finally:
            self._lake.begin_run()  # deletes staged files that were not committed
        return remade, notes

    def _has_newly_related(self, made: Draft, sources: Collection[str]) -> bool:
        """Return whether inputs that came since show the same JMS messages."""
        paths = [made.path("producers", name) for name in made.staged.get("producers", ())]
        producers = read_producers(paths)
        mine = producers.filter(pc.is_in(producers["source"], pa.array([*sources], pa.string())))
        return bool(related_to(self._lake, mine, sources))

    def _rebased(self, made: Draft, sources: Collection[str]) -> Draft | None:
        """Return the draft as applied to the lake as it is now; None if that is impossible.

        `sources` are the inputs that get new facts by it. Of others it has copies of files that
        they shared with these.
        """
        draft = Draft(self._lake)
        inputs = [
            each
            for source, each in made.inputs.items()
            if source in self.sources or each is not self._before[source]
        ]
        for each in inputs:
            now = draft.inputs.get(each.source)
            before, is_made = self._before[each.source], each.source in sources
            if now is None or not self._is_extended(now, before, is_made=is_made):
                return None
            if not is_made and now is not before and _copies_provisional(made, each):
                return None
        for table, names in made.removed.items():
            draft.replace_files(table, dict.fromkeys(names, ()))
        since = {
            each.source: _added_since(draft.inputs[each.source], self._before[each.source])
            for each in inputs
            if each.source in sources
        }
        sessions = {source: added[SESSIONS] for source, added in since.items() if SESSIONS in added}
        for each in inputs:
            self._put_facts(draft, each, made, sessions.get(each.source, ()))
        draft.unlist(
            {
                source: {SESSIONS: [*filter(is_provisional, names)]}
                for source, names in sessions.items()
            }
        )
        return draft

    def _put_facts(self, draft: Draft, each: Input, made: Draft, since: Sequence[str]) -> None:
        """Add the facts that were made, or copied, of an input to the facts of later parts.

        `since` are files with the sessions of later parts.
        """
        source, now = each.source, self._lake.inputs[each.source]
        files = {
            table: [name for name in each.files.get(table, ()) if name in staged]
            for table, staged in made.staged.items()
        }
        if since:
            of_all = files.get(SESSIONS, [])
            merged = merge_open_sessions(
                self._lake,
                source,
                [made.path(SESSIONS, name) for name in of_all],
                [draft.path(SESSIONS, name) for name in since],
            )
            files[SESSIONS] = [*(name for name in of_all if not is_provisional(name)), merged]
        stamp = self._stamps.get(source)
        if stamp is None or now.stamp != self._stamp_before[source]:
            stamp = now.stamp
        draft.put(replace(draft.inputs[source], stamp=stamp), files)

    def _is_extended(self, now: Input, before: Input, *, is_made: bool) -> bool:
        """Return whether an input still has its facts of before; only its parts may add to them."""
        for table in all_tables():
            there = {*before.files.get(table, ())}
            if table == SESSIONS or not is_made:
                there = {name for name in there if not is_provisional(name)}
            if not there <= {*now.files.get(table, ())}:
                return False
        return before.source in self.sources or not is_made or not _added_since(now, before)


def _copies_provisional(made: Draft, each: Input) -> bool:
    """Return whether a draft has a copy of a provisional file of an input."""
    staged = ((names, made.staged.get(table, ())) for table, names in each.files.items())
    return any(name in new and is_provisional(name) for names, new in staged for name in names)


def _added_since(now: Input, before: Input) -> _Files:
    """Return the files of facts that an input has got since `before`, by table."""
    added: _Files = {}
    for table in all_tables():
        there = {*before.files.get(table, ())}
        if names := [name for name in now.files.get(table, ()) if name not in there]:
            added[table] = names
    return added
