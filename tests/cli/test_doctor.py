"""doctor and warm: what is there, what is missing, what to type."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest

from tests.cli.results import Run
from wireyard.accelerate import Progress
from wireyard.cli.about import doctor
from wireyard.errors import SourceError


def states(stdout: str) -> dict[str, str]:
    """Return the word in front of each finding."""
    lines = [line.split() for line in stdout.splitlines()[:-1] if not line.startswith(" ")]
    return {words[1]: words[0] for words in lines}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no other process look for kernels that are not compiled: there are none."""
    monkeypatch.setattr("wireyard.accelerate.compile_missing", lambda report: True)


def test_everything_here_works(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.spark.check_java", lambda: "Java 17.0.1", raising=False)
    result = run("doctor")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "wireyard works, all of it"
    assert set(states(result.stdout).values()) == {"ok"}
    assert f"pyarrow   {metadata.version('pyarrow')}" in result.stdout


@pytest.mark.usefixtures("compiled")
def test_no_java_is_said_with_what_to_type(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise SourceError("install one")

    monkeypatch.setattr("wireyard.spark.check_java", none, raising=False)
    result = run("doctor")
    assert (result.exit_code, states(result.stdout)["Java"]) == (0, "without")
    assert "install one" in result.stdout
    assert result.stdout.splitlines()[-1] == "wireyard works, without what is named above"


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("package", "version", "state"),
    [
        ("pyspark", None, "without"),
        ("pyspark", "3.5.1", "without"),
        ("pyspark", "4.10.0", "ok"),
        ("pandas", "3.0.0", "without"),
        ("numba", None, "missing"),
        ("duckdb", None, "missing"),
    ],
)
def test_packages_are_judged(
    package: str,
    version: str | None,
    state: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = metadata.version

    def pretend(name: str) -> str:
        if name != package:
            return really(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", pretend)
    result = run("doctor")
    assert states(result.stdout)[package] == state
    assert result.exit_code == (3 if state == "missing" else 0)
    assert ("pip install" in result.stdout) is (state != "ok")


@pytest.mark.usefixtures("compiled")
def test_a_cache_that_cannot_be_written_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.accelerate.cache_folder", lambda source: None)
    result = run("doctor")
    assert (result.exit_code, states(result.stdout)["kernels"]) == (0, "without")
    assert "export NUMBA_CACHE_DIR=FOLDER" in result.stdout


def python(*words: str, **environment: str) -> str:
    """Run Python in a process of its own and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env = {**kept, **environment}
    command = [sys.executable, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_a_terminal_shows_how_far_compiling_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with doctor._progress_shown() as report:
        report(Progress(3, 27, 12.4, "wireyard.formats.jmq.kernels.fill_rows"))
        report(Progress(0, 0, 0))
    first, second = capsys.readouterr().err.split("\r")[1:3]
    assert first == "compiling kernels: 3 of 27, 12 s left  wireyard.formats.jmq.kernels.fill_rows"
    assert second.rstrip() == "compiling kernels: another process is at it"


def test_nothing_but_the_findings_is_printed_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with doctor._progress_shown() as report:
        report(Progress(3, 27, 12.4, "wireyard.formats.jmq.kernels.fill_rows"))
    assert capsys.readouterr() == ("", "")


def test_without_a_compiler_there_is_nothing_to_warm() -> None:
    said = python("-m", "wireyard.warm", NUMBA_DISABLE_JIT="1")
    assert said == "NUMBA_DISABLE_JIT is set: there is nothing to compile\n"
