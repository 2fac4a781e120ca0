"""What a run was given to read: which files there are, as they are now, and of which formats."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from wireyard.captures.inputs import begins_store, name_the_format, shown_format
from wireyard.captures.magic import is_capture
from wireyard.errors import SourceError, UnknownFormat
from wireyard.formats import get_format
from wireyard.spark.files import FoundFile, absolute, list_files
from wireyard.spark.options import Options
from wireyard.streams.source import filesystem, open_source, reading

__all__ = ["FoundInput", "Listing", "list_inputs"]

_SNIFFED_BYTES = 1 << 16
_EDGE_BYTES = 64 << 10
_SHOWN_BYTES = 16
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
    """Size, time and the checksum of both ends: if these are as they were, so is the file."""
    files: tuple[str, ...] = ()
    """The files of a capture, or of a store one file; none of a bare stream."""
    stored: bool = False
    """Whether it is a file of a store."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files there are, and a note on each that was left out."""

    inputs: list[FoundInput]
    left_out: list[str]


def list_inputs(
    paths: Sequence[str],
    format: str | None = None,
    inside: str | None = None,
    *,
    rotated: bool = False,
) -> Listing:
    """Find and look at every file that the paths stand for, folders in folders too.

    Parameters
    ----------
    format
        Name of the format of all of them; by the first bytes of each if None.
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
    named = get_format(format).label if format else None
    roots = tuple(absolute(path) for path in paths)
    found = {file.path: file for file in list_files(Options(paths=roots, recursive=True))}
    kept = [file for file in found.values() if not (inside and file.path.startswith(f"{inside}/"))]
    if not kept:
        raise SourceError(f"{', '.join(paths)}: no file to read there")
    with ThreadPoolExecutor(_THREADS) as pool:
        looked_at = list(pool.map(partial(_look_at, named=named), kept))
    left_out = [each for each in looked_at if isinstance(each, str)]
    for file, each in zip(kept, looked_at, strict=True):
        if isinstance(each, str) and file.path in roots:
            raise UnknownFormat(f"{each}; {name_the_format()}")
    inputs = [each for each in looked_at if isinstance(each, FoundInput)]
    return Listing(_joined(inputs) if rotated else inputs, left_out)


def _joined(inputs: Sequence[FoundInput]) -> list[FoundInput]:
    """Make one input of the captures in each folder; it goes by the name of the folder."""
    joined: dict[str, FoundInput] = {}
    for each in inputs:
        captured = each.files and not each.stored
        folder = each.path.rpartition("/")[0] if captured else each.path
        before = joined.get(folder)
        if before is not None:
            stamp = {"files": [*before.stamp["files"], each.stamp]}
            size, files = before.size + each.size, (*before.files, *each.files)
            joined[folder] = replace(before, size=size, stamp=stamp, files=files)
        elif captured:
            joined[folder] = replace(each, path=folder, stamp={"files": [each.stamp]})
        else:
            joined[folder] = each
    return list(joined.values())


def _look_at(file: FoundFile, named: str | None) -> FoundInput | str:
    """Return a file as an input, or why it is none."""
    _, opened, known_size = open_source(file.path)
    head = b""
    with opened, reading(file.path):
        while len(head) < _SNIFFED_BYTES and (more := opened.read(_SNIFFED_BYTES - len(head))):
            head += more
    stamp = _stamp(file)
    if is_capture(head):
        compressed = known_size is None
        return FoundInput(file.path, file.size, named, compressed, stamp, (file.path,))
    format = shown_format(head, get_format(named) if named else None)
    if format is None and begins_store(head):
        return FoundInput(file.path, file.size, named, False, stamp, (file.path,), stored=True)
    found = format.label if format else named
    if head and found is None:
        shown = head[:_SHOWN_BYTES].hex(" ")
        return f"{file.path}: begins like no format ({shown})"
    return FoundInput(file.path, file.size, found if head else None, known_size is None, stamp)


def _stamp(file: FoundFile) -> dict[str, Any]:
    system, inner = filesystem(file.path)
    with reading(file.path), system.open_input_file(inner) as opened:
        edges = zlib.crc32(opened.read(min(_EDGE_BYTES, file.size)))
        opened.seek(max(file.size - _EDGE_BYTES, 0))
        edges = zlib.crc32(opened.read(min(_EDGE_BYTES, file.size)), edges)
        modified_ns = system.get_file_info(inner).mtime_ns
    return {"size": file.size, "modified_ns": modified_ns, "edges_crc32": edges}
