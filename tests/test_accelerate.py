"""Kernels compile when first called, once; their code is kept, found again, and never stale."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wireyard import accelerate
from wireyard.accelerate import COMPILED, I64, READ, TEXT, cache_folder, kernel, piece
from wireyard.memory import Bytes, load_u8

compiled_only = pytest.mark.skipif(not COMPILED, reason="NUMBA_DISABLE_JIT is set")

# A kernel with a piece and a constant from other files, run and reported on.
PROBE = """
import json, sys
import numpy as np
from wireyard import accelerate
from wireyard.accelerate import I64, READ, kernel
from wireyard.probe_parts import STEP, first_byte

@kernel(I64(READ))
def probe(data):
    return first_byte(data) * STEP

def report():
    lines = []
    accelerate.set_notice(lines.append)
    accelerate._NOTICE_AFTER_S = 0.0
    result = probe(np.frombuffer(b"\\x07", np.uint8))
    hits, misses = 0, 0
    if accelerate.COMPILED:
        stats = probe.stats
        hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
    print(json.dumps({"result": result, "hits": hits, "misses": misses, "lines": lines}))
"""
PARTS = """
from wireyard.accelerate import piece
from wireyard.memory import load_u8

STEP = 3

@piece
def first_byte(data):
    return load_u8(data, 0)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, the probe in it."""
    source = Path(accelerate.__file__).parent
    package = tmp_path / "site" / "wireyard"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "probe.py").write_text(PROBE)
    (package / "probe_parts.py").write_text(PARTS)
    return package.parent


def run(site: Path, before: str = "", **environment: str) -> dict[str, Any]:
    """Run the probe in its own process with a home and a temporary folder of its own."""
    home, temporary = site.parent / "home", site.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    keep = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    keep.pop("XDG_CACHE_HOME", None)
    keep |= {"PYTHONPATH": str(site), "HOME": str(home), "TMPDIR": str(temporary)} | environment
    code = f"from wireyard import accelerate\n{before}\nfrom wireyard.probe import report; report()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=keep, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


# --- declaring and calling ------------------------------------------------------------------


@piece
def twice(value: int) -> int:
    return 2 * value


@kernel(I64(READ, TEXT))
def move_one(data: Bytes, out: Bytes) -> int:
    out[0] = load_u8(data, 0)
    return twice(load_u8(data, 0))


def test_a_kernel_and_its_piece() -> None:
    out = np.zeros(1, np.uint8)
    assert move_one(np.frombuffer(b"\xff", np.uint8), out) == 510
    assert out[0] == 255


@compiled_only
def test_nothing_compiles_before_the_first_call_and_only_the_signature_then() -> None:
    @kernel(I64(READ))
    def size_of(data: Bytes) -> int:
        return data.size

    dispatcher: Any = size_of
    assert dispatcher.overloads == {}
    writable = np.zeros(5, np.uint8)
    assert size_of(writable) == 5
    assert size_of(np.frombuffer(b"abc", np.uint8)) == 3
    assert list(dispatcher.overloads) == [(READ,)]
    with pytest.raises(TypeError):
        size_of(np.zeros(5, np.int64))


@compiled_only
def test_threads_may_race_for_the_first_call() -> None:
    @kernel(I64(I64))
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


def test_plain_python_does_the_same(site: Path) -> None:
    plain = run(site, NUMBA_DISABLE_JIT="1")
    assert plain == {"result": 21, "hits": 0, "misses": 0, "lines": []}
    assert run(site)["result"] == 21


# --- keeping the code -----------------------------------------------------------------------


def test_a_second_process_finds_the_code_beside_the_package(site: Path) -> None:
    first, second = run(site), run(site)
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)
    assert len(kept(site / "wireyard" / "__pycache__")) == 1


def test_only_compiling_is_told_and_only_once(site: Path) -> None:
    assert len(run(site)["lines"]) == 1
    assert run(site)["lines"] == []


@pytest.mark.parametrize(
    ("file", "old", "new", "result"),
    [
        ("probe_parts.py", "STEP = 3", "STEP = 5", 35),
        ("probe_parts.py", "load_u8(data, 0)", "load_u8(data, 0) + 1", 24),
        ("memory.py", "_emit_load(1, signed=False)", "_emit_load(1, signed=True)", 21),
        ("java/text.py", '"""Text as Java', '"""The text as Java', 21),
    ],
)
def test_changed_pieces_and_constants_are_compiled_anew(
    site: Path, file: str, old: str, new: str, result: int
) -> None:
    assert run(site)["result"] == 21
    changed = site / "wireyard" / file
    text = changed.read_text()
    assert text.count(old) == 1
    changed.write_text(text.replace(old, new))
    again = run(site)
    assert (again["result"], again["hits"], again["misses"]) == (result, 0, 1)


def test_damaged_files_are_compiled_anew(site: Path) -> None:
    run(site)
    for file in (site / "wireyard" / "__pycache__").glob("*.nb?"):
        file.write_bytes(file.read_bytes()[:100])
    damaged = run(site)
    assert (damaged["result"], damaged["hits"]) == (21, 0)


def test_a_package_in_a_zip_file_is_kept_in_the_users_cache(site: Path) -> None:
    archive = site.parent / "all.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in (site / "wireyard").rglob("*.py"):
            out.write(file, file.relative_to(site))
    empty = site.parent / "empty"
    empty.mkdir()
    first = run(empty, PYTHONPATH=str(archive))
    second = run(empty, PYTHONPATH=str(archive))
    assert (first["result"], first["misses"]) == (21, 1)
    assert (second["result"], second["hits"]) == (21, 1)
    assert len(kept(site.parent / "home" / ".cache")) == 1


def test_code_installed_where_nothing_can_be_written_is_used(site: Path) -> None:
    run(site)
    installed = kept(site)
    # Nothing is writable: chmod would not stop a superuser, so the decision is replaced.
    again = run(site, before="accelerate.cache_folder = lambda source: None")
    assert (again["result"], again["hits"], again["misses"]) == (21, 1, 0)
    assert kept(site) == installed


def test_without_any_folder_kernels_still_run(site: Path) -> None:
    (site / "wireyard" / "__pycache__").write_text("a file, so no folder can be made here")
    found = run(site, before="accelerate.cache_folder = lambda source: None")
    assert (found["result"], found["hits"], found["misses"]) == (21, 0, 1)
    assert "no folder" in found["lines"][0]
    assert kept(site.parent) == []


# --- choosing the folder --------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return every place code may be kept, none of them made yet."""
    found = {name: tmp_path / name for name in ("asked", "package", "cache", "temporary")}
    found["package"].mkdir()
    monkeypatch.setattr(accelerate._CONFIG, "CACHE_DIR", str(found["asked"]))
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
    monkeypatch.setattr(accelerate._CONFIG, "CACHE_DIR", "")
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
