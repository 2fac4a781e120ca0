"""Kernels compile when first called, once; their code is kept, found again, and never stale."""

from __future__ import annotations

import ast
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import llvmlite.binding as llvm
import numpy as np
import pytest

from wireyard import accelerate, warm
from wireyard.accelerate import (
    COMPILED,
    cache_folder,
    compiling,
    declare,
    find_kernels,
    inlined,
    kernel,
)
from wireyard.accelerate.caching import BASELINES, fitting_baseline
from wireyard.arrays import Bools, Bytes, Grid, Int32s, ReadOnly
from wireyard.memory import load_u8

compiled_only = pytest.mark.skipif(not COMPILED, reason="NUMBA_DISABLE_JIT is set")

# A kernel with a piece and a constant from other files, run and reported on: how many kernels were
# compiled, here or by the process that is started for it.
PROBE = """
import json, sys
import numpy as np
from wireyard import accelerate
from wireyard.accelerate import compiling, kernel
from wireyard.arrays import Bytes, ReadOnly
from wireyard.probe_parts import STEP, first_byte

@kernel
def probe(data: ReadOnly[Bytes]) -> int:
    return first_byte(data) * STEP

def report():
    lines, compiled = [], []
    accelerate.set_notice(lines.append)
    compiling._NOTICE_AFTER_S = 0.0
    really = compiling.compile_missing
    def compile_missing(report, modules):
        def note(progress):
            compiled.extend([progress.name] if progress.name else [])
            report(progress)
        return really(note, modules=modules)
    compiling.compile_missing = compile_missing
    result = probe(np.frombuffer(b"\\x07", np.uint8))
    origin = "plain"
    if accelerate.COMPILED:
        origin = probe.origin
        compiled.extend(["here"] * (origin == "compiled"))
    print(json.dumps(
        {"result": result, "compiled": len(compiled), "origin": origin, "lines": lines}
    ))
"""
PARTS = """
from wireyard.accelerate import inlined
from wireyard.memory import load_u8

STEP = 3

@inlined
def first_byte(data):
    return load_u8(data, 0)
"""


def make_site(folder: Path) -> Path:
    """Make a folder with a copy of the package, the probe in it instead of its kernels."""
    source = Path(accelerate.__file__).parents[1]
    package = folder / "site" / "wireyard"
    # The probe is the only kernel, so that nothing else is compiled with it.
    others = "__pycache__", "compiled", "*_kernels.py", "arena.py", "formats", "captures", "layers"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns(*others))
    (package / "probe.py").write_text(PROBE)
    (package / "probe_parts.py").write_text(PARTS)
    return package.parent


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package that has the probe."""
    return make_site(tmp_path)


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package whose probe has been compiled."""
    site = make_site(tmp_path_factory.mktemp("kept"))
    assert run(site)["compiled"] == 1
    return site


