"""The inputs of a run: find the files, their state and their formats."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import pyarrow as pa
from pyarrow import fs

from wireyard.captures.inputs import begins_store, name_the_format, shown_format
from wireyard.captures.signatures import SNIFFED_BYTES, is_capture
from wireyard.errors import SourceError, UnknownFormat, UsageError
from wireyard.formats import get_format
from wireyard.pipeline.inputs.listing import (
    FoundFile,
    absolute,
    is_missing,
    links_out,
    list_files,
)
from wireyard.pipeline.inputs.options import Options
from wireyard.streams.source import edges_crc32, filesystem, open_source, reading
from wireyard.streams.urls import shown_url

_READ_BYTES = 1 << 20
_UNKNOWN = "begins like no format"
_SHOWN_BYTES = 4
MISSING = "is not there any more"
_SETTLED_NS = 2_000_000_000
"""Age of a file's last change from which on a later change is sure to have another time."""
_STATE = ("size", "modified_ns", "edges_crc32")
"""The items of every stamp of a single file; a stamp of several files has them for each."""
_THREADS = 8  # mostly waiting for a store


@dataclass(frozen=True, slots=True)
class FoundInput:
    """An input to read, as it is now."""

    path: str
    """Absolute path or URL: its identity, and the value of the column `source`."""
    size: int
    format: str | None
    """Label of its format; None for an empty file, or a capture of any formats."""
    compressed: bool
    stamp: dict[str, Any]
    """State by which changes are detected: size, modification time and the checksum of both ends.
    For a local file also its device and inode; with `InputOptions.by_content` the checksum of all
    of it; and `kept`, by which a later run recognizes the file without opening it."""
    files: tuple[str, ...] = ()
    """The files of a capture, or the one file of a store; empty for a bare stream."""
    stored: bool = False
    """Whether it is a file of a store."""
    location: str | None = None
    """Path or URL by which a bare stream is opened, if that is not `path`."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The inputs there are, and a note on each file that was left out."""

    inputs: list[FoundInput]
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Options for examining files."""

    format: str | None = None
    """Name of the format of all files; if None, the first bytes of each decide."""
    by_content: bool = False
    """Whether to read all of each file for a checksum, by which copies are recognized."""
    skip_missing: bool = False
    """Whether to leave out files that are deleted before they are examined."""
    held: Collection[Mapping[str, Any]] = ()
    """Stamps of files that were examined before; a file that has not changed is not opened."""


def list_inputs(
    paths: Sequence[str],
    options: InputOptions = InputOptions(),
    *,
    inside: str | None = None,
    rotated: bool = False,
) -> Listing:
    """Find and examine all files at some paths, nested folders included.

    Files in the folder `inside`, the lake, are left out. `rotated` is whether all captures in a
    folder are one rotated capture.

    A `SourceError` is raised if there is nothing at a path, or a file cannot be read;
    `UnknownFormat` if a file named by itself begins like no format (in a folder it is left out); a
    `UsageError` for a URL with credentials, which the lake would store.
    """
    for path in paths if inside is not None else ():
        if shown_url(path) != path:
            raise UsageError(
                f"{shown_url(path)}: a lake stores the names of its inputs, so a URL has no"
                " credentials; set them in the environment"
            )
    roots = tuple(absolute(path) for path in paths)
    listed = list_files(Options(paths=roots, recursive=True))
    # A file of a folder and of one in it counts as one of the latter, which the user named too.
    found = {file.path: file for file in sorted(listed, key=lambda file: len(file.origin))}
    kept = [file for file in found.values() if not (inside and file.path.startswith(f"{inside}/"))]
    if not kept:
        raise SourceError(f"{', '.join(paths)}: no file to read there")
    listing = examine_files(kept, options, roots)
    if rotated:
        return join_rotated(listing)
    return listing


def examine_files(
    files: Sequence[FoundFile], options: InputOptions, roots: Collection[str] = ()
) -> Listing:
    """Find out which of some files are inputs, and of which formats.

    A link in a folder that leads out of it is not followed: whoever fills a folder does not decide
    which other files are read. `roots` are the paths that the user named. A `SourceError` is raised
    if a file cannot be read, `UnknownFormat` if a file named by itself begins like no format.
    """
    named = get_format(options.format).label if options.format else None
    links = links_out(files)
    outside = [
        f"{link}: is a link out of its folder, which is not followed; name it to read it"
        for link in dict.fromkeys(links.values())
    ]
    files = [file for file in files if file.path not in links]
    known = {tuple(each["file"]): each for stamp in options.held for each in _kept(stamp)}
    with ThreadPoolExecutor(_THREADS) as pool:
        recognized = [_recognized(file, known, named, options.by_content) for file in files]
        new = [file for file, before in zip(files, recognized, strict=True) if before is None]
        examining = pool.map(partial(_examine_or_skip, named=named, options=options), new)
        examined = [each or next(examining) for each in recognized]
    left_out = [*outside, *(each for each in examined if isinstance(each, str))]
    for file, each in zip(files, examined, strict=True):
        if isinstance(each, str) and file.path in roots and not each.endswith(MISSING):
            raise UnknownFormat(f"{each}; {name_the_format()}" if _UNKNOWN in each else each)
    return Listing([each for each in examined if isinstance(each, FoundInput)], left_out)


def distinct(
    found: Iterable[FoundInput], known: Mapping[Hashable, str], held: Collection[str] = ()
) -> tuple[list[FoundInput], list[str]]:
    """Return inputs without duplicates under other names, and a note on each duplicate.

    `known` has the names of further inputs, by identity; names in `held` are preferred to others of
    the same file.
    """
    names = dict(known)
    kept, again = [], []
    for each in sorted(
        found, key=lambda one: (one.path not in held, one.path.count("/"), one.path)
    ):
        identity = identity_of(each.stamp)
        if identity is not None and identity in names:
            again.append(f"{each.path}: is the same as {names[identity]}")
            continue
        if identity is not None:
            names[identity] = each.path
        kept.append(each)
    return sorted(kept, key=lambda one: one.path), again


def identity_of(stamp: Mapping[str, Any]) -> Hashable:
    """Return an identity that is equal for all names of the same file or content; None if none."""
    if content := stamp.get("content_sha256"):
        return str(content)
    if file := stamp.get("file"):
        return (*file, *(stamp[name] for name in _STATE))
    return None


def is_unchanged(stamp: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two stamps of an input show the same state."""
    if "files" in stamp or "files" in before:
        now, then = (one.get("files", ()) for one in (stamp, before))
        return len(now) == len(then) and all(map(is_unchanged, now, then))
    if "content_sha256" in stamp and "content_sha256" in before:
        return bool(stamp["content_sha256"] == before["content_sha256"])
    return all(stamp.get(name) == before.get(name) for name in _STATE)


