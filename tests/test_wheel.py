"""A wheel brings the compiled kernels: where it is installed, nothing is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from wireyard.accelerate import COMPILED, find_kernels

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
    import_module(get_format(name).fast_path)  # small inputs are left to kernels as well
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that a wheel, made here, is installed in, with the recorder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [str(ROOT / "tools" / "wheel"), str(folder)]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([sys.executable, "-m", "pip", *install, str(site), str(wheel)], check=True)
    (site / "sitecustomize.py").write_text(RECORDER)
    return site


def compiled(site: Path, *words: str) -> list[str]:
    """Run Python with an empty home in the examples; return what was compiled, anywhere."""
    log, home = site.parent / "log", site.parent / "home"
    log.write_text("")
    home.mkdir(exist_ok=True)
    gone = "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "PYSPARK_PYTHON"
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"PYTHONPATH": str(site), "HOME": str(home), "COMPILED_LOG": str(log)}
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    assert list(home.rglob("*.nb?")) == []
    return log.read_text().splitlines()


def test_the_wheel_is_for_this_python_and_platform_and_holds_every_kernel(installed: Path) -> None:
    (wheel,) = installed.parent.glob("*.whl")
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == (f"cp{sys.version_info[0]}{sys.version_info[1]}", "none")
    assert platform.endswith(os.uname().machine)
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("wireyard/compiled/")}
    assert held == {
        f"wireyard/compiled/{one.py_func.__module__.partition('.')[2]}.{one.__name__}"
        for one in find_kernels()
    }


def test_commands_compile_nothing(installed: Path, tmp_path: Path) -> None:
    assert compiled(installed, "-c", "from wireyard.accelerate import load_kernels as l; l()") == []
    commands = COMMANDS.replace("shop.gpacket", str(tmp_path / "shop.gpacket"))
    convert = ["-m", "wireyard", "convert", "traffic/shop-c2b.jmq", "-w"]
    assert compiled(installed, *convert, str(tmp_path / "shop.gpacket")) == []
    assert compiled(installed, "-c", commands, str(installed), str(tmp_path / "rows.parquet")) == []


@pytest.mark.spark
def test_a_run_compiles_nothing_in_any_process(installed: Path, tmp_path: Path) -> None:
    inputs = ["traffic.pcap", "ring.pcap", "traffic", "store/fs370"]
    words = ["-m", "wireyard", "run", *inputs, "--decode-as", "udp.port==7078,rmp"]
    assert compiled(installed, *words, "--lake", str(tmp_path / "lake")) == []
    assert (tmp_path / "lake" / "messages").is_dir()


def test_what_is_compiled_after_all_is_recorded(installed: Path) -> None:
    (installed / "wireyard/compiled/arena.place_arrays").unlink()
    code = "from wireyard.accelerate import load_kernels; load_kernels()"
    found = compiled(installed, "-c", code)
    assert any("place_arrays" in line for line in found)
