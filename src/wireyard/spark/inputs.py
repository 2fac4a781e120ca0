"""What a run was given to read: which files there are, as they are now, and of which formats."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import pyarrow as pa
from pyarrow import fs

from wireyard.captures.inputs import begins_store, name_the_format, shown_format
from wireyard.captures.magic import is_capture
from wireyard.errors import SourceError, UnknownFormat
from wireyard.formats import get_format
from wireyard.spark.files import FoundFile, absolute, is_missing, list_files
from wireyard.spark.options import Options
from wireyard.streams.source import filesystem, open_source, reading

__all__ = [
    "MISSING",
    "FoundInput",
    "Listing",
    "Looking",
    "distinct",
    "identity_of",
    "is_as_it_was",
    "join_rotated",
    "list_inputs",
    "look_at",
]

_SNIFFED_BYTES = 1 << 16
_EDGE_BYTES = 64 << 10
_READ_BYTES = 1 << 20
_SHOWN_BYTES = 16
MISSING = "is not there any more"
_SETTLED_NS = 2_000_000_000
"""How long ago a file was changed that a later change would show by another time."""
_STATE = ("size", "modified_ns", "edges_crc32")
"""What a stamp always has, but that of several files; it has those of each of them."""
_THREADS = 8  # what is waited for is mostly a store's answer


@dataclass(frozen=True, slots=True)
class FoundInput:
    """A file to read, as it is now."""

    path: str
    """Absolute path or URL; what rows call `source`, and what the input is known by."""
    size: int
    format: str | None
    """Its name with the dialect; None where there is nothing to read, or a capture of any."""
    compressed: bool
    stamp: dict[str, Any]
    """Size, time and the checksum of both ends: if these are as they were, so is the file. Of a
    local file its device and inode too, and the checksum of all of it if that was asked for. By
    what is `kept` a later run recognizes the file without opening it."""
    files: tuple[str, ...] = ()
    """The files of a capture, or of a store one file; none of a bare stream."""
    stored: bool = False
    """Whether it is a file of a store."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files there are, and a note on each that was left out."""

    inputs: list[FoundInput]
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class Looking:
    """How files are looked at."""

    format: str | None = None
    """Name of the format of all of them; by the first bytes of each if None."""
    by_content: bool = False
    """Whether all of each file is read for its checksum, by which copies are known."""
    skip_missing: bool = False
    """Whether a file that is gone before it was looked at is left out."""
    held: Collection[Mapping[str, Any]] = ()
    """Stamps of files that were looked at before. One that the system has not changed since then
    is what it was, and not opened."""


def list_inputs(
    paths: Sequence[str],
    look: Looking = Looking(),
    *,
    inside: str | None = None,
    rotated: bool = False,
) -> Listing:
    """Find and look at every file that the paths stand for, folders in folders too.

    Parameters
    ----------
    inside
        A folder, the lake, whose files are no inputs.
    rotated
        Whether all captures in a folder are one, that went on in a new file again and again.

    Raises
    ------
    SourceError
        There is nothing at a path, or a file cannot be read.
    UnknownFormat
        A file named by itself begins like no format. In a folder such a file is left out.
    """
    roots = tuple(absolute(path) for path in paths)
    found = {file.path: file for file in list_files(Options(paths=roots, recursive=True))}
    kept = [file for file in found.values() if not (inside and file.path.startswith(f"{inside}/"))]
    if not kept:
        raise SourceError(f"{', '.join(paths)}: no file to read there")
    listing = look_at(kept, look, roots)
    if rotated:
        return join_rotated(listing)
    return listing


def look_at(files: Sequence[FoundFile], look: Looking, roots: Collection[str] = ()) -> Listing:
    """Look at files that were found.

    Parameters
    ----------
    roots
        Paths that were named by themselves.

    Raises
    ------
    SourceError
        A file cannot be read.
    UnknownFormat
        A file named by itself begins like no format.
    """
    named = get_format(look.format).label if look.format else None
    known = {tuple(each["file"]): each for stamp in look.held for each in _kept(stamp)}
    with ThreadPoolExecutor(_THREADS) as pool:
        found_again = [_as_before(file, known, named, look.by_content) for file in files]
        new = [file for file, before in zip(files, found_again, strict=True) if before is None]
        looking = pool.map(partial(_look_at, named=named, look=look), new)
        looked_at = [each or next(looking) for each in found_again]
    left_out = [each for each in looked_at if isinstance(each, str)]
    for file, each in zip(files, looked_at, strict=True):
        if isinstance(each, str) and file.path in roots and not each.endswith(MISSING):
            raise UnknownFormat(f"{each}; {name_the_format()}")
    return Listing([each for each in looked_at if isinstance(each, FoundInput)], left_out)


def distinct(
    found: Iterable[FoundInput], known: Mapping[Hashable, str]
) -> tuple[list[FoundInput], list[str]]:
    """Return inputs without those that are others under another name, and a note on each of these.

    Parameters
    ----------
    known
        Names of inputs by their identity, besides those that are found.
    """
    names = dict(known)
    kept, again = [], []
    for each in sorted(found, key=lambda one: (one.path.count("/"), one.path)):
        identity = identity_of(each.stamp)
        if identity is not None and identity in names:
            again.append(f"{each.path}: is the same as {names[identity]}")
            continue
        if identity is not None:
            names[identity] = each.path
        kept.append(each)
    return sorted(kept, key=lambda one: one.path), again


def identity_of(stamp: Mapping[str, Any]) -> Hashable:
    """Return what the stamps of all names of the same bytes have in common; None if nothing."""
    if content := stamp.get("content_sha256"):
        return str(content)
    if file := stamp.get("file"):
        return (*file, *(stamp[name] for name in _STATE))
    return None