def is_replaced(path: str, before: Mapping[str, Any]) -> bool:
    """Return whether another local file, or one of another size, has the name of an input."""
    try:
        found = os.stat(path)
    except OSError:
        return False  # it has gone, so the file may have been renamed
    now = found.st_size, [found.st_dev, found.st_ino]
    return "file" in before and now != (before["size"], before["file"])


def join_rotated(listing: Listing) -> Listing:
    """Join the captures in each folder to one input, named like the folder."""
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


def _examine_or_skip(file: FoundFile, named: str | None, options: InputOptions) -> FoundInput | str:
    """Return a file as an input, or the note that it is left out."""
    try:
        return _examine(file, named, options.by_content)
    except SourceError:
        if options.skip_missing and is_missing(file.path):
            return f"{file.path}: {MISSING}"
        raise


def _kept(stamp: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the stamps of an input's files by which a later run can recognize them."""
    for each in stamp.get("files", [stamp]):
        if "kept" in each:
            yield each


def _recognized(
    file: FoundFile,
    known: Mapping[tuple[int, int], Mapping[str, Any]],
    named: str | None,
    by_content: bool,
) -> FoundInput | None:
    """Return an unchanged capture or file of a store as an input, without opening it; else None.

    No program can set the time of the last status change (ctime), so a file with the same one has
    the same content.
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
    """Return an input with `kept` in its stamp, if a later change is sure to have another time."""
    if changed_ns is None or changed_ns > time.time_ns() - _SETTLED_NS:
        return each
    return replace(each, stamp={**each.stamp, "kept": [changed_ns, each.stored, each.compressed]})


def _examine(file: FoundFile, named: str | None, by_content: bool) -> FoundInput | str:
    """Return a file as an input, or a note if it begins like no format."""
    changed_ns = None if "://" in file.path else _changed_ns(file.path)
    _, opened, known_size = open_source(file.path)
    with opened, reading(file.path):
        head = opened.peek(SNIFFED_BYTES)
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
        return f"{file.path}: {_UNKNOWN} ({shown})"
    if not head and opened.damage is not None:
        return f"{file.path}: {opened.damage}"
    return FoundInput(file.path, file.size, label if head else None, known_size is None, stamp)


def _changed_ns(path: str) -> int | None:
    """Return the time of a local file's last status change (ctime)."""
    try:
        return os.stat(path).st_ctime_ns
    except OSError:
        return None  # reading it reports the error


def _stamp(file: FoundFile, by_content: bool) -> dict[str, Any]:
    system, inner = filesystem(file.path)
    with reading(file.path), system.open_input_file(inner) as opened:
        edges = edges_crc32(opened.read_at, file.size)
        modified_ns = system.get_file_info(inner).mtime_ns
        stamp = {"size": file.size, "modified_ns": modified_ns, "edges_crc32": edges}
        if isinstance(system, fs.LocalFileSystem):
            inode = os.stat(inner)
            stamp["file"] = [inode.st_dev, inode.st_ino]
        if by_content:
            stamp["content_sha256"] = _checksum(opened, file.size)
    return stamp


def _checksum(file: pa.NativeFile, size: int) -> str:
    """Return the checksum of the first bytes of a file."""
    checksum = sha256()
    file.seek(0)
    while size and (data := file.read(min(size, _READ_BYTES))):
        checksum.update(data)
        size -= len(data)
    return checksum.hexdigest()
