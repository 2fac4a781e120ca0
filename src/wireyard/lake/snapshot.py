"""Snapshots of a lake: its tables and inputs at one commit, for readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyarrow import fs

from wireyard.errors import LakeDamaged, LakeError, SourceError
from wireyard.lake.commits import CommitLog, file_crc32
from wireyard.lake.inside import check_links, files_below
from wireyard.lake.records import Commit, DataFile, Input, is_shown
from wireyard.streams.source import filesystem, reading, utf8_names

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

COMMITS: Final = "_wireyard/commits"
"""Folder of the records."""
DATA: Final = "_wireyard/data"
"""Folder of the files that runs have written, ``<run>/<table>/<file>``."""
_THREADS: Final = 8  # mostly waiting for a store


def name_of(path: str) -> str:
    """Return the name of a file of a table: its path behind ``<run>/<table>/``."""
    return path.rpartition(f"/{DATA}/")[2].split("/", 2)[2]


class DamagedFile(NamedTuple):
    """A file that is missing, or differs from what was written."""

    table: str
    file: DataFile
    problem: str


class LakeSnapshot:
    """A lake at one commit, which later commits do not change.

    Its files stay for an hour after a commit has replaced them.
    """

    def __init__(
        self,
        url: str,
        number: int | None = None,
        known: Commit | None = None,
        *,
        damaged: bool = False,
    ) -> None:
        self.url = url
        self.system, self._root = filesystem(url)
        self._local = isinstance(self.system, fs.LocalFileSystem)
        if self._local:
            check_links(self._root)
        name = f"{self.root}/{COMMITS}"
        self._log = CommitLog(url, self.system, self.inner(COMMITS), name)
        self.damaged_commits: list[int] = []
        """Numbers of the newest commits whose records are damaged, if an older one is shown."""
        if damaged:
            self._commit, self.damaged_commits = self._log.newest_whole()
        else:
            self._commit = self._log.newest(known) if number is None else self._log.read(number)

    @property
    def root(self) -> str:
        """The path or URL of the lake for tasks and Spark: absolute, without a trailing slash."""
        return self._root if self._local else self.url.rstrip("/")

    @property
    def commits(self) -> int:
        """The number of the commit; 0 before the first."""
        return self._commit.number

    @property
    def record(self) -> Commit:
        """The commit, with its time, files and inputs."""
        return self._commit

    @property
    def inputs(self) -> Mapping[str, Input]:
        """The inputs by source."""
        return self._commit.inputs

    @cached_property
    def files(self) -> dict[str, list[str]]:
        """The names of the files of each table."""
        return {
            table: [file.name for file in files] for table, files in self._commit.tables.items()
        }

    def paths(self, table: str) -> list[str]:
        """Return the files of a table, as paths or URLs."""
        return [self.path_of(table, file) for file in self._commit.tables.get(table, ())]

    def path(self, table: str, name: str) -> str:
        """Return the path or URL of the file with a name."""
        return self._paths_by_name[table][name]

    @cached_property
    def _paths_by_name(self) -> dict[str, dict[str, str]]:
        return {
            table: {file.name: self.path_of(table, file) for file in files}
            for table, files in self._commit.tables.items()
        }

    def path_of(self, table: str, file: DataFile) -> str:
        """Return the path or URL of a file of a table."""
        return f"{self.root}/{DATA}/{file.run}/{table}/{file.name}"

    def dataset(self, table: str) -> ds.Dataset:
        """Return a table as an Arrow dataset, which DuckDB, Polars and pandas accept.

        A partitioned table has a column `day`, by which files are pruned.

        Raises
        ------
        LakeError
            The lake has no such table.
        """
        import pyarrow.dataset as ds

        files = self._commit.tables.get(table)
        if not files:
            raise LakeError(f"{self.url}: has no table '{table}'")
        inner = [self.inner_of(table, file) for file in files]
        with reading(self.url), self._reading(table):
            return ds.dataset(
                inner, filesystem=self.system, format="parquet", partitioning=self._partitioning()
            )

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Turn Arrow's error for a table's files, or for a query, into one line."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            why = " ".join(str(error).split())
            raise LakeError(f"{self.url}: table '{table}': {why}") from None

    def _partitioning(self) -> ds.Partitioning | None:
        import pyarrow as pa
        import pyarrow.dataset as ds

        if self._commit.partition_by is None:
            return None
        return ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")

    def read(self, table: str, columns: list[str] | None = None, where: Any = None) -> pa.Table:
        """Return rows of a table; `where` is an expression of `pyarrow.compute`."""
        dataset = self.dataset(table)
        with reading(self.url), self._reading(table):
            rows: pa.Table = dataset.to_table(columns=columns, filter=where)
            return rows

    def numbers(self) -> list[int]:
        """Return the numbers of the commits that can still be read."""
        return list(self._log.times())

    def sources_in(self, number: int) -> set[str]:
        """Return the sources that a damaged record shows; some may be missing, or wrong."""
        return self._log.sources_in(number)

    def damage(self, *, checksums: bool = False) -> list[DamagedFile]:
        """Return the files of tables for readers that are missing or have another size.

        A run deletes the states that it replaces, and reads an input again without its state.

        Parameters
        ----------
        checksums
            Whether to read all bytes too, and compare checksums.
        """
        sizes = {info.path: info.size for info in files_below(self.system, self.inner(DATA))}
        found, whole = [], []
        for table, files in self._commit.tables.items():
            for file in files if is_shown(table) else ():
                size = sizes.get(self.inner_of(table, file))
                if size is None:
                    found.append(DamagedFile(table, file, "is missing"))
                elif size != file.bytes:
                    problem = f"has {size} bytes, should have {file.bytes}"
                    found.append(DamagedFile(table, file, problem))
                else:
                    whole.append((table, file))
        if checksums:
            with ThreadPoolExecutor(_THREADS) as pool:
                problems = pool.map(lambda each: self._content_problem(*each), whole)
                pairs = zip(whole, problems, strict=True)
                found += [DamagedFile(*each, problem) for each, problem in pairs if problem]
        return found

    def _content_problem(self, table: str, file: DataFile) -> str | None:
        """Return the problem with the bytes of a file; None if there is none."""
        try:
            crc32 = file_crc32(self.system, self.inner_of(table, file))
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        return None if crc32 == file.crc32 else "is not what was written: its checksum differs"

    def check_files(self, *, checksums: bool = False) -> None:
        """Check that all files exist with their sizes, and optionally their checksums.

        Raises
        ------
        LakeDamaged
            A file is missing or damaged; the text names the first.
        """
        self._raise_damage(self.damage(checksums=checksums))

    def check_file(self, table: str, name: str) -> None:
        """Check the checksum of a file.

        Raises
        ------
        LakeDamaged
            It is missing or damaged.
        """
        (file,) = (each for each in self._commit.tables[table] if each.name == name)
        if problem := self._content_problem(table, file):
            self._raise_damage([DamagedFile(table, file, problem)])

    def _raise_damage(self, found: Sequence[DamagedFile]) -> None:
        if found:
            more = f", and {len(found) - 1} more" if found[1:] else ""
            raise LakeDamaged(
                f"{self.url}: is damaged: {self.path_of(found[0].table, found[0].file)}"
                f" {found[0].problem}{more}; see 'wireyard lake repair'"
            )

    def inner_of(self, table: str, file: DataFile) -> str:
        """Return the path of a file in its file system."""
        return self.inner(DATA, file.run, table, file.name)

    def inner(self, *parts: str) -> str:
        """Return a path within the lake in its file system."""
        return "/".join((self._root, *parts))


def read_lake(
    url: str, number: int | None = None, *, check: bool = True, checksums: bool = False
) -> LakeSnapshot:
    """Open a lake at one commit; the newest if no number is given.

    Parameters
    ----------
    check
        Whether to check that all files exist with their sizes.
    checksums
        Whether to read all of their bytes too, and compare checksums.

    Raises
    ------
    SourceError
        The lake cannot be read, or there is no such commit.
    LakeDamaged
        A file is missing, or differs from what was written.
    """
    with reading(url), utf8_names(url):
        try:
            snapshot = LakeSnapshot(url, number)
            if snapshot.commits and (check or checksums):
                snapshot.check_files(checksums=checksums)
        except FileNotFoundError:
            raise SourceError(f"{url}: has no commit {number}, or no longer") from None
        except LakeDamaged:
            raise
        except LakeError as error:
            raise SourceError(str(error)) from None
        if not snapshot.commits:
            raise SourceError(f"{url}: is no lake that 'wireyard run' has filled")
        return snapshot
