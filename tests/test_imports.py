"""Who may import whom: the floors of the house, read from the imports themselves."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"
PACKAGE, RING = SOURCES / "wireyard", SOURCES / "wireyard_ring"
FILES = sorted((*PACKAGE.rglob("*.py"), *RING.rglob("*.py")))

BYTES = {"errors", "layout", "java", "text"}
COLUMNS = {"accelerate", "arena", "arrays", "decimals", "memory", "schema"}
STREAMS = BYTES | COLUMNS | {"formats", "streams"}
ALLOWED = {
    "errors": set[str](),
    "layout": {"errors"},
    "text": set[str](),
    "java": {"errors", "java"},
    "accelerate": set[str](),
    "arrays": set[str](),
    "memory": {"accelerate", "arrays"},
    "decimals": {"accelerate", "arrays", "memory"},
    "arena": {"accelerate", "arrays", "errors"},
    "schema": BYTES | {"arrays"},
    "formats": BYTES | COLUMNS | {"formats"},
    "streams": STREAMS,
    "captures": STREAMS | {"captures"},
    **{face: {"formats"} for face in ("jmq", "gpacket", "mqtt", "rmp")},
    "payloads": STREAMS | {"payloads"},
    "layers": BYTES | {"accelerate", "arena", "arrays", "formats", "layers", "memory", "schema"},
    "api": STREAMS | {"captures", "payloads"},
    "notebook": BYTES | {"formats", "schema"},
    "dissector": BYTES | {"formats"},
    "warm": {"accelerate"},
    "lake": STREAMS | {"captures", "lake"},
    "pipeline": STREAMS | {"captures", "lake", "layers", "payloads", "pipeline"},
    "spark": STREAMS | {"api", "captures", "lake", "layers", "payloads", "pipeline", "spark"},
    "answers": STREAMS | {"answers", "captures", "lake", "layers", "pipeline"},
    "report": {"answers", "errors", "formats", "layers", "report", "streams", "text"},
    "endpoints": {"endpoints", "errors", "formats", "layers"},
    "broker": {"broker", "endpoints", "errors", "formats", "layers"},
    "client": {"client", "endpoints", "errors", "formats", "layers"},
    "replay": STREAMS - COLUMNS
    | {"answers", "broker", "captures", "client", "endpoints", "layers", "replay", "tap"},
    "shadow": {"answers", "layers", "replay", "shadow"},
    "conform": {"answers", "client", "conform", "errors", "formats", "layers", "replay"},
    "tap": {
        "broker",
        "captures",
        "client",
        "endpoints",
        "errors",
        "formats",
        "layers",
        "streams",
        "tap",
    },
    RING.name: {"errors", "layers", RING.name},
}
"""Room to the rooms it may import; `cli`, `__main__` and the lazy `__init__` may import all.