@pytest.fixture
def kept_site(kept_once: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, for a test to change; it is as good as the first."""
    copied: Path = shutil.copytree(kept_once, tmp_path / "site")
    return copied


NOWHERE = """
from wireyard.accelerate import caching
caching.cache_folder = lambda source: None
"""
"""Have no folder that can be written to: chmod would not stop a superuser."""


def run(site: Path, before: str = "", **environment: str) -> dict[str, Any]:
    """Run the probe in its own process, after the lines `before`, and return what it reports."""
    code = f"{before}\nfrom wireyard.probe import report; report()"
    found: dict[str, Any] = json.loads(python(site, code, **environment))
    return found


def python(site: Path, code: str, *words: str, **environment: str) -> str:
    """Run Python with a home and a temporary folder of its own; return what it printed."""
    home, temporary = site.parent / "home", site.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    keep = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    keep.pop("XDG_CACHE_HOME", None)
    keep |= {"PYTHONPATH": str(site), "HOME": str(home), "TMPDIR": str(temporary)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=keep, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# Where a process finds the code of the probe, for each of some changed files. A process that looks
# is forked from one that has nothing of the package yet.
LOOK = """
import json, os, sys
from pathlib import Path

def look():
    from wireyard.accelerate.caching import find_code
    from wireyard.probe import probe
    found = find_code(probe)
    return "nowhere" if found is None else found[1]

for path, text in json.loads(sys.argv[1]):
    before = Path(path).read_bytes()
    Path(path).write_bytes(bytes.fromhex(text))
    child = os.fork()
    if child == 0:
        print(look(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    Path(path).write_bytes(before)
"""


def found_with(site: Path, changed: list[tuple[Path, bytes]]) -> list[str]:
    """Return where the code of the probe is found while a file has other bytes, for each file."""
    words = json.dumps([(str(path), data.hex()) for path, data in changed])
    # What changed within a second to as many bytes would be taken from Python's compiled file.
    return python(site, LOOK, words, PYTHONDONTWRITEBYTECODE="1").splitlines()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel"))


# --- declaring and calling ------------------------------------------------------------------


@inlined
def twice(value: int) -> int:
    return 2 * value


@kernel
def move_one(data: ReadOnly[Bytes], out: Bytes) -> int:
    out[0] = load_u8(data, 0)
    return twice(load_u8(data, 0))


def test_a_kernel_and_its_piece() -> None:
    out = np.zeros(1, np.uint8)
    assert move_one(np.frombuffer(b"\xff", np.uint8), out) == 510
    assert out[0] == 255


@compiled_only
def test_nothing_is_compiled_before_the_first_call_and_for_one_signature_then() -> None:
    @kernel
    def size_of(data: ReadOnly[Bytes]) -> int:
        return data.size

    assert cast("Any", size_of).origin is None
    writable = np.zeros(5, np.uint8)
    assert size_of(writable) == 5
    assert size_of(np.frombuffer(b"abc", np.uint8)) == 3
    assert cast("Any", size_of).origin is not None
    with pytest.raises(TypeError):
        size_of(np.zeros(5, np.int64))


@compiled_only
def test_threads_may_race_for_the_first_call() -> None:
    @kernel
    def next_of(value: int) -> int:
        return value + 1

    barrier = threading.Barrier(4)
    found: list[int] = []

    def call(value: int) -> None:
        barrier.wait()
        found.append(next_of(value))

    threads = [threading.Thread(target=call, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2, 3, 4]


Words = np.ndarray[tuple[int, int], np.dtype[np.uint64]]


class Columns(NamedTuple):
    """A record of a kernel."""

    rows: int
    grid: Grid
    flags: Bools
    short: Int32s


@kernel
def use_all(flag: bool, small: int, words: ReadOnly[Words], columns: Columns, out: Bytes) -> int:
    out[0] = columns.flags[1]
    columns.short[0] = small
    total = 0
    for row in range(columns.grid.shape[0]):
        for place in range(columns.grid.shape[1]):
            total += columns.grid[row, place] * (row + 1)
    return int(columns.rows + total * 10 + words[1, 2] + flag)


def arguments() -> list[Any]:
    """Return arguments for `use_all`, the words read-only."""
    words = np.arange(6, dtype=np.uint64).reshape(2, 3)
    words.flags.writeable = False
    grid = np.array([[1, 2], [3, 4]])
    columns = Columns(100, grid, np.array([False, True]), np.zeros(1, np.int32))
    return [True, -7, words, columns, np.zeros(2, np.uint8)]


def test_every_type_of_a_signature_is_passed() -> None:
    given = arguments()
    assert use_all(*given) == 100 + (1 + 2 + 2 * (3 + 4)) * 10 + 5 + 1
    assert (given[3].short[0], given[4].tolist()) == (-7, [1, 0])


READ_ONLY = np.frombuffer(bytes(8), np.uint8)
WRONG = {
    "an array for an integer": (1, np.zeros(1)),
    "a float for an integer": (1, 1.0),
    "another element": (2, np.zeros((2, 3), np.int64)),
    "another byte order": (2, np.zeros((2, 3), ">u8")),
    "other axes": (2, np.zeros(6, np.uint64)),
    "no array": (2, b"1234"),
    "not contiguous": (2, np.zeros((3, 2), np.uint64).T),
    "not aligned": (2, np.frombuffer(bytes(49), np.uint8)[1:].view(np.uint64).reshape(2, 3)),
    "another record": (3, (1, 2, 3, 4)),
    "a read-only field": (3, arguments()[3]._replace(flags=READ_ONLY.view(np.bool_))),
    "a read-only array to write to": (4, READ_ONLY),
}


@compiled_only
@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_the_signature_is_refused(wrong: str) -> None:
    given = arguments()
    place, value = WRONG[wrong]
    given[place] = value
    with pytest.raises(TypeError):
        use_all(*given)


@compiled_only
def test_a_kernel_that_needs_numba_at_run_time_does_not_compile() -> None:
    @kernel
    def shifted(value: int) -> int:
        return int(math.ldexp(value, 2))

    with pytest.raises(NotImplementedError, match="a kernel calls numba_ldexp"):
        shifted(4)


def test_plain_python_does_the_same(kept_site: Path) -> None:
    plain = run(kept_site, NUMBA_DISABLE_JIT="1")
    assert plain == {"result": 21, "compiled": 0, "origin": "plain", "lines": []}
    # Also: the code of a folder is found in a copy of it, as tests below need it.
    kept_code = {"result": 21, "compiled": 0, "origin": "kept", "lines": []}
    assert run(kept_site) == kept_code


# --- keeping the code -----------------------------------------------------------------------


def test_a_second_process_finds_the_code_beside_the_package(site: Path) -> None:
    first, second = run(site), run(site)
    assert (first["compiled"], first["origin"]) == (1, "kept")
    assert (second["compiled"], second["origin"]) == (0, "kept")
    # A line says that code is compiled, none that it was kept.
    assert (len(first["lines"]), second["lines"]) == (1, [])
    assert len(kept(site / "wireyard" / "__pycache__")) == 1


def test_warming_leaves_nothing_to_compile(site: Path) -> None:
    (site / "wireyard" / "other_kernels.py").write_text(PROBE)
    code = "from wireyard.warm import main; print(main([]))"
    first, last, status = python(site, code).splitlines()
    assert (first.split(",")[0], last.split(" after ")[0], status) == (
        "compiling 2 kernels",
        "2 kernels are ready",
        "0",
    )
    assert len(python(site, code).splitlines()) == 2
    found = run(site)
    assert (found["compiled"], found["origin"]) == (0, "kept")


def test_only_kernels_of_loaded_modules_are_compiled(site: Path) -> None:
    (site / "wireyard" / "other_kernels.py").write_text(PROBE)
    assert run(site)["compiled"] == 1
    assert [file.name.partition("-")[0] for file in kept(site)] == ["probe.probe"]


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    notice = compiling._Notice()
    for done in range(3):
        notice.report(compiling.Progress(done, 2, 9.0 - done))
    assert terminal.getvalue().split("\r\x1b[K") == [
        "",
        f"compiling kernels, once [{'.' * 24}] 0 of 2, about 9 s left",
        f"compiling kernels, once [{'#' * 12}{'.' * 12}] 1 of 2, about 8 s left",
        "",
    ]


def test_what_is_no_terminal_gets_one_line() -> None:
    notice, lines = compiling._Notice(), list[str]()
    notice.show = lines.append
    for done in range(3):
        notice.report(compiling.Progress(done, 2, 9.0 - done))
    (line,) = lines
    assert line.startswith("compiling 2 kernels for this processor, once: about 9 s on ")


def with_change(path: Path, old: str, new: str) -> tuple[Path, bytes]:
    text = path.read_text()
    assert text.count(old) == 1
    return path, text.replace(old, new).encode()


CHANGES = [
    ("probe_parts.py", "STEP = 3", "STEP = 5"),
    ("probe_parts.py", "load_u8(data, 0)", "load_u8(data, 0) + 1"),
    ("memory.py", "_emit_load(1, signed=False)", "_emit_load(1, signed=True)"),
    ("java/text.py", '"""Text of Java', '"""The text of Java'),
]


def test_code_from_other_pieces_and_constants_is_not_found(kept_site: Path) -> None:
    package = kept_site / "wireyard"
    same = package / "probe_parts.py"
    changed = [with_change(package / file, old, new) for file, old, new in CHANGES]
    found = found_with(kept_site, [*changed, (same, same.read_bytes())])
    assert found == ["nowhere"] * len(CHANGES) + ["kept"]


def test_changed_pieces_and_constants_are_compiled_anew(kept_site: Path) -> None:
    for file, old, new in CHANGES:
        path, data = with_change(kept_site / "wireyard" / file, old, new)
        path.write_bytes(data)
    again = run(kept_site)
    assert (again["result"], again["compiled"]) == (40, 1)


def test_damaged_files_are_compiled_anew(kept_site: Path) -> None:
    for file in (kept_site / "wireyard" / "__pycache__").glob("*.kernel"):
        file.write_bytes(file.read_bytes()[:100])
    damaged = run(kept_site)
    assert (damaged["result"], damaged["compiled"]) == (21, 1)


def test_a_package_in_a_zip_file_is_kept_in_the_users_cache(site: Path) -> None:
    archive = site.parent / "all.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in (site / "wireyard").rglob("*.py"):
            out.write(file, file.relative_to(site))
    empty = site.parent / "empty"
    empty.mkdir()
    first = run(empty, PYTHONPATH=str(archive))
    second = run(empty, PYTHONPATH=str(archive))
    assert (first["result"], first["compiled"]) == (21, 1)
    assert (second["result"], second["compiled"]) == (21, 0)
    assert len(kept(site.parent / "home" / ".cache")) == 1


def test_code_installed_where_nothing_can_be_written_is_used(kept_site: Path) -> None:
    installed = kept(kept_site)
    again = run(kept_site, before=NOWHERE)
    assert (again["result"], again["compiled"]) == (21, 0)
    assert kept(kept_site) == installed != []


def test_without_any_folder_kernels_still_run(site: Path) -> None:
    (site / "wireyard" / "__pycache__").write_text("a file, so no folder can be made here")
    found = run(site, before=NOWHERE)
    assert (found["result"], found["compiled"], found["origin"]) == (21, 1, "compiled")
    assert "no folder" in found["lines"][0]
    assert kept(site.parent) == []


# --- code that comes with the package -------------------------------------------------------


def ship(site: Path, folder: Path) -> None:
    """Compile the probe of a site for a wheel."""
    folder.mkdir()
    code = (
        "from pathlib import Path; from wireyard.accelerate import compile_missing\n"
        f"print(compile_missing(lambda progress: None, Path({str(folder)!r})))"
    )
    assert python(site, code) == "True\n"
    assert [file.name for file in folder.iterdir()] == ["probe.probe"]
    assert kept(site.parent) == []


@pytest.fixture(scope="module")
def shipped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package that brings the compiled probe."""
    site = make_site(tmp_path_factory.mktemp("shipped"))
    ship(site, site / "wireyard" / "compiled")
    return site


@pytest.fixture
def shipped(shipped_once: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, for a test to change."""
    copied: Path = shutil.copytree(shipped_once, tmp_path / "site")
    return copied


def everything_under(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix != ".pyc"}


@compiled_only
def test_shipped_code_is_used_and_nothing_is_written(shipped: Path) -> None:
    run(shipped)  # for Python's own compiled files
    before = everything_under(shipped.parent)
    found = run(shipped)
    assert (found["result"], found["compiled"], found["origin"]) == (21, 0, "shipped")
    assert everything_under(shipped.parent) == before
    assert not (shipped.parent / "home").exists()


@compiled_only
def test_shipped_code_is_the_same_every_time(shipped: Path) -> None:
    ship(shipped, shipped.parent / "again")
    first, again = shipped / "wireyard/compiled", shipped.parent / "again"
    assert (again / "probe.probe").read_bytes() == (first / "probe.probe").read_bytes()


@compiled_only
def test_code_shipped_for_anything_else_is_not_found(shipped: Path) -> None:
    file = shipped / "wireyard/compiled/probe.probe"
    whole = file.read_bytes()
    line, payload = whole.split(b"\n", 1)
    others = [
        (b"-linux-", b"-other-"),
        (b"features ", b"features of "),
        (b"sources ", b"sources of "),
        (b"int64(", b"int32("),
        (b"code ", b"code of "),
    ]
    assert all(old in line for old, _ in others)
    lines = [line.replace(old, new) + b"\n" + payload for old, new in others]
    parts = with_change(shipped / "wireyard/probe_parts.py", "STEP = 3", "STEP = 5")
    changed = [*((file, data) for data in (*lines, whole[:-1000])), parts, (file, whole)]
    found = found_with(shipped, changed)
    assert found == ["nowhere"] * (len(changed) - 1) + ["shipped"]


@compiled_only
def test_shipped_code_from_other_sources_is_compiled_anew(shipped: Path) -> None:
    parts, data = with_change(shipped / "wireyard/probe_parts.py", "STEP = 3", "STEP = 5")
    parts.write_bytes(data)
    found = run(shipped)
    assert (found["result"], found["compiled"], found["origin"]) == (35, 1, "kept")


@compiled_only
def test_shipped_code_is_found_in_a_zip_file(shipped: Path) -> None:
    archive = shipped.parent / "all.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in (shipped / "wireyard").rglob("*"):
            if file.suffix == ".py" or file.parent.name == "compiled":
                out.write(file, file.relative_to(shipped))
    empty = shipped.parent / "empty"
    empty.mkdir()
    found = run(empty, PYTHONPATH=str(archive))
    assert (found["result"], found["compiled"], found["origin"]) == (21, 0, "shipped")


@compiled_only
def test_a_processor_without_the_features_compiles_for_itself(shipped: Path) -> None:
    without = "from wireyard.accelerate import caching\ncaching.fitting_baseline = lambda: None"
    found = run(shipped, before=without)
    # The process that compiles is another one; it would find the shipped code to fit.
    assert (found["result"], found["origin"]) == (21, "compiled")


def test_baselines_are_asked_for_by_platform_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    features = dict.fromkeys(BASELINES["x86_64"].features.split(), True)
    for triple, has, cpu in (
        ("x86_64-unknown-linux-gnu", features, "x86-64-v3"),
        ("x86_64-unknown-linux-gnu", {**features, "avx2": False}, None),
        ("aarch64-unknown-linux-gnu", {"neon": True}, "generic"),
        ("ppc64le-unknown-linux-gnu", {}, None),
    ):
        monkeypatch.setattr(llvm, "get_process_triple", lambda triple=triple: triple)
        monkeypatch.setattr(llvm, "get_host_cpu_features", lambda has=has: has)
        fitting_baseline.cache_clear()
        found = fitting_baseline()
        assert (found and found.cpu) == cpu
    fitting_baseline.cache_clear()


@compiled_only
def test_nothing_is_shipped_without_a_baseline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llvm, "get_process_triple", lambda: "ppc64le-unknown-linux-gnu")
    status = warm.main(["--ship", str(tmp_path)])
    assert (status, list(tmp_path.iterdir())) == (1, [])
    assert capsys.readouterr().err.startswith("nothing can be shipped: ")


def test_another_processor_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    fitting_baseline.cache_clear()
    assert fitting_baseline() is None
    fitting_baseline.cache_clear()


# --- all kernels of the package -------------------------------------------------------------


@compiled_only
def test_every_module_that_declares_kernels_is_found() -> None:
    """Whatever imports a decorator declares kernels, and is found by how that is written."""
    top = Path(accelerate.__file__).parents[1]
    declaring = set()
    for path in top.rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module == "wireyard.accelerate"
            for alias in node.names
        }
        if names & {"kernel", "brief_kernel"}:
            declaring.add(".".join(path.relative_to(top.parent).with_suffix("").parts))
    kernels = find_kernels()
    assert {found.py_func.__module__ for found in kernels} == declaring
    assert len(kernels) > 20
    ours = [one for one in declare.KERNELS if one.py_func.__module__.startswith("wireyard.")]
    assert sorted(map(id, ours)) == sorted(map(id, kernels))


@compiled_only
def test_a_kernel_that_does_not_compile_says_so_itself(site: Path) -> None:
    probe = site / "wireyard" / "probe.py"
    probe.write_text(probe.read_text().replace("* STEP", "* STEP.nothing"))
    with pytest.raises(AssertionError, match="nothing"):
        run(site)


@compiled_only
def test_processes_that_start_together_compile_once(site: Path) -> None:
    code = (
        "import json; from wireyard.accelerate import compile_missing\n"
        "names = []\n"
        "compile_missing(lambda progress: names.append(progress.name))\n"
        "print(json.dumps([name for name in names if name]))"
    )
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: json.loads(python(site, code)), range(3)))
    assert sorted(found) == [[], [], ["wireyard.probe.probe"]]


# --- choosing the folder --------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return every place code may be kept, none of them made yet."""
    found = {name: tmp_path / name for name in ("asked", "package", "cache", "temporary")}
    found["package"].mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(found["asked"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(found["cache"]))
    monkeypatch.setattr(tempfile, "tempdir", str(found["temporary"]))
    return found


def folder_of(places: dict[str, Path], name: str) -> Path:
    return places[name] / "__pycache__" if name == "package" else places[name]


def block(places: dict[str, Path], *names: str) -> None:
    """Put files where folders would have to be: that stops even a superuser."""
    for name in names:
        folder_of(places, name).write_text("")


def test_places_are_tried_in_order(places: dict[str, Path]) -> None:
    source = places["package"] / "kernels.py"
    for name, place in places.items():
        folder = cache_folder(source)
        assert folder is not None
        assert folder.is_relative_to(place), name
        assert list(folder.iterdir()) == []
        shutil.rmtree(folder_of(places, name))
        block(places, name)
    assert cache_folder(source) is None


def test_nothing_asked_for_means_beside_the_source(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    assert cache_folder(places["package"] / "kernels.py") == places["package"] / "__pycache__"


def test_a_user_without_a_home(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block(places, "asked", "package")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for an unknown user
    monkeypatch.chdir(tmp_path)
    folder = cache_folder(places["package"] / "kernels.py")
    assert folder is not None
    assert folder.is_relative_to(places["temporary"])
    assert not (tmp_path / "~").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX owners")
@pytest.mark.parametrize("how", ["open to others", "a link"])
def test_folders_others_could_fill_are_not_used(places: dict[str, Path], how: str) -> None:
    block(places, "asked", "package", "cache")
    private = places["temporary"] / f"wireyard-{os.getuid()}"
    if how == "a link":
        elsewhere = places["temporary"] / "elsewhere"
        elsewhere.mkdir(parents=True)
        private.symlink_to(elsewhere)
    else:
        private.mkdir(parents=True)
        private.chmod(0o777)
    assert cache_folder(places["package"] / "kernels.py") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX owners")
def test_our_own_folders_are_closed_to_others(places: dict[str, Path]) -> None:
    block(places, "asked", "package", "cache")
    folder = cache_folder(places["package"] / "kernels.py")
    assert folder is not None
    assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o700)
