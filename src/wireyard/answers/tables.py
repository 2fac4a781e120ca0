"""Tables for SQL queries: those of a lake, or the same ones made from inputs.

A query can only read the tables. DuckDB runs with a locked configuration: it loads and fetches no
extension, reads no file but those of the tables and no variable of this program, and writes
nothing; and a query must be one SELECT statement. Names of tables are identifiers by the grammar of
`lake.records`, and quoted nevertheless: they may be words of SQL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import fs

from wireyard.answers.inputs import InputRun
from wireyard.captures.quarantine import QUARANTINE
from wireyard.captures.stores.rows import SCHEMA as STORE_RECORDS
from wireyard.captures.stream_table import FILES, LEDGER_TABLE, STREAMS
from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format
from wireyard.formats import names as format_names
from wireyard.lake.records import is_shown
from wireyard.lake.snapshot import read_lake
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq.facts import FORMATS as JMS_FORMATS
from wireyard.layers.jmq.waiting import SHARED_JMS
from wireyard.layers.symptoms import SHARED
from wireyard.layers.tables import all_tables, schema_with_times
from wireyard.pipeline.inputs.listing import is_pattern
from wireyard.streams.conditions import is_utf8
from wireyard.streams.plan import make_plan
from wireyard.streams.source import filesystem, reading

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from wireyard.pipeline.report import Watch

Row = dict[str, Any]

_READ: Final[Mapping[str, pa.Schema]] = {
    "files": FILES,
    "ledger": LEDGER_TABLE,
    "streams": STREAMS,
    "quarantine": QUARANTINE,
    "store_records": STORE_RECORDS,
}
_OF_PACKETS: Final = {f"packets_{name}": name for name in format_names()}


def _table_names() -> set[str]:
    """Return the names of the tables that exist even without rows."""
    return {*_READ, *_OF_PACKETS, *all_tables()}


def _schema(table: str) -> pa.Schema:
    """Return the schema of such a table."""
    if table in _OF_PACKETS:
        return make_plan(get_format(_OF_PACKETS[table]), captured=True).schema
    return _READ.get(table) or schema_with_times(table)


def _lacking(table: str, columns: Collection[str]) -> list[pa.Field]:
    """Return the columns that files of a table lack, because a version before wrote them."""
    if table not in _table_names():
        return []
    return [field for field in _schema(table) if field.name not in columns]


_FEW_BYTES: Final = 4 << 20
_FEW_ROWS: Final = 1 << 18
"""Size of the files of a table, and rows in them, up to which queries run over a copy of it in
memory: to open files again for each query takes longer. Rows that are alike take a byte in a file,
and 400 in memory."""
_OCCURRING: Final = """
SELECT DISTINCT split_part(s.format, '/', 1) AS name
FROM ledger l JOIN streams s USING (source, stream)
WHERE l.packets_ok + l.packets_malformed > 0
UNION
SELECT 'jmq' FROM store_records
"""
_NAMES: Final = """
SELECT DISTINCT name FROM (
  SELECT unnest([destination, producer_client_id]) AS name FROM messages
  UNION ALL SELECT unnest([destination, consumer_client_id]) FROM deliveries
  UNION ALL SELECT client_id FROM sessions
) WHERE name <> '' LIMIT 10000
"""
_INTERRUPTED: Final = "Query interrupted"
"""What DuckDB makes of the interrupt that Python raises while a query runs."""
_SUM: Final = pa.decimal128(38, 0)
"""DuckDB's type for the sum of integers."""
_NOT_PLAIN: Final = re.compile(r"\b(INTERVAL|(?<!WITH )TIME|TIMETZ|UUID|BIT|UNION|VARIANT)\b")
"""DuckDB's types that some output formats cannot represent."""
_PIVOT: Final = re.compile(r"\s*(?:PIVOT|PIVOT_WIDER|FROM|SELECT)\b", re.IGNORECASE)
_PLACE: Final = re.compile(r"\nLINE (\d+: )(?!\.\.\.).*\n( *)\^")
_UNKNOWN_COLUMN: Final = re.compile(r'Referenced column "([^"]+)" not found in FROM clause')
_OFFSET: Final = re.compile(r"(?<!\")\boffset\b(?!\"| *\d)", re.IGNORECASE)
_LAKE_MARK: Final = "_wireyard"