def is_as_it_was(stamp: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether an input is as it was when it had another stamp."""
    if "files" in stamp or "files" in before:
        now, then = (one.get("files", ()) for one in (stamp, before))
        return len(now) == len(then) and all(map(is_as_it_was, now, then))
    if "content_sha256" in stamp and "content_sha256" in before:
        return bool(stamp["content_sha256"] == before["content_sha256"])
    return all(stamp.get(name) == before.get(name) for name in _STATE)


def join_rotated(listing: Listing) -> Listing:
    """Make one input of the captures in each folder; it goes by the name of the folder."""
    inputs, again = distinct(listing.inputs, {})
    joined: dict[str, FoundInput] = {}
    for each in inputs:
        captured = each.files and not each.stored
        folder = each.path.rpartition("/")[0] if captured else each.path
        before = joined.get(folder)
        if before is not None:
            joined[folder] = replace(
                before,
                size=before.size + each.size,
                stamp={"files": [*before.stamp["files"], each.stamp]},
                files=(*before.files, *each.files),
                compressed=before.compressed or each.compressed,
            )
        elif captured:
            joined[folder] = replace(each, path=folder, stamp={"files": [each.stamp]})
        else:
            joined[folder] = each
    return Listing(list(joined.values()), listing.left_out + again)


def _look_at(file: FoundFile, named: str | None, look: Looking) -> FoundInput | str:
    """Return a file as an input, or why it is none."""
    try:
        return _looked_at(file, named, look.by_content)
    except SourceError:
        if look.skip_missing and is_missing(file.path):
            return f"{file.path}: {MISSING}"
        raise


def _kept(stamp: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the stamps of the files of an input that have what a later run takes from them."""
    for each in stamp.get("files", [stamp]):
        if "kept" in each:
            yield each


def _as_before(
    file: FoundFile,
    known: Mapping[tuple[int, int], Mapping[str, Any]],
    named: str | None,
    by_content: bool,
) -> FoundInput | None:
    """Return a capture or file of a store as an input, without opening it, if it has not changed.

    The system sets the time of a change itself, so content, size and time are as they were.
    """
    if not known or "://" in file.path:
        return None
    try:
        found = os.stat(file.path)
    except OSError:
        return None
    stamp = known.get((found.st_dev, found.st_ino))
    if stamp is None or by_content != ("content_sha256" in stamp):
        return None
    changed_ns, is_stored, compressed = stamp["kept"]
    if (found.st_ctime_ns, found.st_mtime_ns, found.st_size) != (
        changed_ns,
        stamp["modified_ns"],
        stamp["size"],
    ):
        return None
    whole = file.path, found.st_size, named, compressed, dict(stamp), (file.path,)
    return FoundInput(*whole, stored=is_stored)


def _with_kept(each: FoundInput, changed_ns: int | None) -> FoundInput:
    """Return an input with a stamp that says what it is, if its next change will show by time."""
    if changed_ns is None or changed_ns > time.time_ns() - _SETTLED_NS:
        return each
    return replace(each, stamp={**each.stamp, "kept": [changed_ns, each.stored, each.compressed]})


def _looked_at(file: FoundFile, named: str | None, by_content: bool) -> FoundInput | str:
    changed_ns = None if "://" in file.path else _changed_ns(file.path)
    _, opened, known_size = open_source(file.path)
    head = b""
    with opened, reading(file.path):
        while len(head) < _SNIFFED_BYTES and (more := opened.read(_SNIFFED_BYTES - len(head))):
            head += more
    stamp = _stamp(file, by_content)
    if is_capture(head):
        compressed = known_size is None
        found = FoundInput(file.path, file.size, named, compressed, stamp, (file.path,))
        return _with_kept(found, changed_ns)
    format = shown_format(head, get_format(named) if named else None)
    if format is None and begins_store(head):
        found = FoundInput(file.path, file.size, named, False, stamp, (file.path,), stored=True)
        return _with_kept(found, changed_ns)
    label = format.label if format else named
    if head and label is None:
        shown = head[:_SHOWN_BYTES].hex(" ")
        return f"{file.path}: begins like no format ({shown})"
    return FoundInput(file.path, file.size, label if head else None, known_size is None, stamp)


def _changed_ns(path: str) -> int | None:
    """Return when the system saw the last change of a local file."""
    try:
        return os.stat(path).st_ctime_ns
    except OSError:
        return None  # which the reader of it says


def _stamp(file: FoundFile, by_content: bool) -> dict[str, Any]:
    system, inner = filesystem(file.path)
    with reading(file.path), system.open_input_file(inner) as opened:
        edges = zlib.crc32(opened.read(min(_EDGE_BYTES, file.size)))
        opened.seek(max(file.size - _EDGE_BYTES, 0))
        edges = zlib.crc32(opened.read(min(_EDGE_BYTES, file.size)), edges)
        modified_ns = system.get_file_info(inner).mtime_ns
        found = {"size": file.size, "modified_ns": modified_ns, "edges_crc32": edges}
        if isinstance(system, fs.LocalFileSystem):
            inode = os.stat(inner)
            found["file"] = [inode.st_dev, inode.st_ino]
        if by_content:
            found["content_sha256"] = _checksum(opened, file.size)
    return found


def _checksum(file: pa.NativeFile, size: int) -> str:
    """Return the checksum of the first bytes of a file."""
    checksum = sha256()
    file.seek(0)
    while size and (data := file.read(min(size, _READ_BYTES))):
        checksum.update(data)
        size -= len(data)
    return checksum.hexdigest()
