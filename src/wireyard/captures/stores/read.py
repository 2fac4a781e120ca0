"""Entry points of this package: read a store's folder, or one of its files.

Files are opened for reading only, read once, and closed; a broker's lock is neither checked nor
taken. So a broker may be running. A record that it is writing meanwhile may be read half, and
appears as damaged or as pending.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.kinds import (
    HEAD_BYTES,
    Kind,
    is_store_file,
    kind_of,
    kind_of_place,
)
from wireyard.captures.stores.layout import INCOMPLETE_FOLDER, MESSAGES_FOLDER, ROOTS
from wireyard.errors import SourceError
from wireyard.streams.source import Reading, open_source, reading

MAX_FILE_BYTES: Final = 1 << 34
"""Largest file; one is in memory at a time, with its records."""
_CHUNK_BYTES: Final = 1 << 20
_SHOWN_BYTES: Final = 4


class _Place(NamedTuple):
    name: str
    path: str
    kind: Kind | None
    """None if it has to be detected by content."""
    destination: str | None
    data: bytes | None = None
    """Its content, if it was read already."""


@dataclass(frozen=True, slots=True)
class Store:
    """The files of a store, in the order of their names; each is read during iteration."""

    source: str
    places: tuple[_Place, ...]

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[StoreFile]:
        for place in self.places:
            yield _read(self.source, place)


def is_store(path: str) -> bool:
    """Return whether a path is the folder of a store or of its broker, or a file of a store."""
    try:
        if os.path.isdir(path):
            return bool(_places(path))
        if path == "-" or Path(path).is_fifo():
            return False  # a pipe can be read once
        name, file, _ = open_source(path)
        with file, reading(name):
            return is_store_file(file.peek(HEAD_BYTES))
    except SourceError:
        return False


def read_store(path: str | os.PathLike[str]) -> Store:
    """Return the files of a store.

    `path` is the folder of a broker, of its store, or of a destination in it; or one file, given as
    for `open_source`. `SourceError` is raised if it does not exist, or is neither a store nor a
    file of one. An error with one file of a folder is not raised, but becomes its `failure`. One
    file at a time is in memory, up to `MAX_FILE_BYTES`. Symbolic links are not followed and pipes
    not opened: they are files with a `failure`.
    """
    source = os.fspath(path)
    places = _places(source) if os.path.isdir(source) else [_single_place(source)]
    if not places:
        problem = "is a folder, and no file store of Open MQ; 'wireyard run' reads all in a folder"
        raise SourceError(f"{source}: {problem}")
    return Store(source, tuple(places))


def _single_place(source: str) -> _Place:
    name, file, _ = open_source(source)
    with file, reading(name):
        head = file.peek(HEAD_BYTES)
        if not is_store_file(head):
            shown = head[:_SHOWN_BYTES].hex(" ")
            hint = "; 'wireyard decode' reads captures and streams"
            raise SourceError(f"{name}: begins like no file of a store ({shown}){hint}")
        data = b"".join(_chunks(file, name))
    path = Path(os.path.abspath(source))
    kind = kind_of_place(path.parent.name, path.name)
    return _Place(source, source, kind, _destination(path.parent), data)


def _places(folder: str) -> list[_Place]:
    """Return the files of a store in a folder: those of its root, and those of its destinations."""
    with reading(folder):
        roots = [root for name in ROOTS if (root := Path(folder, name)).is_dir()]
        root = roots[0] if roots else Path(folder)
        if roots and root.is_symlink():
            return [_linked(root, folder)]
        destinations = root / MESSAGES_FOLDER
        is_own = destinations.is_dir() and not destinations.is_symlink()
        inner = sorted(destinations.iterdir()) if is_own else [destinations]
        folders = [path for path in (root / INCOMPLETE_FOLDER, *inner) if path.is_dir()]
        linked = [_linked(path, folder) for path in folders if path.is_symlink()]
        own = [root, *(path for path in folders if not path.is_symlink())]
        places = [place for path in own for place in _places_in(path, folder)]
        return [*places, *linked] if places else []


def _linked(path: Path, top: str) -> _Place:
    return _Place(os.path.relpath(path, top), str(path), Kind.MAP, None)


def _places_in(folder: Path, top: str) -> list[_Place]:
    places = []
    for entry in sorted(os.scandir(folder), key=_order):
        kind = kind_of_place(folder.name, entry.name)
        if kind is not None and not entry.is_dir(follow_symlinks=False):
            name = os.path.relpath(entry.path, top)
            places.append(_Place(name, entry.path, kind, _destination(folder)))
    return places


def _order(entry: os.DirEntry[str]) -> tuple[bool, int, str]:
    """Return the sort key of a file: files with numbers for names come first, by number."""
    name = entry.name
    return not name.isdecimal(), len(name) if name.isdecimal() else 0, name


def _destination(folder: Path) -> str | None:
    """Return the destination of the messages in a folder, as ``Q:name``; its name is ``Qname``."""
    kind, name = folder.name[:1], folder.name[1:]
    is_one = folder.parent.name == MESSAGES_FOLDER and kind in ("Q", "T")
    return f"{kind}:{name}" if is_one else None


def _read(source: str, place: _Place) -> StoreFile:
    chunks: list[bytes] = []
    failure: SourceError | None = None
    if place.data is None:
        try:
            _check_own(place.path)
            name, file, _ = open_source(place.path)
            with file, reading(name):
                chunks.extend(_chunks(file, name))
        except SourceError as error:
            failure = error
    data = b"".join(chunks) if place.data is None else place.data
    kind = place.kind or kind_of(data)
    records = kind.value.read(data)
    return StoreFile(source, place.name, kind, place.destination, data, records, failure)


def _check_own(path: str) -> None:
    with reading(path):
        mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise SourceError(f"{path}: is a link, which is not followed; name it to read it")
    if not stat.S_ISREG(mode):
        raise SourceError(f"{path}: is no file")


def _chunks(file: Reading, name: str) -> Iterator[bytes]:
    size = 0
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > MAX_FILE_BYTES:
            raise SourceError(f"{name}: has over {MAX_FILE_BYTES >> 30} GiB")
        yield chunk
