"""The folder that a run writes its tables to: ``<folder>/<table>/<file>``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyarrow import fs

from wireyard.errors import LakeError
from wireyard.lake.records import is_shown
from wireyard.streams.source import filesystem


class Staging:
    """A local folder for the tables of a run that commits nothing; `Lake` is the other kind."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def root(self) -> str:
        """The path or URL for tasks and Spark: absolute, without a trailing slash."""
        return self.url

    @property
    def _folder(self) -> str:
        """The path or URL of the run's folder."""
        return self.root

    def staged(self, table: str, name: str = "") -> str:
        """Return the path of a file of this run; it stays the same after the commit."""
        return f"{self._folder}/{table}/{name}".rstrip("/")

    def make_staging(self, tables: Iterable[str]) -> None:
        """Make the folders that tasks write to; those of states are for their owner alone.

        S3 has none: Arrow would write three empty objects for each.
        """
        with writing(self.url):
            for table in tables:
                system, inner = filesystem(self.staged(table))
                if system.type_name == "s3":
                    continue
                system.create_dir(inner)
                if isinstance(system, fs.LocalFileSystem) and not is_shown(table):
                    os.chmod(inner, stat.S_IRWXU)


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn an error of the operating system or a store into one line that names the target."""
    try:
        yield
    except OSError as error:
        # Arrow wraps the system's message in a sentence of its own.
        why = os.strerror(error.errno) if error.errno else error
        raise LakeError(f"{name}: cannot be written ({why})") from None
