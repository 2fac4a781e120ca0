"""Listing the files at a path, and paths in Spark's form.

As in Spark's file sources a path is a file, a folder or a pattern. All access goes through the file
layer of ``wireyard.streams.source``, so every store that it supports can be read.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from pyarrow import fs

from wireyard.errors import DecodeError, SourceError, UsageError, WireError
from wireyard.pipeline.inputs.options import Options
from wireyard.streams.source import filesystem, reading, utf8_names

_HIDDEN = (".", "_")
_BRACES = re.compile(r"\{([^{}]*)\}")
_PATTERN = re.compile(r"[*?\[{]")
_URL_PATTERN = re.compile(r"[*\[{]")  # in a URL the question mark begins the query


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read, with its size when it was found."""

    path: str
    size: int
    origin: str = ""
    """The path or pattern that it was found by."""
    modified_ns: int | None = None
    """Time of its last change; None if the store does not report it."""


def absolute(path: str) -> str:
    """Return a path that means the same in every process; a local one without ``file:`` or dots.

    So a file that is named as ``./a``, ``a`` and ``b/../a`` is one source. A `UsageError` is raised
    for a relative path in Spark Connect. The server does not have the folder the client is in; its
    own processes run in a folder of the session, which is removed with it.
    """
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        return path
    if not os.path.isabs(path):
        here = os.getcwd()
        if os.path.basename(here) == os.environ.get("SPARK_JOB_ARTIFACT_UUID"):
            raise UsageError(f"{path}: is relative, which means nothing in Spark Connect")
        path = os.path.join(here, path)
    up, parent, below = f"{path}/".rpartition("/../")
    if parent:  # the parent of a link's target, which is not that of the link
        path = f"{os.path.realpath(f'{up}/..')}/{below}"
    return os.path.normpath(path)


def list_files(options: Options) -> list[FoundFile]:
    """Return the files at the paths of the options, path by path, sorted by name.

    A `SourceError` is raised if there is nothing at a path, or a folder cannot be listed.
    """
    files: list[FoundFile] = []
    for path in options.paths:
        entries = {name: info for name, info in _entries(path, options) if _wanted(info, options)}
        files += [
            FoundFile(name, entries[name].size, path, entries[name].mtime_ns)
            for name in sorted(entries)
        ]
    return files


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards."""
    return bool((_URL_PATTERN if "://" in path else _PATTERN).search(path))


def links_out(files: Iterable[FoundFile]) -> dict[str, str]:
    """Return the paths of local files to which a link leads out of the folder they are found by.

    Each has the path of that link. A file that is named by itself, or by a pattern, has none.
    """
    real = cache(os.path.realpath)
    found = {}
    for file in files:
        folder = file.origin.rstrip("/")
        if "://" in file.path or not file.path.startswith(f"{folder}/"):
            continue
        above, _, name = file.path.rpartition("/")
        is_link = os.path.islink(file.path)
        path = os.path.realpath(file.path) if is_link else f"{real(above)}/{name}"
        if _is_below(real(folder), path):
            continue
        link = folder
        for name in file.path[len(folder) + 1 :].split("/"):
            link = f"{link}/{name}"
            if not _is_below(real(folder), os.path.realpath(link)):
                break
        found[file.path] = link
    return found


def _is_below(folder: str, path: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def is_missing(path: str) -> bool:
    """Return whether there is nothing at `path`."""
    system, inner = filesystem(path)
    return bool(system.get_file_info(inner).type == fs.FileType.NotFound)


def _wanted(info: fs.FileInfo, options: Options) -> bool:
    name_filter, changed = options.name_filter, info.mtime
    before, after = options.modified_before, options.modified_after
    return (
        (name_filter is None or _fits(info.base_name, name_filter))
        and (before is None or changed < before)
        and (after is None or changed > after)
    )


def _fits(name: str, pattern: str) -> bool:
    # Hadoop's patterns negate a set with a caret, Python's with an exclamation mark.
    return any(fnmatchcase(name, each.replace("[^", "[!")) for each in _alternatives(pattern))


def _alternatives(pattern: str) -> Iterator[str]:
    """Yield a pattern without braces: ``{a,b}c`` is ``ac`` and ``bc``."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for choice in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + choice + pattern[braces.end() :])