class Tables:
    """The tables of some inputs, or of a lake, in DuckDB.

    Attributes
    ----------
    names
        The names of all tables, sorted.
    connection
        DuckDB with the tables that queries have named so far; its configuration is locked.
    notes
        Notes on inputs: damage, bytes that are in no row, records that caps left out.
    lost
        Whether bytes of inputs are in no row, because of damage or of an unknown format; known once
        a query has named a table.
    lake
        Whether they are the tables of a lake.
    """

    names: tuple[str, ...]
    lake: bool

    def __init__(self, folders: Sequence[str] = (), files: Sequence[str] = ()) -> None:
        self.notes: list[str] = []
        self.lost = False
        self.connection = _connect(folders, files)
        self._defined: set[str] = set()

    def sql(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pa.Table:
        """Run a query; return its result.

        Parameters
        ----------
        query
            One SELECT or PIVOT statement in DuckDB's SQL.
        parameters
            Values for ``?`` or ``$1``, or by name for ``$name``.

        Raises
        ------
        UsageError
            It is no such statement, names an unknown table or column, or fails.
        LakeDamaged
            It fails because a file of the lake is damaged.
        """
        import duckdb

        given = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
        _check_text([query, *given])
        with self._explaining(query):
            self._define_named(query)
            statements = self.connection.extract_statements(query)
            kinds = {duckdb.StatementType.SELECT}
            if _PIVOT.match(query):  # the values that become columns are found by a query before it
                kinds.add(duckdb.StatementType.MULTI)
            if len(statements) != 1 or statements[0].type not in kinds:
                raise UsageError("a query is one statement that selects")
            result = self.connection.sql(query, params=parameters)
            if result is None:
                raise UsageError("a query is one statement that selects")
            found = self._interruptible(_plain(result).to_arrow_table)
        return _with_integers(_with_unique_names(found))

    def _interruptible(self, run: Callable[[], pa.Table]) -> pa.Table:
        """Run a query of any length, and end it with an interrupt: DuckDB looks for none itself."""
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(run)
            try:
                return found.result()
            except KeyboardInterrupt:
                self.connection.interrupt()
                raise

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run one of our own queries, which needs no check; return its rows.

        Raises
        ------
        UsageError, LakeDamaged
            The query fails.
        """
        _check_text((parameters or {}).values())
        with self._explaining(query):
            self._define_named(query)
            done = self.connection.execute(query, parameters)
            names = [column[0] for column in done.description]
            return [dict(zip(names, row, strict=True)) for row in done.fetchall()]

    def keep(self, name: str, query: str) -> None:
        """Store the result of a query in memory, as a table for later queries."""
        with self._explaining(query):
            self._define_named(query)
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {identifier(name)} AS {query}")

    def columns(self, name: str) -> list[str]:
        """Return the columns of a table, for completion: none of one that only a lake has."""
        return [*_schema(name).names] if name in _table_names() else []

    @cached_property
    def formats(self) -> frozenset[str]:
        """The formats whose packets occur; stored messages are JMQ's."""
        return frozenset(row["name"] for row in self.rows(_OCCURRING))

    def suggestion(self, asked: str) -> str:
        """Return the destination or client that is written most like a name, as an addition."""
        names = [row["name"] for row in self.rows(_NAMES)]
        close = get_close_matches(asked, names, 1)
        return f"; there is '{close[0]}'" if close else ""

    @contextmanager
    def _explaining(self, query: str) -> Iterator[None]:
        """Turn errors of DuckDB into ours; a damaged file is named instead of the query."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            mistakes = duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException
            if not isinstance(error, mistakes):
                for name in self._named(query):
                    self._check_files(name)
            if isinstance(error, duckdb.OutOfMemoryException):
                raise MemoryError(str(error)) from None
            raise UsageError(self._reason(error, query)) from None
        except RuntimeError as error:
            if str(error) != _INTERRUPTED:
                raise
            raise KeyboardInterrupt from None

    def _check_files(self, name: str) -> None:
        """Check the files of a table, if somebody else can have changed them."""

    def _define_named(self, query: str) -> None:
        """Create the views of the tables that a query names."""
        for name in self._named(query):
            if name not in self._defined:
                self._define(name)
                self._defined.add(name)
        for name, shared in SHARED.items():
            if name in query and name not in self._defined:
                if name in SHARED_JMS and self.formats.isdisjoint(JMS_FORMATS):
                    shared = f"SELECT * FROM ({shared}) LIMIT 0"
                self.keep(name, shared)
                self._defined.add(name)

    def _named(self, query: str) -> list[str]:
        words = set(re.findall(r"\w+", query.lower()))
        return [name for name in self.names if name in words]

    @cached_property
    def frame_files(self) -> FrameFiles:
        """The files of captures, with their frame numbers."""
        return FrameFiles(self.rows("FROM files"))

    def _reason(self, error: Exception, query: str) -> str:
        """Return DuckDB's message in one line; of an unknown name, those that there are."""
        import duckdb

        text, _, _ = str(error).partition("\nLINE ")
        text = " ".join(text.split())
        unknown = re.search(r"Table with name (\S+) does not exist", text)
        if unknown:
            close = get_close_matches(unknown[1], self.names, 1)
            near = f"there is {close[0]}, of" if close else "there are"
            return f"there is no table {unknown[1]}; {near} {', '.join(self.names)}"
        if column := _UNKNOWN_COLUMN.search(text):
            named = [self.connection.table(name).columns for name in self._named(query)]
            # A table with this column is not meant: its name is that of another column.
            lacking = [columns for columns in named if column[1] not in columns]
            known = [*dict.fromkeys(chain.from_iterable(lacking))]
            close = get_close_matches(column[1], known, 1)
            near = f"there is {close[0]}" if close else f"there are {', '.join(known)}"
            return f"there is no column {column[1]}; {near}"
        if place := _PLACE.search(str(error)):
            line, _, _ = place[1].partition(":")
            where = len(place[2]) - len(f"LINE {place[1]}") + 1
            text += f" (line {line}, character {where})"
        if isinstance(error, duckdb.ParserException) and _OFFSET.search(query):
            text += '; offset is a word of SQL, so the column is written "offset"'
        return f"SQL: {text}"

    def _define(self, name: str) -> None:
        """Create a table in memory, or a view of its files if they are large."""
        files = self._files(name)
        if not files:
            columns = _sql_columns(_schema(name))
            self.connection.execute(f"CREATE TEMP TABLE {identifier(name)} ({columns})")
            return
        is_small = sum(map(os.path.getsize, files)) <= _FEW_BYTES
        listed = ", ".join(f"'{path.replace(chr(39), chr(39) * 2)}'" for path in files)
        rows = f"FROM read_parquet([{listed}], union_by_name = true)"
        if is_small:  # the count is in the footers
            is_small = self.connection.sql(f"SELECT count(*) {rows}").fetchall()[0][0] <= _FEW_ROWS
        if lacking := _lacking(name, self.connection.sql(rows).columns):
            nulls = (f"NULL::{_sql_type(one.type)} AS {identifier(one.name)}" for one in lacking)
            rows = f"SELECT *, {', '.join(nulls)} {rows}"
        self.connection.execute(
            f"CREATE TEMP {'TABLE' if is_small else 'VIEW'} {identifier(name)} AS {rows}"
        )

    def _files(self, name: str) -> list[str]:
        """Return the Parquet files of a table."""
        raise NotImplementedError


def _check_text(values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, str) and not is_utf8(value):
            raise UsageError(f"{value}: is not UTF-8")


def identifier(name: str) -> str:
    """Return a name as an identifier of SQL."""
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


_SQL_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}


