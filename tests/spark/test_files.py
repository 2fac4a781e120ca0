"""Files at a path: a file, a folder or a pattern, and files that are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from wireyard.errors import SourceError, UsageError
from wireyard.pipeline.inputs.listing import absolute, is_missing, list_files
from wireyard.pipeline.inputs.options import Options

NAMES = ("a.jmq", "b.jmq", "notes.txt", "_half.jmq", ".hidden.jmq", "[x].jmq")
DEEPER = ("day=1/c.jmq", "day=2/d.jmq", "_temporary/e.jmq", "day=2/deep/f.jmq")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with streams, notes, hidden files and folders."""
    for name in (*NAMES, *DEEPER):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "in"


def found(folder: Path, *paths: str, **options: Any) -> list[str]:
    """Return the files of paths in a folder, as names in it."""
    files = list_files(Options(paths=tuple(f"{folder}/{path}" for path in paths), **options))
    for file in files:
        assert file.size == Path(file.path).stat().st_size
    return [os.path.relpath(file.path, folder) for file in files]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", ["[x].jmq", "a.jmq", "b.jmq", "notes.txt"]),
        ("a.jmq", ["a.jmq"]),
        ("_half.jmq", ["_half.jmq"]),
        ("*.jmq", ["[x].jmq", "a.jmq", "b.jmq"]),
        ("_*", ["_half.jmq", "_temporary/e.jmq"]),
        ("[ab].jmq", ["a.jmq", "b.jmq"]),
        ("[^a].jmq", ["b.jmq"]),
        ("[x].jmq", ["[x].jmq"]),
        ("?.jmq", ["a.jmq", "b.jmq"]),
        ("{b,a}.jmq", ["a.jmq", "b.jmq"]),
        ("{a,day=1/c}.{jmq,txt}", ["a.jmq", "day=1/c.jmq"]),
        ("{a,?}.jmq", ["a.jmq", "b.jmq"]),
        ("day=*", ["day=1/c.jmq", "day=2/d.jmq"]),
        ("day=*/?.jmq", ["day=1/c.jmq", "day=2/d.jmq"]),
        ("*/deep", ["day=2/deep/f.jmq"]),
    ],
)
def test_a_path_stands_for_files(folder: Path, path: str, names: list[str]) -> None:
    assert found(folder, path) == names


def test_folders_in_folders_only_when_asked(folder: Path) -> None:
    everything = ["[x].jmq", "a.jmq", "b.jmq", "day=1/c.jmq", "day=2/d.jmq", "day=2/deep/f.jmq"]
    assert found(folder, "", recursive=True) == [*everything, "notes.txt"]
    assert found(folder, "", recursive=True, name_filter="?.jmq") == everything[1:]


def test_paths_keep_their_order(folder: Path) -> None:
    assert found(folder, "b.jmq", "a.jmq", "day=1") == ["b.jmq", "a.jmq", "day=1/c.jmq"]


def test_files_by_name_and_time(folder: Path) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    os.utime(folder / "a.jmq", (noon.timestamp(), noon.timestamp()))
    assert found(folder, "", name_filter="{a*,[n]*}") == ["a.jmq", "notes.txt"]
    assert found(folder, "?.jmq", modified_before=noon.replace(hour=13)) == ["a.jmq"]
    assert found(folder, "?.jmq", modified_before=noon) == []
    assert found(folder, "?.jmq", modified_after=noon) == ["b.jmq"]


@pytest.mark.parametrize("path", ["none.jmq", "*.none", "none/*.jmq", "a.jmq/*"])
def test_nothing_there_is_an_error_unless_ignored(folder: Path, path: str) -> None:
    with pytest.raises(SourceError, match=r"there is no such file|[Nn]ot a directory"):
        found(folder, path)
    if path != "a.jmq/*":
        assert found(folder, path, "a.jmq", ignore_missing=True) == ["a.jmq"]


def test_a_pipe_is_no_file(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(SourceError, match="pipe: is a pipe or device, which cannot be read twice"):
        found(folder, "pipe")
    assert "pipe" not in found(folder, "")


def test_missing_is_what_is_not_there(folder: Path) -> None:
    assert is_missing(f"{folder}/none.jmq")
    assert not is_missing(f"{folder}/a.jmq")


@pytest.mark.parametrize("path", ["file:/a/b", "file:///a/b", "/a/b"])
def test_local_urls_are_paths(path: str) -> None:
    assert absolute(path) == "/a/b"


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("in") == f"{tmp_path}/in"
    assert absolute("s3://bucket/in") == "s3://bucket/in"
    with pytest.raises(SourceError, match=f"{tmp_path}/in: there is no such file or folder"):
        list_files(Options(paths=("in",)))
    # The processes of a session of Spark Connect run in a folder of that name.
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", tmp_path.name)
    assert absolute("/in") == "/in"
    with pytest.raises(UsageError, match=r"in: is relative, which means nothing in Spark Connect"):
        absolute("in")


def test_a_file_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to("../far/deep")
    monkeypatch.chdir(tmp_path / "near")
    for path in (".", "./", "../near", "..//near/.", "link/../../near"):
        assert absolute(path) == f"{tmp_path}/near"
    assert absolute("link/../a") == f"{tmp_path}/far/a"
    assert absolute("link/..") == f"{tmp_path}/far"
    assert absolute("./link/a..b/*.pcap") == f"{tmp_path}/near/link/a..b/*.pcap"


@pytest.mark.parametrize("recursive", [True, False])
def test_a_name_that_is_not_utf_8(folder: Path, recursive: bool) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jmq")).write_bytes(b"x")
    with pytest.raises(SourceError, match="a file name that is not UTF-8; rename the file"):
        found(folder, "", recursive=recursive)


@pytest.fixture
def store() -> Iterator[str]:
    """Return the URL of a folder in a store that only fsspec knows."""
    memory = fsspec.filesystem("memory")
    for name in (*NAMES[:5], *DEEPER):
        memory.pipe(f"/in/{name}", name.encode())
    yield "memory://in"
    memory.rm("/in", recursive=True)


def test_stores_are_read_like_folders(store: str) -> None:
    def names(path: str, **options: Any) -> list[str]:
        files = list_files(Options(paths=(path,), **options))
        assert all(file.size == len(file.path.removeprefix(f"{store}/")) for file in files)
        return [file.path.removeprefix(f"{store}/") for file in files]

    assert names(store) == ["a.jmq", "b.jmq", "notes.txt"]
    assert names(f"{store}/*.jmq") == ["a.jmq", "b.jmq"]
    assert names(f"{store}/day=*/*.jmq") == ["day=1/c.jmq", "day=2/d.jmq"]
    assert names(f"{store}/a.jmq") == ["a.jmq"]
    assert names(store, recursive=True, name_filter="f*") == ["day=2/deep/f.jmq"]
    with pytest.raises(SourceError, match="memory://in/none: there is no such file or folder"):
        names(f"{store}/none")