def _entries(path: str, options: Options) -> Iterator[tuple[str, fs.FileInfo]]:
    """Yield every file at a path, under a name that opens it."""
    root = absolute(path)
    with reading(root), utf8_names(root):
        there = list(_matches(root))
        if not there and not options.ignore_missing:
            raise SourceError(f"{root}: there is no such file or folder")
        for name, info in there:
            if info.type == fs.FileType.Directory:
                yield from _inside(name, options.recursive)
            elif info.type == fs.FileType.Unknown:
                raise SourceError(f"{name}: is a pipe or device, which cannot be read twice")
            else:
                yield name, info


def _matches(root: str) -> Iterator[tuple[str, fs.FileInfo]]:
    """Yield the entry at the path `root`, or else the entries that match it as a pattern."""
    url = "://" in root
    pattern = is_pattern(root)
    # A file's name may look like a pattern; in a URL Arrow does not accept that.
    if not (url and pattern):
        system, inner = filesystem(root)
        info = system.get_file_info(inner)
        if info.type != fs.FileType.NotFound:
            yield root, info
            return
    if not pattern:
        return
    path, mark, query = root.partition("?") if url else (root, "", "")
    for choice in _alternatives(path):
        first = _PATTERN.search(choice)
        slash = choice.rindex("/", 0, first.start() if first else None)
        folder = (choice[:slash] or "/") + mark + query
        system, inner = filesystem(folder)
        for info in _descend(system, inner, choice[slash + 1 :].split("/")):
            yield _join(folder, _below(inner, info)), info


def _descend(system: fs.FileSystem, folder: str, names: list[str]) -> Iterator[fs.FileInfo]:
    """Yield the entries below a folder whose path matches the patterns in `names`."""
    wanted, *rest = names
    for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        hidden = info.base_name.startswith(_HIDDEN) and not wanted.startswith(_HIDDEN)
        if hidden or not _fits(info.base_name, wanted):
            continue
        if not rest:
            yield info
        elif info.type == fs.FileType.Directory:
            yield from _descend(system, info.path, rest)


def _inside(folder: str, recursive: bool) -> Iterator[tuple[str, fs.FileInfo]]:
    """Yield the files in a folder, except those that Spark treats as hidden."""
    system, inner = filesystem(folder)
    if recursive and isinstance(system, fs.LocalFileSystem):
        listed = _walk(system, inner)
    else:
        listed = iter(system.get_file_info(fs.FileSelector(inner, recursive=recursive)))
    for info in listed:
        below = _below(inner, info)
        hidden = any(part.startswith(_HIDDEN) for part in below.split("/"))
        if info.type == fs.FileType.File and not hidden:
            yield _join(folder, below), info


def _walk(system: fs.LocalFileSystem, root: str) -> Iterator[fs.FileInfo]:
    """Yield all entries below a local folder, each folder once, under its shortest name.

    Symbolic links may lead to the same folder from several places, or form a cycle.
    """
    waiting = deque([root])
    seen = {_identity(root)}
    while waiting:
        found = system.get_file_info(fs.FileSelector(waiting.popleft()))
        for info in sorted(found, key=lambda info: str(info.path)):
            if info.type == fs.FileType.Directory:
                identity = _identity(info.path)
                if identity in seen:
                    continue
                seen.add(identity)
                waiting.append(info.path)
            yield info


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _below(folder: str, info: fs.FileInfo) -> str:
    return str(info.path)[len(folder.rstrip("/")) + 1 :]


def _join(folder: str, name: str) -> str:
    """Append a name to a path or URL; the query of a URL stays at its end."""
    base, mark, query = folder.partition("?") if "://" in folder else (folder, "", "")
    return f"{base.rstrip('/')}/{name}{mark}{query}"


@contextmanager
def faults(options: Options, path: str) -> Iterator[None]:
    """Suppress the errors of a file that the options ignore; put others into one line for Spark."""
    try:
        yield
    except DecodeError as error:
        # Spark shows the last line of a traceback; a note would be a line of its own.
        where = " ".join(getattr(error, "__notes__", ()))
        raise WireError(f"{error} {where}") from None
    except SourceError:
        missing = options.ignore_missing and is_missing(path)
        if not (missing or options.ignore_corrupt):
            raise