def _sql_columns(fields: Iterable[pa.Field]) -> str:
    """Return columns of Arrow as those of a table or a struct in DuckDB."""
    return ", ".join(f"{identifier(one.name)} {_sql_type(one.type)}" for one in fields)


def _sql_type(kind: pa.DataType) -> str:
    """Return the type of DuckDB that a column of Arrow has there."""
    if pa.types.is_dictionary(kind):
        return _sql_type(kind.value_type)
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({_sql_type(kind.key_type)}, {_sql_type(kind.item_type)})"
    if pa.types.is_struct(kind):
        return f"STRUCT({_sql_columns(kind)})"
    return _SQL_TYPES[kind]


def _plain(result: DuckDBPyRelation) -> DuckDBPyRelation:
    """Convert columns to text if CSV, JSON or Parquet have no type for them."""
    if not any(_NOT_PLAIN.search(str(kind)) for kind in result.types):
        return result
    columns = []
    for number, (name, kind) in enumerate(zip(result.columns, result.types, strict=True), 1):
        value = f"#{number}::VARCHAR" if _NOT_PLAIN.search(str(kind)) else f"#{number}"
        columns.append(f"{value} AS {identifier(name)}")
    return result.project(", ".join(columns))


def _with_unique_names(table: pa.Table) -> pa.Table:
    """Make column names unique: append a number to repeated names."""
    names: list[str] = []
    for name in table.column_names:
        number, unique = 0, name
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    return table.rename_columns(names)


def _with_integers(table: pa.Table) -> pa.Table:
    """Convert sums of integers to integers of 64 bits, if they fit."""
    for place, field in enumerate(table.schema):
        if field.type == _SUM:
            try:
                numbers = table[field.name].cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            table = table.set_column(place, field.name, numbers)
    return table