The package of the ring counts as a room.
"""
ANY = {"cli", "__init__", "__main__"}

ONLY_IN = {
    "pyspark": {"spark"},
    "pandas": {"spark"},
    "deltalake": {"lake"},
    "duckdb": {"answers"},
    "asyncio": {RING.name, "broker", "client", "replay", "tap"},
    "click": {"cli"},
    "rich": {"cli", "spark"},
    "jinja2": {"report"},
    "fsspec": {"streams"},
    "google": {"payloads"},
}
"""Packages that have one room; whoever else wants what they do asks that room."""

NUMBA_TYPES = {("numba", "types")}


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Return what a file imports, at its top and in its functions: module, name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its room"
            found += [(node.module or "", alias.name) for alias in node.names]
    return tuple(found)


def room_of(path: Path) -> str:
    if path.is_relative_to(RING):
        return RING.name
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rooms_used(path: Path) -> set[str]:
    """Return the rooms a file imports from; ``from wireyard import java`` is one as well."""
    used = set()
    for module, name in imports(path):
        parts = [*module.split("."), name]
        if parts[0] == RING.name:
            used.add(RING.name)
        if parts[0] == PACKAGE.name and len(parts) > 1 and parts[1]:
            used.add(parts[1])
    return used


def names(path: Path) -> str:
    return str(path.relative_to(SOURCES))


ROOMS = sorted({room_of(path) for path in FILES})


def files_of(room: str) -> list[Path]:
    return [path for path in FILES if room_of(path) == room]


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ANY])
def test_imports_go_down(room: str) -> None:
    assert room in ALLOWED, f"{room} is a new room: say here what it may import"
    up = {names(path): rooms_used(path) - ALLOWED[room] - {room} for path in files_of(room)}
    assert {name: found for name, found in up.items() if found} == {}


def test_only_its_command_knows_the_ring() -> None:
    found = {names(path) for path in FILES if RING.name in rooms_used(path)}
    assert {name for name in found if not name.startswith(RING.name)} == {"wireyard/cli/ring.py"}


def test_the_ring_stands_on_the_messaging_layer() -> None:
    used = {
        module.removeprefix("wireyard.layers.")
        for path in files_of(RING.name)
        for module, _ in imports(path)
        if module.startswith("wireyard.layers")
    }
    assert {module.split(".")[0] for module in used} == {"rmp", "states"}


@pytest.mark.parametrize("room", ROOMS)
def test_packages_stay_in_their_rooms(room: str) -> None:
    for path in files_of(room):
        for module, _ in imports(path):
            top = module.split(".")[0]
            rooms = ONLY_IN.get(top)
            assert rooms is None or room in rooms, f"{top} in {names(path)}"


RUNS_CODE = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
"""Modules that run code of the data that they read."""


def test_no_data_runs_code() -> None:
    """What is read may come from others: a lake, its intermediate files, captures, states."""
    found = {
        names(path)
        for path in FILES
        for module, name in imports(path)
        if {*module.split("."), name} & RUNS_CODE
    }
    assert found == set()


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "accelerate"])
def test_numba_has_one_door(room: str) -> None:
    for path in files_of(room):
        used = {one for one in imports(path) if one[0].split(".")[0] in ("numba", "llvmlite")}
        if room in ("memory", "decimals"):
            used = {one for one in used if one[0] != "llvmlite"}  # instructions are LLVM code
        assert used <= NUMBA_TYPES, names(path)


def formats() -> list[Path]:
    return [path for path in (PACKAGE / "formats").iterdir() if (path / "packet.py").exists()]


def test_formats_do_not_know_each_other() -> None:
    assert formats()
    for folder in formats():
        others = {other.name for other in formats()} - {folder.name}
        for path in folder.glob("*.py"):
            used = {
                module.split(".")[2]
                for module, _ in imports(path)
                if module.startswith("wireyard.formats.")
            }
            assert not used & others, names(path)


def is_fast_path(name: str) -> bool:
    """Return whether a file or a module of a format is part of its compiled columns."""
    return name.removesuffix(".py").endswith(("columns", "kernels"))


def test_packets_and_kernels_meet_in_tests_only() -> None:
    for folder in formats():
        home = f"wireyard.formats.{folder.name}"
        for path in folder.glob("*.py"):
            used = {module for module, _ in imports(path) if module.startswith(f"{home}.")}
            if not is_fast_path(path.name):
                assert not any(map(is_fast_path, used)), names(path)
            elif path.name != "columns.py":
                assert not any(module.startswith(f"{home}.packet") for module in used), names(path)


def test_only_formats_are_known_above_the_formats() -> None:
    """Streams and tables work for every format, so none of them is named there."""
    known = {folder.name for folder in formats()}
    for path in FILES:
        if room_of(path) in ("streams", "schema", "api", "arena", "warm", "captures"):
            for module, _ in imports(path):
                parts = module.split(".")
                assert not (parts[:2] == ["wireyard", "formats"] and known & set(parts)), names(
                    path
                )


def test_the_lowest_rooms_need_the_standard_library_only() -> None:
    for room in ("errors", "layout", "java", "text", "__init__"):
        found = [path for path in FILES if room_of(path) == room]
        assert found
        for path in found:
            tops = {module.split(".")[0] for module, _ in imports(path)}
            assert tops - {"wireyard"} <= set(sys.stdlib_module_names), names(path)


def test_the_scalar_path_of_a_format_needs_no_arrays() -> None:
    """A packet can be decoded where neither numpy nor Arrow is loaded."""
    for folder in formats():
        for path in folder.glob("*.py"):
            if is_fast_path(path.name):
                continue
            tops = {module.split(".")[0] for module, _ in imports(path)}
            assert not tops & {"numpy", "pyarrow", "numba"}, names(path)
