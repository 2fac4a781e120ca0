"""Search for changes of files after which a lake is not what one run makes of them.

``python -m tests.spark.soak --minutes 10``. Each case follows some recorded files that grow in
random pieces, at once or one behind the other, in several processes. A process ends in order, or is
killed at a random moment; between two of them a plain run may come. After each process no row is
twice in the lake; at the end all rows are those of one run.

With ``--kind kills``, a run is killed at a random moment; the next one makes the tables of one run.
With ``--kind damage``, a file of a lake is damaged, and ``wireyard lake check`` names it in a line.

With ``--kind runs``, small files come, grow, shrink, and are replaced, renamed, damaged and
removed; inputs are dropped, and states and tables of the lake are damaged. After each run, all in
this process, all rows are those of one run.

A case is made from one number, but for what the clock decides; ``--seed`` makes it again.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from click.testing import CliRunner

from tests.captures.fuzz import parse_arguments
from tests.spark import lakes
from tests.spark.changes import SETTLED_S, Quiet, check_runs
from tests.spark.lakes import Silent
from wireyard.cli import main as wireyard
from wireyard.lake import read_lake
from wireyard.lake.records import is_shown
from wireyard.lake.writer import Lake
from wireyard.pipeline.growing import following, growth
from wireyard.pipeline.growing.following import follow_lake
from wireyard.pipeline.inputs import watching
from wireyard.pipeline.replacing import OPEN_STATES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SOURCES = [
    path
    for path in sorted(EXAMPLES.rglob("*"))
    if path.suffix in (".pcap", ".pcapng", ".jmq", ".mqtt", ".gpacket")
]
_KEYS: Final = {
    "messages": ("message_key",),
    "sessions": ("source", "stream", "offset"),
    "ledger": ("source", "stream"),
    "streams": ("source", "stream"),
}
"""Columns of tables that no two rows have in common."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.spark.lakes", "wireyard.pipeline.growing.growth"])
_KILLED = 9


def check_kill(number: int) -> None:
    """Kill a run at a random moment; the lake is as committed, and the next run completes it."""
    with TemporaryDirectory(prefix="soak-") as name:
        case = Case(number, Path(name))
        case.fill()
        began = time.monotonic()
        assert case.start(Path(name) / "other").wait() == 0
        took = time.monotonic() - began
        killed = case.start(case.lake)
        time.sleep(case.rng.uniform(0, took))
        killed.kill()
        killed.wait()
        case.check()
        lakes.run(case.lake, None, case.folder)
        case.check()
        lakes.nothing_left(case.lake)
        lakes.assert_as_one_run(case.folder, case.lake)


def check_damage(number: int) -> None:
    """Damage a file of a lake; one line of ``wireyard lake check`` names it."""
    with TemporaryDirectory(prefix="soak-") as name:
        case = Case(number, Path(name))
        case.fill()
        lakes.run(case.lake, None, case.folder)
        held = read_lake(str(case.lake))
        tables = filter(is_shown, held.files)
        files = [Path(path) for table in tables for path in held.paths(table)]
        record = case.lake / "_wireyard" / "commits" / f"{held.commits:08d}.json"
        path = record if case.rng.random() < 0.2 else case.rng.choice(files)
        # Nothing lists the newest record, so that nothing shows that it is gone.
        damage_file(case.rng, path, case.rng.choice(files), may_delete=path != record)
        done = CliRunner().invoke(wireyard, ["lake", "check", str(case.lake)])
        problem = f"the record of commit {held.commits}" if path == record else str(path)
        shown = [line for line in done.output.splitlines() if problem in line]
        assert done.exit_code == 1 and len(shown) == 1, (path, done.output, done.exception)
        others = [line for line in done.output.splitlines() if any(str(f) in line for f in files)]
        assert set(others) <= set(shown), others


def damage_file(rng: Random, path: Path, other: Path, *, may_delete: bool) -> None:
    """Change some bytes of a file, cut it off, make it longer, replace it, or delete it."""
    data = bytearray(path.read_bytes())
    match rng.randrange(5 if may_delete else 4):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data += rng.randbytes(rng.randint(1, 99))
        case 3 if other.read_bytes() != data:
            data[:] = other.read_bytes()
        case _:
            path.unlink()
            return
    path.unlink()  # the folders of readers have the same file by another name
    path.write_bytes(data)


