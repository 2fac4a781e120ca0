"""A lake is input that others may have written: nothing outside of it is touched, and no record is
believed unchecked."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.test_lake import AFTER, first_commit, recorded, second_commit, stage
from wireyard.errors import LakeDamaged, LakeError, SourceError
from wireyard.lake import read_lake
from wireyard.lake.ledgers import LedgerSum, captured_streams
from wireyard.lake.parts import PartFile, read_footer_table
from wireyard.lake.writer import Change, Input, Lake

RUN = "0123456789abcdef" * 2
TEXT = "of somebody else"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake of two commits; beside it is a folder of somebody else."""
    folder = tmp_path / "victim" / "messages"
    folder.mkdir(parents=True)
    for path in (tmp_path / "victim" / ".notes", folder / "x.parquet", folder / "notes.txt"):
        path.write_text(TEXT)
    with Lake.open(str(tmp_path / "lake")) as lake:
        first_commit(lake)
        second_commit(lake)
    return tmp_path / "lake"


def victims(lake: Path) -> dict[str, bytes]:
    """Return the files of somebody else."""
    folder = lake.parent / "victim"
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def newest_record(lake: Path) -> Path:
    return sorted((lake / "_wireyard" / "commits").iterdir())[-1]


def edit(lake: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the newest record, and write it as the version that has no checksum."""
    path = newest_record(lake)
    record = json.loads(path.read_bytes())
    record.pop("crc32", None)
    change(record)
    path.write_text(json.dumps({**record, "record": 5}))


def moved(lake: Path, name: str) -> None:
    """Move a folder of a lake into that of somebody else, and link to that."""
    folder, victim = lake / "_wireyard" / name, lake.parent / "victim"
    shutil.copytree(folder, victim, dirs_exist_ok=True)
    shutil.rmtree(folder)
    folder.symlink_to(victim)


# --- links and names that lead out of the lake ----------------------------------------------


def link_in_data(lake: Path) -> None:
    (lake / "_wireyard" / "data" / RUN).symlink_to(lake.parent / "victim")


def link_deep_in_data(lake: Path) -> None:
    (folder,) = (lake / "_wireyard" / "data").iterdir()
    (folder / "more").symlink_to(lake.parent / "victim")


def link_for_data(lake: Path) -> None:
    moved(lake, "data")


def link_for_commits(lake: Path) -> None:
    moved(lake, "commits")


def link_for_lock(lake: Path) -> None:
    (lake / "_wireyard" / "lock").unlink()
    (lake / "_wireyard" / "lock").symlink_to(lake.parent / "victim" / "new")


def link_for_views(lake: Path) -> None:
    moved(lake, "views")


def link_for_all(lake: Path) -> None:
    shutil.move(lake / "_wireyard", lake.parent / "elsewhere")
    (lake / "_wireyard").symlink_to(lake.parent / "elsewhere")


def removed_with_dots(lake: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        at = "2020-01-01T00:00:00Z"
        file = {"name": "x.parquet", "run": "../../../victim", "rows": 1, "bytes": 1, "crc32": 1}
        record["removed"] = [{"table": "messages", "removed_at": at, **file}]

    edit(lake, change)


def table_with_dots(lake: Path) -> None:
    edit(lake, lambda record: record["tables"].update({"../victim": []}))
    (lake / "_wireyard" / "newest").unlink()


WAYS: dict[Callable[[Path], None], str] = {
    link_in_data: f"/_wireyard/data/{RUN} is a link, which may lead out of the lake",
    link_deep_in_data: "/more is a link, which may lead out of the lake",
    link_for_data: "/_wireyard/data is a link, which may lead out of the lake",
    link_for_commits: "/_wireyard/commits is a link, which may lead out of the lake",
    link_for_lock: "/_wireyard/lock is a link, which may lead out of the lake",
    link_for_views: "/_wireyard/views is a link, which may lead out of the lake",
    link_for_all: "/_wireyard is a link, which may lead out of the lake",
    removed_with_dots: "the record of commit 2 is damaged",
    table_with_dots: "the record of commit 2 is damaged",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_outside_is_touched(lake: Path, way: Callable[[Path], None]) -> None:
    way(lake)
    before = victims(lake)
    with pytest.raises(LakeError, match=WAYS[way]) as caught, Lake.open(str(lake)) as opened:
        opened.expire(timedelta(0))
    assert "\n" not in str(caught.value)
    assert victims(lake) == before


def place_of_commits(lake: Path) -> Path:
    return newest_record(lake).with_name("00000009.json")


def place_of_data(lake: Path) -> Path:
    (path,) = (lake / "_wireyard" / "data").glob("*/grown/d.parquet")
    return path


def place_of_lock(lake: Path) -> Path:
    return lake / "_wireyard" / "lock"


PLACES = (place_of_commits, place_of_data, place_of_lock)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("is_device", [False, True])
def test_no_pipe_and_no_device_is_read(
    lake: Path, place: Callable[[Path], Path], is_device: bool
) -> None:
    """To open a pipe that nobody writes to, or to read /dev/zero, would never end."""
    path = place(lake)
    path.unlink(missing_ok=True)
    try:
        kind = stat.S_IFCHR if is_device else stat.S_IFIFO
        os.mknod(path, kind | 0o600, os.makedev(1, 5) if is_device else 0)
    except PermissionError:
        pytest.skip("devices are made by the super-user only")
    problem = rf"^{path} is neither a file nor a folder; remove it$"
    with pytest.raises(LakeError, match=problem), Lake.open(str(lake)):
        pass
    with pytest.raises(SourceError, match=problem):
        read_lake(str(lake))


def test_a_record_with_holes_is_not_read(lake: Path) -> None:
    with place_of_commits(lake).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(LakeDamaged, match="the record of commit 9 is damaged"):
        read_lake(str(lake))
    with Lake.open(str(lake), damaged=True) as opened:
        assert opened.damaged_commits == [9]


def test_a_lake_without_a_number_for_another_commit(lake: Path) -> None:
    """The record of a commit with one more digit would be found by nobody."""
    last = 10**18 - 1
    edit(lake, lambda record: record.update(commit=last))
    newest_record(lake).rename(newest_record(lake).with_name(f"{last}.json"))
    with Lake.open(str(lake)) as opened:
        with pytest.raises(LakeError, match="nothing was added: the lake has no room"):
            second_commit(opened)
        assert opened.numbers()[-1] == last


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("delta", "_wireyard/delta.json"),
        ("iceberg", "_wireyard/iceberg.json"),
        ("iceberg", "grown/metadata/version-hint.text"),
    ],
)
def test_nothing_is_written_into_a_file_that_has_another_name(
    tmp_path: Path, kind: str, place: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    lake, victim = tmp_path / "lake", tmp_path / "victim"
    with Lake.open(str(lake), table_format=kind) as opened:
        first_commit(opened)
    victim.write_text(TEXT)
    (lake / place).unlink()
    (lake / place).hardlink_to(victim)
    with Lake.open(str(lake)) as opened:
        second_commit(opened)
    assert victim.read_text() == TEXT
    assert (lake / place).read_text().isdecimal()


def test_other_things_in_a_lake_stay(lake: Path) -> None:
    """Only files and folders with the names that a lake gives are deleted."""
    own = [lake / "_wireyard" / name for name in ("data/notes/mine", "views/mine/x", ".mine")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT)
    with Lake.open(str(lake)) as opened:
        opened.expire(timedelta(0))
    assert [path.read_text() for path in own] == [TEXT] * len(own)
    assert recorded(str(lake)) == AFTER


@pytest.mark.parametrize("name", ["grown/mine.parquet", "grown/d.parquet", "grown"])
def test_what_is_in_the_place_of_a_table(lake: Path, name: str) -> None:
    """A folder is replaced by a link only if all in it are copies of files of the table."""
    (lake / "grown").unlink()
    (lake / "_wireyard" / "newest").unlink()
    mine = lake / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text(TEXT)
    problem = r"/grown has not been written by the lake; move it away"
    with pytest.raises(LakeError, match=problem), Lake.open(str(lake)):
        pass
    assert mine.read_text() == TEXT
    assert recorded(str(lake)) == AFTER


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("place", ["", "/_delta_log", "/metadata", "/day=2020-01-01"])
def test_links_in_open_tables(tmp_path: Path, kind: str, place: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    lake, victim = tmp_path / "lake", tmp_path / "victim"
    with Lake.open(str(lake), table_format=kind) as opened:
        first_commit(opened)
    victim.mkdir()
    folder = lake / f"grown{place}"
    if folder.exists():
        shutil.copytree(folder, victim, dirs_exist_ok=True)
        shutil.rmtree(folder)
    folder.symlink_to(victim)
    (victim / "part-x.parquet").write_text(TEXT)
    before = sorted(victim.rglob("*"))
    with pytest.raises(LakeError, match="is a link, which may lead out"), Lake.open(str(lake)) as a:
        second_commit(a)
    with pytest.raises(LakeError, match="is a link, which may lead out"), Lake.open(str(lake)) as a:
        a.expire(timedelta(0))
    assert sorted(victim.rglob("*")) == before


@pytest.mark.parametrize("content", ["[", "{}", '"x"', "99", "[" * 100_000, "null"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_mark_of_open_tables_is_not_believed(tmp_path: Path, kind: str, content: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    with Lake.open(str(tmp_path), table_format=kind) as opened:
        first_commit(opened)
    mark = tmp_path / "_wireyard" / f"{kind}.json"
    mark.write_text(content)
    with Lake.open(str(tmp_path)):
        assert mark.read_text() == "1"


@pytest.mark.parametrize(
    "change",
    [
        {"location": "file:///elsewhere"},
        {"properties": {"write.py-location-provider.impl": "antigravity.X"}},
        {"properties": 7},
        {"snapshots": "x"},
        {"format-version": 77},
    ],
)
def test_metadata_of_iceberg_is_not_believed(tmp_path: Path, change: dict[str, Any]) -> None:
    pytest.importorskip("pyiceberg")
    with Lake.open(str(tmp_path), table_format="iceberg") as opened:
        first_commit(opened)
    path = max((tmp_path / "grown" / "metadata").glob("v*.metadata.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with (
        pytest.raises(LakeError, match="iceberg table 'grown': its metadata is damaged") as caught,
        Lake.open(str(tmp_path)) as opened,
    ):
        second_commit(opened)
    assert "\n" not in str(caught.value)


def test_a_seal_is_not_believed(tmp_path: Path) -> None:
    for content in ("{", '{"rows": "x", "crc32": 1}', "[]", '{"rows": -1, "crc32": 1}'):
        with Lake.open(str(tmp_path)) as opened:
            (name,) = stage(opened, "grown", ["one"])
            Path(opened.staged("grown", f".{name}.seal")).write_text(content)
            gone = {"grown": opened.files.get("grown", [])}
            opened.commit(Change(remove=gone, append={"grown": [name]}))
        read_lake(str(tmp_path), checksums=True)


# --- records --------------------------------------------------------------------------------

_STAMP = {"size": 3, "modified_ns": 4, "edges_crc32": 5, "file": [6, 7], "kept": [8, False, True]}


def sample(tmp_path: Path) -> bytes:
    """Return a small record that has something in every member."""
    with Lake.open(str(tmp_path)) as lake:
        (first,) = stage(lake, "messages", ["first"])
        (second,) = stage(lake, "messages", ["second"])
        sums = {"mqtt": LedgerSum(1, 0, 9, 9)}
        stamps: dict[str, dict[str, Any]] = {
            "/in/a": _STAMP,
            "/in/b": {"files": [_STAMP, _STAMP]},
            "/in/c": {"growing": 7},
        }
        inputs = [
            Input(source, "mqtt", stamp, sums, {"messages": [first]})
            for source, stamp in stamps.items()
        ]
        lake.commit(Change(tuple(inputs), append={"messages": [first, second]}))
        lake.commit(Change(remove={"messages": [second]}))
    return newest_record(tmp_path).read_bytes()


def members(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value in a record with the way to it."""
    if path:
        yield path, value
    for key, each in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from members(each, (*path, key))


def replaced(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a record with another value in one place; ``...`` removes it."""
    again = json.loads(json.dumps(record))
    within = again
    for key in path[:-1]:
        within = within[key]
    if value is ...:
        del within[path[-1]]
    else:
        within[path[-1]] = value
    return again


WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    1 << 70,
    "",
    "../x",
    "a\0b",
    "\ud800",
    [],
    [[]],
    {},
    {"x": 1},
    ...,
)
MAY_BE: dict[tuple[str], tuple[Any, ...]] = {
    ("format",): (None, "", "../x", "a\0b"),
    ("stamp",): ({},),
    ("ledger",): ({},),
    ("files",): ({}, [], ...),  # of an input, or of the stamp of a capture in no file
    ("inputs",): ([],),
    ("messages",): ([], ...),  # places of files
    ("mqtt",): (...,),
    ("partition_by",): (None,),
    ("removed",): ([],),
    ("modified_ns",): (None, -1, 1 << 70),
    ("size",): (-1, 1 << 70),
    ("edges_crc32",): (-1, 1 << 70),
    ("growing",): (-1, 1 << 70, ...),
    ("kept",): (...,),
}
"""Values that are not wrong, by the last name on the way to them."""


def test_every_member_of_a_record_has_its_type(tmp_path: Path) -> None:
    """Every value is replaced by each of several wrong ones, and is left out."""
    record = json.loads(sample(tmp_path))
    del record["crc32"]
    path = newest_record(tmp_path)
    tried = 0
    for way, before in members({**record, "record": 5}):
        names = [key for key in way if isinstance(key, str)]
        fine = MAY_BE.get((names[-1],), ())
        if type(before) is bool:
            fine = (True,)
        of_stamp = "stamp" in way and isinstance(way[-1], int)
        for value in WRONG:
            in_list = isinstance(way[-1], int) and value is ...
            if any(type(value) is type(one) and value == one for one in (*fine, before)):
                continue
            if in_list or (of_stamp and value in (-1, 1 << 70) and before is not False):
                continue  # a shorter list is a list, and any number identifies a file
            path.write_text(json.dumps(replaced({**record, "record": 5}, way, value)))
            with pytest.raises(LakeError) as caught:
                read_lake(str(tmp_path), check=False)
                pytest.fail(f"{way} may be {value!r}")
            assert "\n" not in str(caught.value)
            tried += 1
    assert tried > 500


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"null", b"[" * 100_000, b'{"record": NaN}', b'{"record": "6"}', b"\xff{}"],
)
def test_what_is_no_record(tmp_path: Path, content: bytes) -> None:
    sample(tmp_path)
    newest_record(tmp_path).write_bytes(content)
    with pytest.raises(LakeDamaged, match="the record of commit 2 is damaged"):
        read_lake(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["tables"].update({"x; COPY (SELECT 1) TO 'y'": []}),
        lambda record: record["tables"].update({"(x+x+)+y": []}),
        lambda record: record["tables"].update({"Messages": []}),
        lambda record: record["tables"]["messages"].append(record["tables"]["messages"][0]),
        lambda record: record["tables"]["messages"].append(_without_table(record["removed"][0])),
        lambda record: record["tables"]["messages"][0].update({"name": "day=2020-99-99/x.parquet"}),
        lambda record: record["tables"]["messages"][0].update({"name": "a\nb.parquet"}),
        lambda record: record["tables"]["messages"][0].update({"name": "day=../x.parquet"}),
        lambda record: record["inputs"].append(record["inputs"][0]),
        lambda record: record["inputs"][0].update({"source": "not/absolute"}),
        lambda record: record["inputs"][0]["files"].update({"messages": [7]}),
        lambda record: record["inputs"][0]["files"].update({"deliveries": [0]}),
        lambda record: record["inputs"][0]["stamp"].update({"more": 1}),
        lambda record: record["inputs"][0]["ledger"]["mqtt"].pop(),
        lambda record: record.update({"committed_at": "0001-01-01T00:00:00+23:59"}),
        lambda record: record.update({"commit": 1}),
        lambda record: record.update({"more": 1}),
        lambda record: record.update({"table_format": "csv"}),
    ],
)
def test_rules_of_records(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    sample(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(LakeDamaged, match="the record of commit 2 is damaged"):
        read_lake(str(tmp_path), check=False)


def _without_table(removed: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in removed.items() if key not in ("table", "removed_at")}


def test_every_changed_byte_of_a_record_is_found(tmp_path: Path) -> None:
    record = sample(tmp_path)
    path = newest_record(tmp_path)
    for place, byte in enumerate(record):
        for changed in {byte ^ 1, byte ^ 128, ord("0"), ord(" ")} - {byte}:
            path.write_bytes(record[:place] + bytes([changed]) + record[place + 1 :])
            with pytest.raises((LakeError, SourceError)):
                read_lake(str(tmp_path), check=False)
    for size in range(len(record)):
        path.write_bytes(record[:size])
        with pytest.raises(LakeDamaged):
            read_lake(str(tmp_path), check=False)


def test_the_version_before_is_read(tmp_path: Path) -> None:
    sample(tmp_path)
    now = read_lake(str(tmp_path)).record
    edit(tmp_path, lambda record: None)
    assert read_lake(str(tmp_path)).record == now
    with Lake.open(str(tmp_path)) as lake:
        lake.commit(Change(forget=frozenset({"/in/c"})))
    assert json.loads(newest_record(tmp_path).read_bytes())["record"] == 6
    assert read_lake(str(tmp_path)).inputs.keys() == {"/in/a", "/in/b"}


def test_times_at_the_end_of_time(tmp_path: Path) -> None:
    sample(tmp_path)
    edit(
        tmp_path,
        lambda record: record["removed"][0].update({"removed_at": "9999-12-31T23:59:59Z"}),
    )
    with Lake.open(str(tmp_path)) as lake:
        (removed,) = lake.record.removed
        assert removed.removed_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
        lake.commit(Change())


def test_no_record_is_written_that_cannot_be_read(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
        for source in ("", "in/a", "/in/a\0b", "/in/\udc80"):
            with pytest.raises(LakeError, match="nothing was added: ") as caught:
                lake.commit(Change((Input(source, None, {}),)))
            assert "\n" not in str(caught.value)
        names = stage(lake, "grown", ["it's"])
        with pytest.raises(LakeError, match="is no name that a record may have"):
            lake.commit(Change(append={"grown": names}))
    assert read_lake(str(tmp_path)).commits == 1


@pytest.mark.parametrize("name", ["000000003.json", "1" * 30 + ".json", "3.json", "00000003.txt"])
def test_names_of_records(lake: Path, name: str) -> None:
    (lake / "_wireyard" / "commits" / name).write_text("{")
    assert recorded(str(lake)) == AFTER
    with Lake.open(str(lake)) as opened:
        assert opened.commits == 2


@pytest.mark.parametrize("encoded", [b"", b"AAAA", b"x", b"/////w==", None])
def test_tables_in_footers_are_not_believed(tmp_path: Path, encoded: bytes | None) -> None:
    whole = pa.table({"x": [1]})
    file = PartFile(str(tmp_path / "one.parquet"), whole.schema)
    file.write(whole.to_batches()[0])
    file.put_in_footer("mine", whole)
    file.close()
    path = str(tmp_path / "one.parquet")
    assert read_footer_table(path, "mine", whole.schema) == whole
    assert read_footer_table(path, "mine", pa.schema([("x", pa.string())])) is None
    metadata = pq.read_metadata(path).metadata[b"wireyard.mine"]
    changed = metadata[:40] + b"AAAA" + metadata[44:] if encoded is None else encoded
    pq.write_table(whole.replace_schema_metadata({"wireyard.mine": changed}), path)
    assert read_footer_table(path, "mine", whole.schema) is None


def test_a_file_that_is_none_of_its_table(tmp_path: Path) -> None:
    path = tmp_path / "streams.parquet"
    tables = ({"x": [1]}, {"source": [1], "transport": ["tcp"]}, {"source": ["/a"], "x": [1]}, None)
    for table in tables:
        if table is None:
            path.write_bytes(b"x" * 100)
        else:
            pq.write_table(pa.table(table), path)
        with pytest.raises(LakeDamaged, match="is no file of the table 'streams'") as caught:
            list(captured_streams([str(path)], ["/a"], ("stream",)))
        assert "\n" not in str(caught.value)
