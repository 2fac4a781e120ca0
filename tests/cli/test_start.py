"""What a command loads: nothing heavy that it does not use, and no code of protocols not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from wireyard.accelerate import COMPILED, load_kernels

pytestmark = pytest.mark.skipif(not COMPILED, reason="NUMBA_DISABLE_JIT is set")

RUN = """
import json, sys
from wireyard.cli import main

try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
NEVER = ("numba", "pandas", "pyspark")
ANSWERS = ("duckdb", "pyarrow.parquet", "wireyard.layers", "wireyard.pipeline")
"""What only the commands need that answer from tables."""
LAYERS = {
    "mqtt": "wireyard.layers.mqtt.packets",
    "jms": "wireyard.layers.jmq.columns",
    "rmp": "wireyard.layers.rmp.layer",
}
"""A module of each protocol that the others have no use for."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Have the code of all kernels, as on a machine that has run the commands before."""
    load_kernels()


def loaded_by(folder: Path, *words: str) -> set[str]:
    """Return the modules that a process has loaded after a command."""
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    *_, last = done.stderr.splitlines()
    return set(json.loads(last))


def among(forbidden: tuple[str, ...], loaded: set[str]) -> set[str]:
    return {name for name in forbidden if name in loaded}


CAPTURES = {
    "mqtt": ROOT / "examples/symptoms/mqtt-expired.pcap",
    "jms": ROOT / "examples/symptoms/jms-expired.pcap",
}


@pytest.mark.parametrize("protocol", CAPTURES)
@pytest.mark.parametrize("command", ["why", "trace", "slow", "sql", "report"])
def test_answers_load_the_layers_of_what_is_there(
    protocol: str, command: str, tmp_path: Path
) -> None:
    more = {
        "trace": ["#"],
        "sql": ["SELECT count(*) FROM deliveries"],
        "report": ["-o", "report.html"],
    }
    loaded = loaded_by(
        tmp_path, command, str(CAPTURES[protocol]), "--no-cache", *more.get(command, [])
    )
    others = tuple(module for name, module in LAYERS.items() if name != protocol)
    assert among((*NEVER, *others), loaded) == set()
    assert LAYERS[protocol] in loaded


@pytest.mark.parametrize(
    "words",
    [
        ["decode"],
        ["decode", "-w", "rows.csv"],
        ["decode", "-w", "rows.parquet"],
        ["decode", "--where", "qos == 1"],
        ["flows"],
        ["flows", "--segments"],
        ["inspect"],
        ["slice", "--where", "qos == 1", "-w", "part.pcap"],
    ],
    ids=" ".join,
)
def test_reading_packets_loads_no_layer_and_no_database(words: list[str], tmp_path: Path) -> None:
    command, *more = words
    loaded = loaded_by(tmp_path, command, str(CAPTURES["mqtt"]), *more)
    written = {"pyarrow.parquet"} if "rows.parquet" in words else set()
    assert among((*NEVER, *ANSWERS), loaded) == written
