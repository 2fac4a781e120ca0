"""A wheel brings the compiled kernels; where all kernels have their code, no command compiles.

The wheel is one of a package with two small kernels, and commands run with the code that was
compiled for this machine: compiling all kernels once more takes a tenth of the time of all tests.
With ``WIREYARD_WHEEL=whole``, which ``.ci/run`` sets, they run from a wheel of the whole package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import wireyard
from tests.conftest import ROOT
from tests.test_accelerate import PROBE, make_site
from wireyard.accelerate import COMPILED, find_kernels, load_kernels
from wireyard.accelerate.caching import shipped_name

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILED, reason="NUMBA_DISABLE_JIT is set"),
]

# Python imports it in every process, those of Spark's workers too.
RECORDER = """
import atexit, os, sys
from numba.core import event

class Recorder(event.Listener):
    def on_start(self, event):
        with open(os.environ["COMPILED_LOG"], "a") as log:
            print(event.data["dispatcher"], file=log)
    def on_end(self, event):
        pass

event.register("numba:compile", Recorder())
"""
COMMANDS = """
import sys
from importlib import import_module
import wireyard
from wireyard.cli import main
from wireyard.formats import get_format, names

assert wireyard.__file__.startswith(sys.argv[1]), wireyard.__file__
for name in names():
    import_module(get_format(name).columnar.module)  # small inputs are left to kernels as well
for words in (
    "decode traffic/shop-c2b.jmq",
    "decode shop.gpacket",
    "decode traffic/till-c2b.mqtt",
    "decode ring.pcap --decode-as udp.port==7078,rmp",
    "decode traffic.pcap --format mqtt",
    "flows traffic.pcap",
    "flows traffic.pcap --segments",
    "store store/fs370",
):
    try:
        main([*words.split(), *(["-w", sys.argv[2]] if words.startswith("decode") else [])])
    except SystemExit as end:
        assert not end.code, words
"""


LOAD = """
import numpy as np
from wireyard.accelerate import load_kernels
from wireyard.other_kernels import probe as other
from wireyard.probe import probe

assert load_kernels() == 2
for kernel in (probe, other):
    assert kernel(np.frombuffer(b"\\x07", np.uint8)) == 21
    assert kernel.origin == "shipped"
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose `sitecustomize` records what is compiled."""
    folder = tmp_path_factory.mktemp("recorder")
    (folder / "sitecustomize.py").write_text(RECORDER)
    return folder


def install(tool: Path, folder: Path) -> Path:
    """Build a wheel with a checkout's tool, and install it; return the folder that it is in."""
    build = [str(tool), str(folder)]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([sys.executable, "-m", "pip", *words, str(site), str(wheel)], check=True)
    return site


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that a wheel, made here of a package with two kernels, is installed in."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    source = make_site(tree).rename(tree / "src")
    (source / "wireyard" / "other_kernels.py").write_text(PROBE)
    (tree / "tools").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tools/wheel"):
        shutil.copy(ROOT / name, tree / name)
    return install(tree / "tools" / "wheel", folder)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the package is in, when the code of all its kernels is there."""
    if os.environ.get("WIREYARD_WHEEL") == "whole":
        return install(ROOT / "tools" / "wheel", tmp_path_factory.mktemp("whole"))
    load_kernels()
    return Path(wireyard.__file__).parents[1]


def compiled(site: Path, recorder: Path, *words: str) -> list[str]:
    """Run Python with an empty home in the examples; return what was compiled, anywhere."""
    log, home = recorder / "log", recorder / "home"
    log.write_text("")
    home.mkdir(exist_ok=True)
    gone = "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "PYSPARK_PYTHON"
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    path = os.pathsep.join(map(str, (recorder, site)))
    environment |= {"PYTHONPATH": path, "HOME": str(home), "COMPILED_LOG": str(log)}
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*.kernel")) == []
    return log.read_text().splitlines()


def test_a_wheel_is_for_this_platform_and_any_python_with_every_kernel(installed: Path) -> None:
    (wheel,) = installed.parent.glob("*.whl")
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none")
    assert platform.endswith(os.uname().machine)
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("wireyard/compiled/")}
    assert held == {f"wireyard/compiled/{name}.probe" for name in ("other_kernels", "probe")}


def test_what_a_wheel_brings_is_not_compiled(installed: Path, recorder: Path) -> None:
    assert compiled(installed, recorder, "-c", LOAD) == []


def test_what_is_compiled_after_all_is_recorded(installed: Path, recorder: Path) -> None:
    (installed / "wireyard/compiled/probe.probe").unlink()
    code = "from wireyard.accelerate import load_kernels; load_kernels()"
    found = compiled(installed, recorder, "-c", code)
    assert any("function probe" in line for line in found), found


def test_every_kernel_of_the_package_has_a_file_of_its_own_in_a_wheel(ready: Path) -> None:
    kernels = find_kernels()
    names = {shipped_name(one.py_func) for one in kernels}
    assert len(names) == len(kernels) > 20
    if os.environ.get("WIREYARD_WHEEL") == "whole":
        assert {file.name for file in (ready / "wireyard" / "compiled").iterdir()} == names


def test_commands_compile_nothing(ready: Path, recorder: Path, tmp_path: Path) -> None:
    commands = COMMANDS.replace("shop.gpacket", str(tmp_path / "shop.gpacket"))
    convert = ["-m", "wireyard", "convert", "traffic/shop-c2b.jmq", "-w"]
    assert compiled(ready, recorder, *convert, str(tmp_path / "shop.gpacket")) == []
    rows = str(tmp_path / "rows.parquet")
    assert compiled(ready, recorder, "-c", commands, str(ready), rows) == []


def test_a_growing_capture_compiles_nothing(ready: Path, recorder: Path, tmp_path: Path) -> None:
    data = (ROOT / "examples" / "traffic.pcap").read_bytes()
    capture, words = tmp_path / "growing.pcap", ["-m", "wireyard", "run"]
    words += [str(capture), "--lake", str(tmp_path / "lake"), "--engine", "process"]
    ends = record_ends(data)
    for end in (ends[len(ends) // 2], ends[len(ends) * 3 // 4], len(data)):
        capture.write_bytes(data[:end])
        assert compiled(ready, recorder, *words) == []


def record_ends(data: bytes) -> list[int]:
    """Return where the records of a pcap end: a capture that ends elsewhere has lost bytes."""
    ends = [24]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 16 + int.from_bytes(data[ends[-1] + 8 :][:4], "little"))
    return ends


@pytest.mark.spark
def test_a_run_compiles_nothing_in_any_process(ready: Path, recorder: Path, tmp_path: Path) -> None:
    inputs = ["traffic.pcap", "ring.pcap", "traffic", "store/fs370"]
    words = ["-m", "wireyard", "run", *inputs, "--decode-as", "udp.port==7078,rmp"]
    assert compiled(ready, recorder, *words, "--lake", str(tmp_path / "lake")) == []
    assert (tmp_path / "lake" / "messages").is_dir()
