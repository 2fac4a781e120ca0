"""The tables of inputs: a run into a temporary folder, by the stages that fill a lake."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from time import time_ns
from typing import TYPE_CHECKING, Final

from wireyard.answers.cache import Entry, entry_key, find_entry, keep_entry
from wireyard.captures.stores.read import is_store
from wireyard.errors import SourceError, UsageError
from wireyard.formats import names as format_names
from wireyard.lake.records import Input
from wireyard.lake.snapshot import DATA
from wireyard.lake.staging import Staging
from wireyard.layers.tables import all_tables
from wireyard.pipeline.inputs.finding import (
    FoundInput,
    InputOptions,
    distinct,
    list_inputs,
)
from wireyard.pipeline.inputs.listing import absolute, is_pattern
from wireyard.streams.split import TO_THE_END
from wireyard.streams.urls import shown_url

if TYPE_CHECKING:
    from wireyard.pipeline.facts.stage import Facts
    from wireyard.pipeline.report import Watch
    from wireyard.pipeline.running import Runner

_STDIN: Final = "-"


class InputRun:
    """Reads inputs and derives their facts, each when its tables are first wanted.

    `folder` is the temporary folder. `paths`, `format` and `rotated` are those of `list_inputs`,
    and `decode_as` and `keylog` those of `open_input`. The path ``-`` is standard input, which is
    copied to the folder. With `cached`, tables are kept for the next question about the same
    inputs, and used if they are. `watch` shows the progress; a stage without a name is the end of
    all.

    The attribute `notes` has the notes on inputs so far: damage, bytes that are in no row, records
    that caps left out. `lost` is whether files are damaged, or bytes of captures are of unknown
    format.
    """

    def __init__(
        self,
        folder: str,
        paths: Sequence[str],
        *,
        format: str | None,
        decode_as: Sequence[str],
        keylog: Sequence[str],
        rotated: bool,
        cached: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self.notes: list[str] = []
        self.lost = False
        self._folder, self._paths = folder, paths
        self._copies: list[str] = []
        """The inputs that are copied, as the user has written them."""
        self._staging = Staging(f"{folder}/{DATA}/run")  # where `name_of` finds names
        self._options, self._rotated = InputOptions(format), rotated
        self._decode_as, self._keylog = tuple(decode_as), tuple(keylog)
        self._cached = cached and not keylog
        self._watch = watch or _NoWatch()
        self._begun_ns = time_ns()
        self._listing_notes = 0
        """How many of the notes are about files that were left out; they are first."""

    def files(self, table: str) -> list[str]:
        """Return the Parquet files of a table, after the stages that make it.

        A `SourceError` is raised if an input cannot be read; a `UsageError` if a file named by
        itself begins like no format (in a folder it is left out, with a note); a `LakeError` if the
        folder cannot be written.
        """
        if self._kept is not None:
            return self._staged(table, self._kept.files.get(table, ()))
        if table in all_tables():
            return self._staged(table, self._facts.files.get(table, ()))
        return self._decoded_files(table)

    def _staged(self, table: str, names: Iterable[str]) -> list[str]:
        return [self._staging.staged(table, name) for name in names]

    def _decoded_files(self, table: str) -> list[str]:
        return self._staged(table, self._listed(table))

    def _listed(self, table: str) -> list[str]:
        """Return the names of the files of decoded rows of a table."""
        names = (name for each in self._inputs for name in each.files.get(table, ()))
        return list(dict.fromkeys(names))

    @cached_property
    def _kept(self) -> Entry | None:
        """What a run before derived from these inputs as they are now."""
        entry = find_entry(self._key, self._staging.root) if self._key else None
        if entry is None:
            return None
        self.notes += entry.notes
        self.lost = entry.lost
        return entry

    @cached_property
    def _key(self) -> str | None:
        """The name of the entry for the inputs as they were at first."""
        return self._key_now() if self._cached else None

    def _key_now(self) -> str | None:
        options = {"format": self._options.format, "decode_as": self._decode_as}
        return entry_key(self._found, {**options, "rotated": self._rotated}, self._begun_ns)

    def _keep(self, facts: Facts) -> None:
        """Keep the tables for the next question, if the inputs did not change meanwhile."""
        if self._key and self._key == self._key_now():
            decoded = {name for each in self._inputs for name in each.files}
            files = {name: self._listed(name) for name in decoded}
            files |= {name: [*made] for name, made in facts.files.items()}
            notes = self.notes[self._listing_notes :]
            keep_entry(self._key, self._staging.root, files, notes, self.lost)

    @cached_property
    def _inputs(self) -> Sequence[Input]:
        """The inputs, decoded."""
        from wireyard.pipeline.decoding.stage import BronzeStage  # not for tables that were kept
        from wireyard.pipeline.decoding.task import BronzeSettings

        found = self._found
        settings = BronzeSettings(self._staging.staged(""), has_all_cores=True)
        how = self._decode_as, self._keylog
        stage = BronzeStage(self._runner, self._staging, settings, self._watch, *how)
        inputs = stage.read(found, TO_THE_END)
        self._watch.stage("")
        self.notes += stage.notes
        self.lost = stage.lost or stage.has_unknown
        return inputs

    @cached_property
    def _facts(self) -> Facts:
        from wireyard.pipeline.decoding.task import packets_table
        from wireyard.pipeline.facts.stage import write_facts

        files = {name: self._decoded_files(packets_table(name)) for name in format_names()}
        streams, captured = map(self._decoded_files, ("streams", "files"))
        whole = self._runner, self._staging, files, streams, captured, self._inputs
        self._watch.stage("deriving what became of messages")
        facts = write_facts(*whole)
        self._watch.stage("")
        self.notes += facts.notes
        self._keep(facts)
        return facts

    @cached_property
    def _runner(self) -> Runner:
        from wireyard.pipeline.running import Runner

        return Runner(None, self._staging)

    @cached_property
    def _found(self) -> list[FoundInput]:
        """Return the inputs, under names that begin as the user has written them."""
        stores = [path for path in self._paths if os.path.isdir(path) and is_store(path)]
        found = [FoundInput(path, 0, None, False, {}, (path,), stored=True) for path in stores]
        given = {absolute(self._to_open(path)): path for path in self._paths if path not in stores}
        if not given:
            return found
        try:
            listing = list_inputs([*given], self._options, rotated=self._rotated)
        except (SourceError, UsageError) as error:
            raise type(error)(_as_written(str(error), given)) from None
        inputs, again = distinct(listing.inputs, {})
        for note in (*listing.left_out, *again):
            self.notes.append(f"left out: {_as_written(note, given)}")
        self._listing_notes = len(self.notes)
        for each in inputs:
            path = shown_url(_as_written(each.path, given))
            copied = path in self._copies
            files = each.files if copied else tuple(_as_written(one, given) for one in each.files)
            location = None if each.files else each.path
            found.append(replace(each, path=path, files=files, location=location))
        return found

    def _to_open(self, path: str) -> str:
        """Return the path; of standard input or a pipe that of a copy: inputs are read twice."""
        if "://" in path or os.path.isfile(path) or os.path.isdir(path) or is_pattern(path):
            return path
        copy = os.path.join(self._folder, f"copy-{len(self._copies)}")
        self._copies.append(path)
        source = sys.stdin.buffer if path == _STDIN else None
        with open(copy, "wb") as file, nullcontext(source) if source else open(path, "rb") as pipe:
            shutil.copyfileobj(pipe, file)
        return copy


def _as_written(text: str, given: Mapping[str, str]) -> str:
    """Return a text that begins with an absolute path, which begins as the user has written it.

    `given` has the paths as the user has written them, by their absolute form.
    """
    for path, written in given.items():
        if text.startswith(path) and text[len(path) : len(path) + 1] in ("", "/", ":"):
            return written.rstrip("/") + text[len(path) :]
        if os.path.dirname(path) == text:  # of a rotated capture whose files are named
            return os.path.dirname(written) or "."
    return text


class _NoWatch:
    """Shows no progress."""

    def stage(self, name: str) -> None:
        pass

    def at(self, done_bytes: int, total_bytes: int) -> None:
        pass
