"""What ``pip install wireyard`` alone gives: every command, without the packages of any extra."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from wireyard.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30
CAPTURE, ORDERS = "examples/traffic.pcap", "examples/traffic/shop-c2b.jmq"
LINES = [
    ["decode", CAPTURE, "--format", "mqtt", "-w", "{}/rows.parquet"],
    ["decode", ORDERS, "--secrets", "--body", "hex", "-w", "{}/rows.jsonl"],
    ["encode", "{}/rows.jsonl", "-w", "{}/again.jmq"],
    ["inspect", ORDERS, "--at", "0"],
    ["inspect", CAPTURE, "--frame", "127"],
    ["convert", ORDERS, "-w", "{}/shop.gpacket"],
    ["run", CAPTURE, ORDERS, "--lake", "{}/lake", "-q", "--engine", "process"],
    ["lake", "check", "{}/lake"],
    ["lake", "drop", "{}/lake", ORDERS, "--engine", "process"],
    ["trace", CAPTURE, "shop.orders"],
    ["why", CAPTURE],
    ["slow", CAPTURE],
    ["sql", "{}/lake", "SELECT count(*) FROM deliveries"],
    ["report", CAPTURE, "-o", "{}/report.html"],
    ["replay", "examples/symptoms/mqtt-healthy.pcap", "--to", "{broker}", "--speed", "max"],
    ["shadow", CAPTURE, CAPTURE],
    ["conform", "{broker}", "--rule", "MQTT-3.12*"],
    ["check-splits", ORDERS],
    ["dissector"],
    ["flows", CAPTURE],
    ["slice", CAPTURE, "--client", "till", "-w", "{}/till.pcap"],
    ["store", "examples/store/fs370"],
    ["ring", "--help"],
    ["pub", "-h", "{broker}", "-t", "a", "-m", "1", "-q", "1", "-r"],
    ["sub", "-h", "{broker}", "-t", "a", "-C", "1"],
    ["formats", "mqtt"],
    ["doctor"],
    ["completion", "bash"],
]
"""A line for each command but the broker; braces are a folder for results, or that broker's URL."""
PROBE = """
import json, sys
from importlib.machinery import PathFinder
lines, absent = json.load(sys.stdin)

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
from wireyard.cli import main
for line in lines:
    sys.argv[1:] = line
    try:
        main(prog_name="wireyard")
    except SystemExit as ended:
        print("DONE", line[0], ended.code, file=sys.stderr)
"""


def bare_packages() -> set[str]:
    """Return the distributions that our dependencies bring, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left, found = list(project["dependencies"]), set[str]()
    while left:
        needed = Requirement(left.pop())
        name = canonicalize_name(needed.name)
        if name in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        left += metadata.requires(name) or ()
    return found


@pytest.fixture(scope="module")
def absent() -> list[str]:
    """Return the modules that are installed here, but not with a bare installation."""
    bare = bare_packages() | {"wireyard"}
    return [
        module
        for module, owners in metadata.packages_distributions().items()
        if bare.isdisjoint(map(canonicalize_name, owners))
    ]


def run_all(lines: list[list[str]], absent: list[str]) -> subprocess.CompletedProcess[str]:
    """Run command lines in one process in which some modules cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([lines, absent]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def serving(line: list[str], absent: list[str]) -> Iterator[str]:
    """Run a server without some modules; give the address that it prints, and end it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROBE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([[line], absent]))
        process.stdin.close()
        ready = process.stdout.readline()
        found = re.match(r"listens on ((?:mqtt://)?127\.0\.0\.1:\d+)\b", ready)
        if found:
            yield found[1]
        process.terminate()
        process.stdin = None  # closed; `communicate` would flush it
        try:
            _, notes = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert found, notes
    assert notes.splitlines()[-1] == f"DONE {line[0]} 0", notes


@pytest.fixture
def broker(absent: list[str]) -> Iterator[str]:
    """Run ``wireyard tap`` before ``wireyard broker``; give its URL."""
    with (
        serving(["broker", "--port", "0"], absent) as url,
        serving(["tap", "0", url], absent) as address,
    ):
        yield f"mqtt://{address}"


def test_every_command_needs_no_extra(absent: list[str], broker: str, tmp_path: Path) -> None:
    assert {"pyspark", "pandas", "cryptography", "cbor2"} <= {*absent}
    lines = [[word.format(tmp_path, broker=broker) for word in line] for line in LINES]
    assert {line[0] for line in lines} | {"broker", "tap"} == {*COMMANDS}
    done = run_all(lines, absent)
    ends = [line for line in done.stderr.splitlines() if line.startswith("DONE")]
    assert ends == [f"DONE {line[0]} 0" for line in lines], done.stderr
    assert (tmp_path / "again.jmq").read_bytes() == (ROOT / ORDERS).read_bytes()


def test_where_spark_is_needed_the_extra_is_named(absent: list[str], tmp_path: Path) -> None:
    line = ["run", ORDERS, "--lake", f"{tmp_path}/lake"]
    done = run_all([line, [*line, "--engine", "process", "-q"], line], absent)
    assert done.stderr.splitlines() == [
        "wireyard: run: needs Spark: pip install 'wireyard[spark]', or --engine process",
        "DONE run 2",
        "DONE run 0",
        "DONE run 0",  # nothing new
    ]


def test_a_process_has_no_settings_of_spark(tmp_path: Path) -> None:
    lake = ["--lake", f"{tmp_path}/lake"]
    done = run_all([["run", ORDERS, *lake, "--engine", "process", "--master", "local"]], [])
    assert done.stderr.splitlines()[1:] == ["DONE run 2"]
    assert "--engine process" in done.stderr
