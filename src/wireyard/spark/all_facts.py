"""Facts of all packets of inputs that grow, made beside the commits of their next parts.

What is long is done by Spark, which a thread waits for, so parts are committed meanwhile. The facts
are those of one commit, the files of which do not change and are not deleted as long. When they are
made they take the place of the facts that this commit had. What parts have added since stays: it is
about messages that were sent later. Where other inputs that grow show the same messages, or where
the facts that are to go were made anew meanwhile, they are made again, and nothing is committed as
long.
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
from wireyard.spark.replacing import drop_inputs, is_of_open, split_by_day
from wireyard.spark.running import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AllFacts"]

_NICENESS: Final = 10
"""Of the thread and all that it starts, Spark too: parts come first."""
_Files = dict[str, list[str]]
_Made = tuple[Change, Sequence[str], set[str]]
"""The change, what is to be said about it, and the inputs that have new facts by it."""


class _OthersGrow(Exception):
    """Inputs that grow show messages of those whose facts are made."""


class AllFacts:
    """The facts of some inputs as they are in the newest commit, which a thread makes.

    Parameters
    ----------
    stamps
        The inputs, and what the stamp of each becomes once it has them; None if it grows.
    growing
        The inputs that get parts meanwhile.
    """

    def __init__(
        self,
        lake: Lake,
        get_session: Callable[[], SparkSession],
        stamps: Mapping[str, Mapping[str, Any] | None],
        growing: Collection[str],
    ) -> None:
        self._lake = lake.beside()
        self._runner = Runner(get_session, self._lake)
        self._stamps = stamps
        self._others = {*growing} - stamps.keys()
        self._before = lake.inputs
        self._stamp_before = {source: self._before[source].stamp for source in stamps}
        self.took_s = 0.0
        """How long it took to make them."""
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
        """Return the files of facts of an input that stay until these are committed.

        Its next part takes them out otherwise. Those of sessions it writes anew.
        """
        files = self._before[source].files if source in self.sources else {}
        tables = (table for table in FACTS if table != SESSIONS)
        return {name for table in tables for name in files.get(table, ()) if is_of_open(name)}

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere threads have the priority of their process
            thread = os.PRIO_PROCESS, get_native_id()
            os.setpriority(*thread, max(os.getpriority(*thread), _NICENESS))
        try:
            self._made.set_result(self._make())
        except BaseException as error:  # it is raised by `commit`
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
        """Commit them, once they are made.

        Parameters
        ----------
        lake
            The lake as it is now.

        Returns
        -------
        anew
            The inputs whose facts had to be made again, and follow from all that is committed.
        notes
            What is to be said about them.

        Raises
        ------
        SourceError
            What the lake has of the inputs cannot be read.
        LakeError
            The lake cannot be written.
        """
        anew = set[str]()
        try:
            try:
                change, notes, _ = self._made.result()
                rebased = self._rebased(change, lake)
            except _OthersGrow:
                rebased = None
            self._lake.go_on_from(lake)
            if rebased is None:
                self._lake.begin_run()
                self._before, self._others = lake.inputs, set()
                change, notes, anew = self._make()
                rebased = self._rebased(change, lake)
            assert rebased is not None
            commit_change(self._runner, self._lake, rebased)
            lake.go_on_from(self._lake)
        finally:
            self._lake.begin_run()  # what was not committed goes
        return anew, notes

    def _rebased(self, change: Change, lake: Lake) -> Change | None:
        """Return the change as one of the lake as it is now; None if there is none."""
        inputs = list[Input]()
        append = {table: list(names) for table, names in change.append.items()}
        remove = {table: list(names) for table, names in change.remove.items()}
        for each in change.inputs:
            now, before = lake.inputs.get(each.source), self._before[each.source]
            if now is None or not self._goes_on(now, before):
                return None
            since = _since(now, before)
            made = {table: [*each.files.get(table, ())] for table in FACTS}
            if since.get(SESSIONS):
                older, newer = made[SESSIONS], since[SESSIONS]
                merged = merge_open_sessions(
                    self._lake,
                    each.source,
                    [self._lake.staged(SESSIONS, name) for name in older],
                    [lake.path(SESSIONS, name) for name in newer],
                )
                gone = {name for name in (*older, *newer) if is_of_open(name)}
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

    def _goes_on(self, now: Input, before: Input) -> bool:
        """Return whether the facts of an input are those that it had, and what its parts added."""
        for table in FACTS:
            there = {*before.files.get(table, ())}
            if table == SESSIONS:
                there = {name for name in there if not is_of_open(name)}
            if not there <= {*now.files.get(table, ())}:
                return False
        return before.source in self.sources or not _since(now, before)


def _since(now: Input, before: Input) -> _Files:
    """Return the files of facts that an input has got since."""
    found: _Files = {}
    for table in FACTS:
        there = {*before.files.get(table, ())}
        if names := [name for name in now.files.get(table, ()) if name not in there]:
            found[table] = names
    return found