class Case:
    """Files that grow in a folder, and the lake that follows it."""

    def __init__(self, number: int, folder: Path) -> None:
        self.rng = Random(number)
        self.folder, self.lake = folder / "in", folder / "lake"
        self.folder.mkdir()
        chosen = self.rng.sample(SOURCES, self.rng.randint(1, 4))
        self.sources = {f"{place}{path.suffix}": path for place, path in enumerate(chosen)}
        self.partition_by = "day" if self.rng.random() < 0.2 else None
        self.beside = self.rng.random() < 0.4
        """Whether facts of all packets are made beside the parts, however few they are."""
        self.most_bytes = self.rng.choice((1 << 12, 1 << 16, 1 << 28))

    @property
    def growing(self) -> list[str]:
        """The files that are not all there."""
        return [name for name, path in self.sources.items() if self.left(name)]

    @property
    def has_commit(self) -> bool:
        """Whether the lake is there: the first process may be killed before."""
        return any(self.lake.glob("_wireyard/commits/*.json"))

    def left(self, name: str) -> int:
        """Return how many bytes of a file were not written."""
        there = self.folder / name
        size = there.stat().st_size if there.exists() else 0
        return self.sources[name].stat().st_size - size

    def write(self, rng: Random) -> None:
        """Write a piece of some file."""
        if not (names := self.growing):
            return
        name = rng.choice(names)
        left = self.left(name)
        size = left if rng.random() < 0.1 else rng.randint(1, max(1, min(left, 60_000)))
        at = self.sources[name].stat().st_size - left
        with (self.folder / name).open("ab") as file:
            file.write(self.sources[name].read_bytes()[at : at + size])

    def fill(self) -> None:
        """Write all files whole."""
        for name, path in self.sources.items():
            shutil.copy(path, self.folder / name)

    def start(self, lake: Path) -> subprocess.Popen[bytes]:
        """Begin a run over the folder as it is."""
        words = ("run", str(self.folder), "--lake", str(lake), "--engine", "process", "--quiet")
        return subprocess.Popen([sys.executable, "-m", "wireyard", *words])

    def follow(self, seed: int, *, to_the_end: bool) -> int:
        """Follow the folder in a process of its own; return its exit status."""
        process = _FORKS.Process(target=self._follow, args=(Random(seed), to_the_end))
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    def _follow(self, rng: Random, to_the_end: bool) -> None:
        watching.SETTLED_S = SETTLED_S  # type: ignore[misc]
        following._COMMIT_S = 0.0  # type: ignore[misc]
        following._POLL_S = 0.001  # type: ignore[misc]
        if self.beside:
            growth.take_long = lambda packets: True  # type: ignore[attr-defined]
        looks, kills = rng.randint(5, 60), not to_the_end and rng.random() < 0.6
        commit = Lake.commit

        def may_kill(lake: Lake, change: object) -> object:
            """Commit, and be killed before or after it now and then."""
            if kills and rng.random() < 0.05:
                os._exit(_KILLED)
            done = commit(lake, change)  # type: ignore[arg-type]
            if kills and rng.random() < 0.05:
                os._exit(_KILLED)
            return done

        Lake.commit = may_kill  # type: ignore[method-assign,assignment]

        def stop() -> bool:
            """Write, and end or be killed after some looks."""
            nonlocal looks
            if rng.random() < 0.6:
                self.write(rng)
            elif rng.random() < 0.1:
                time.sleep(2 * SETTLED_S)  # it stands still
            looks -= 1
            if looks <= 0 and kills:
                os._exit(_KILLED)
            return looks <= 0

        with Lake.open(str(self.lake), partition_by=self.partition_by) as lake:
            given = lake, [str(self.folder)], None, Silent(), Quiet(), stop
            follow_lake(*given, most_bytes=self.most_bytes)

    def check(self) -> None:
        """Assert that no row is twice in the lake."""
        if not self.has_commit:
            return
        held = read_lake(str(self.lake))
        for table in held.files:
            if table == OPEN_STATES or not held.files[table]:
                continue
            keys = _KEYS.get(table, ("source", "stream", "offset"))
            if table in _KEYS or table.startswith("packets_"):
                rows = held.read(table, columns=list(keys)).to_pylist()
                most = Counter(tuple(row.values()) for row in rows).most_common(1)
                assert not most or most[0][1] == 1, (table, most)


def check_case(number: int) -> None:
    """Make one case and assert what is to hold."""
    with TemporaryDirectory(prefix="soak-") as name:
        case = Case(number, Path(name))
        case.write(case.rng)
        for _ in range(case.rng.randint(1, 6)):
            status = case.follow(case.rng.getrandbits(32), to_the_end=False)
            assert status in (0, _KILLED), status
            case.check()
            if case.has_commit and case.rng.random() < 0.2:
                lakes.run(case.lake, None, case.folder)
                case.check()
        while case.growing:
            case.write(case.rng)
        assert case.follow(case.rng.getrandbits(32), to_the_end=True) == 0
        case.check()
        lakes.assert_as_one_run(case.folder, case.lake)


_JUDGED: Final = 0.1
_CHECKS: Final[dict[str, Callable[[int], None]]] = {
    "following": check_case,
    "kills": check_kill,
    "damage": check_damage,
    "runs": partial(check_runs, judged=_JUDGED),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases until the time or the number given is over; return the exit status."""
    given = parse_arguments("tests.spark.soak", __doc__, arguments, [*_CHECKS])
    seed = secrets.randbelow(1 << 48) if given.seed is None else given.seed
    until_s = time.monotonic() + 60 * given.minutes if given.minutes is not None else float("inf")
    print(f"seed {seed}", flush=True)
    for number in itertools.count(seed):
        if number - seed == given.cases or time.monotonic() >= until_s:
            break
        try:
            _CHECKS[given.kind](number)
        except BaseException:
            again = f"--kind {given.kind} --seed {number} --cases 1"
            print(f"case {number} fails; again: {again}", flush=True)
            raise
        print(f"{number - seed + 1} cases", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
