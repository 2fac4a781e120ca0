"""Facts of all packets of growing inputs, made in the background while parts are committed.

A thread makes them, or waits for Spark. The facts follow from one commit, whose files do not change
and are not deleted in the meantime. Once made, they replace the facts that this commit had. Facts
that later parts have added stay, because they are about messages that were sent later. If another
growing input shows the same messages, or if the facts to be replaced were made again in the
meantime, all are made once more in the foreground, and no part is committed until then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Thread, get_native_id
from typing import TYPE_CHECKING, Any, Final

from wireyard.layers.tables import FACTS
from wireyard.spark.grown import SESSIONS, merge_open_sessions
from wireyard.spark.job import add_facts, commit_change
from wireyard.spark.lake import Change, Input, Lake
from wireyard.spark.replacing import drop_inputs, is_provisional, split_by_day
from wireyard.spark.running import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AllFacts"]

_NICENESS: Final = 10
"""Nice value of the thread and of all that it starts, Spark included: parts come first."""
_Files = dict[str, list[str]]
_Made = tuple[Change, Sequence[str], set[str]]
"""The change, notes for the user, and the inputs that get new facts by it."""


class _OthersGrow(Exception):
    """Other growing inputs show the same messages."""


class AllFacts:
    """A background thread that makes the facts of some inputs, as of the newest commit.

    Parameters
    ----------
    stamps
        The inputs, and the stamp that each gets with its facts; None if it keeps growing.
    growing
        The inputs that get parts in the meantime.
    """

    def __init__(
        self,
        lake: Lake,
        get_session: Callable[[], SparkSession] | None,
        stamps: Mapping[str, Mapping[str, Any] | None],
        growing: Collection[str],
    ) -> None:
        self._lake = lake.fork()
        self._runner = Runner(get_session, self._lake)
        self._stamps = stamps
        self._others = {*growing} - stamps.keys()
        self._before = lake.inputs
        self._stamp_before = {source: self._before[source].stamp for source in stamps}
        self.took_s = 0.0
        """Seconds that it took to make them."""
        self._made: Future[_Made] = Future()
        Thread(target=self._run, daemon=True).start()

    @property
    def sources(self) -> Collection[str]:
        """The inputs."""
        return self._stamps.keys()

    @property
    def is_ready(self) -> bool:
        """Whether they can be committed."""
        return self._made.done()

    def kept(self, source: str) -> set[str]:
        """Return the provisional files of an input that its next part must not remove.

        They stay until these facts are committed, except sessions, which the part writes again.
        """
        files = self._before[source].files if source in self.sources else {}
        tables = (table for table in FACTS if table != SESSIONS)
        return {name for table in tables for name in files.get(table, ()) if is_provisional(name)}

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere a thread has the priority of its process
            thread = os.PRIO_PROCESS, get_native_id()
            os.setpriority(*thread, max(os.getpriority(*thread), _NICENESS))
        try:
            self._made.set_result(self._make())
        except BaseException as error:  # raised again by `commit`
            self._made.set_exception(error)

    def _make(self) -> _Made:
        lake, began_s = self._lake, time.monotonic()
        added = [self._before[source] for source in self.sources]

        def change_without(related: Collection[str]) -> Change:
            if not self._others.isdisjoint(related):
                raise _OthersGrow
            return drop_inputs(lake, (), {*self.sources, *related})

        change, notes, related = add_facts(self._runner, lake, change_without, added, self.sources)
        change = split_by_day(self._runner, lake, change)
        self.took_s = time.monotonic() - began_s
        return change, notes, {*self.sources, *related}

    def commit(self, lake: Lake) -> tuple[set[str], Sequence[str]]:
        """Wait for the facts and commit them.

        Parameters
        ----------
        lake
            The lake as it is now.

        Returns
        -------
        remade
            The inputs whose facts had to be made again, from everything that is committed.
        notes
            Notes for the user.

        Raises
        ------
        SourceError
            Files of the inputs in the lake cannot be read.
        LakeError
            The lake cannot be written.
        """
        remade = set[str]()
        try:
            try:
                change, notes, _ = self._made.result()
                rebased = self._rebased(change, lake)
            except _OthersGrow:
                rebased = None
            self._lake.update_from(lake)
            if rebased is None:
                self._lake.begin_run()
                self._before, self._others = lake.inputs, set()
                change, notes, remade = self._make()
                rebased = self._rebased(change, lake)
            assert rebased is not None
            commit_change(self._runner, self._lake, rebased)
            lake.update_from(self._lake)
        finally:
            self._lake.begin_run()  # deletes staged files that were not committed
        return remade, notes

    def _rebased(self, change: Change, lake: Lake) -> Change | None:
        """Return the change as applied to the lake as it is now; None if that is impossible."""
        inputs = list[Input]()
        append = {table: list(names) for table, names in change.append.items()}
        remove = {table: list(names) for table, names in change.remove.items()}
        for each in change.inputs:
            now, before = lake.inputs.get(each.source), self._before[each.source]
            if now is None or not self._is_extended(now, before):
                return None
            since = _added_since(now, before)
            made = {table: [*each.files.get(table, ())] for table in FACTS}
            if since.get(SESSIONS):
                older, newer = made[SESSIONS], since[SESSIONS]
                merged = merge_open_sessions(
                    self._lake,
                    each.source,
                    [self._lake.staged(SESSIONS, name) for name in older],
                    [lake.path(SESSIONS, name) for name in newer],
                )
                gone = {name for name in (*older, *newer) if is_provisional(name)}
                remove[SESSIONS] = [*remove.get(SESSIONS, ()), *gone.intersection(newer)]
                append[SESSIONS] = [name for name in append[SESSIONS] if name not in gone]
                append[SESSIONS].append(merged)
                made[SESSIONS] = [name for name in older if name not in gone] + [merged]
                since[SESSIONS] = [name for name in newer if name not in gone]
            files = {table: [*names] for table, names in now.files.items() if table not in FACTS}
            for table in FACTS:
                if names := [*made[table], *since.get(table, ())]:
                    files[table] = names
            stamp = self._stamps.get(each.source)
            if stamp is None or now.stamp != self._stamp_before[each.source]:
                stamp = now.stamp
            inputs.append(replace(now, files=files, stamp=stamp))
        return replace(change, inputs=tuple(inputs), append=append, remove=remove)

    def _is_extended(self, now: Input, before: Input) -> bool:
        """Return whether an input still has its facts of before; only its parts may add to them."""
        for table in FACTS:
            there = {*before.files.get(table, ())}
            if table == SESSIONS:
                there = {name for name in there if not is_provisional(name)}
            if not there <= {*now.files.get(table, ())}:
                return False
        return before.source in self.sources or not _added_since(now, before)


def _added_since(now: Input, before: Input) -> _Files:
    """Return the files of facts that an input has got since `before`, by table."""
    added: _Files = {}
    for table in FACTS:
        there = {*before.files.get(table, ())}
        if names := [name for name in now.files.get(table, ()) if name not in there]:
            added[table] = names
    return added