class _LakeTables(Tables):
    """The tables of a lake, all at one commit."""

    def __init__(self, url: str) -> None:
        self._snapshot = read_lake(url)
        self._remote = "://" in url
        there = [name for name, files in self._snapshot.files.items() if files and is_shown(name)]
        paths = [path for name in there for path in self._snapshot.paths(name)]
        super().__init__(files=() if self._remote else paths)
        self.lake = True
        self.names = tuple(sorted({*_table_names(), *there}))

    def _define(self, name: str) -> None:
        # DuckDB has no network access, so Arrow reads the files of a store.
        if self._remote and self._snapshot.files.get(name):
            rows = self._snapshot.dataset(name)
            fields = [*rows.schema, *_lacking(name, rows.schema.names)]
            self.connection.register(name, rows.replace_schema(pa.schema(fields)))
        else:
            super()._define(name)

    def _files(self, name: str) -> list[str]:
        return self._snapshot.paths(name)

    def _check_files(self, name: str) -> None:
        for file in self._snapshot.files.get(name, ()):
            self._snapshot.check_file(name, file)


class _InputTables(Tables):
    """Tables made from inputs: packets at the first query, facts at the first query of any."""

    def __init__(self, run: InputRun, folder: str) -> None:
        super().__init__([folder])
        self.lake = False
        self._run = run
        self.notes = run.notes
        self.names = tuple(sorted(_table_names()))

    def _files(self, name: str) -> list[str]:
        files = self._run.files(name)
        self.lost = self._run.lost
        return files


@contextmanager
def open_tables(
    inputs: Sequence[str],
    *,
    format: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
    rotated: bool = False,
    cached: bool = False,
    watch: Watch | None = None,
) -> Iterator[Tables]:
    """Open a lake, or captures, streams and stores, for SQL queries.

    The tables have the same columns in both cases. Those of inputs are made when a query first
    names one, and are in a temporary folder until the context is left.

    Parameters
    ----------
    inputs
        A lake; or captures, streams, stores, and folders of them.
    format
        Format of bare streams, and of the streams of captures to read; if None, the first bytes
        decide, and all streams are read.
    decode_as
        Formats by port for captures, as in ``tcp.port==1884,mqtt``.
    keylog
        Key logs with the secrets of captures' TLS connections.
    rotated
        Whether all captures in a folder are one rotated capture.
    cached
        Whether derived tables are kept in the user's cache for the next time, and used if the same
        inputs have not changed since.
    watch
        Shows the progress of reading inputs.

    Raises
    ------
    SourceError
        An input does not exist. One that cannot be read raises it at the first query.
    UsageError
        There are other inputs besides a lake.

    Examples
    --------
    >>> from wireyard.answers import open_tables
    >>> with open_tables(["examples/traffic.pcap"]) as tables:  # doctest: +SKIP
    ...     tables.sql("SELECT destination, count(*) FROM messages GROUP BY ALL")
    """
    lakes = [path for path in inputs if is_lake(path)]
    if lakes:
        if len(inputs) > 1:
            raise UsageError(f"{lakes[0]}: is a lake, which is asked alone")
        yield _LakeTables(lakes[0])
        return
    for path in inputs:
        if not (path == "-" or "://" in path or is_pattern(path) or os.path.exists(path)):
            raise SourceError(f"{path}: there is no such file or folder")
    with TemporaryDirectory(prefix="wireyard-") as folder:
        run = InputRun(
            folder,
            inputs,
            format=format,
            decode_as=decode_as,
            keylog=keylog,
            rotated=rotated,
            cached=cached,
            watch=watch,
        )
        yield _InputTables(run, folder)


def is_lake(path: str) -> bool:
    """Return whether a path or URL is the folder of a lake."""
    if "://" not in path:
        return os.path.isdir(os.path.join(path, _LAKE_MARK))
    with reading(path):
        system, inner = filesystem(path)
        return bool(system.get_file_info(f"{inner}/{_LAKE_MARK}").type == fs.FileType.Directory)


def _connect(folders: Sequence[str], files: Sequence[str]) -> DuckDBPyConnection:
    """Open DuckDB with access to some files, and those in some folders, and to nothing else."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    if folders:
        connection.execute("SET allowed_directories = $1", [[*map(os.path.abspath, folders)]])
    if files:
        connection.execute("SET allowed_paths = $1", [[*files]])
    connection.execute("SET temp_directory = ''")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection
