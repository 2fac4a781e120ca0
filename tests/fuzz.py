"""Search for a stream that two readings disagree about: ``python -m tests.fuzz``.

Each case is a stream of damaged packets of one format, made from one number. It is read by the
scalar reader, the compiled columns and the incremental decoder; they must agree in everything, and
every byte must be accounted for. The number of a case that fails is printed, and makes the same
case again.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.agreement import CHECKS
from tests.mutations import MAX_CORPUS_BYTES, Corpus, Subject, damaged_streams, subject_of
from tests.readings import assert_one_reading
from wireyard.formats import names

__all__ = ["CASE_SECONDS", "check_case", "time_bound"]

CASE_SECONDS = 120
"""No case takes five seconds on the slowest machine seen; this is a hang."""
PACKETS_PER_CASE = 500
CHECKED = 0.1
"""How many of the streams that are one packet are asked more than whether all read them alike."""


@contextmanager
def time_bound(seconds: float = CASE_SECONDS) -> Iterator[None]:
    """End the process with a traceback if what is inside hangs, in a kernel too."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def check_case(
    number: int, subject: Subject, corpus: Corpus, packets: int = PACKETS_PER_CASE
) -> Counter[str]:
    """Make one case and assert that all readings of it agree; return its rows by status."""
    rng = Random(number)
    subject = subject.read_as(rng.choice(subject.labels))
    # Under a larger limit one size that lies makes a tail of all that follows.
    limit = rng.choice((*8 * (MAX_CORPUS_BYTES,), 1 << 16, None))
    check = rng.choice(CHECKS)
    rows: Counter[str] = Counter()
    with time_bound():
        streams = damaged_streams(subject, corpus, rng, packets)
        for data in streams:
            table = assert_one_reading(data, rng, limit, subject.format)
            if len(streams) == 1 or rng.random() < CHECKED:
                check(data, table, rng, limit, subject)
            rows.update(table["status"].to_pylist())
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases until the time or the number given is over; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--format", choices=names(), help="all by turns if not given")
    parser.add_argument("--minutes", type=float, help="how long to search")
    parser.add_argument("--cases", type=int, help="how many cases to try")
    parser.add_argument("--packets", type=int, default=PACKETS_PER_CASE, help="packets per case")
    parser.add_argument("--seed", type=int, help="number of the first case")
    parser.add_argument("--shared", type=Path, help="folder with more packets to start from")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 48) if given.seed is None else given.seed
    subjects = [subject_of(name) for name in ([given.format] if given.format else names())]
    corpora = [subject.corpus(given.shared) for subject in subjects]
    print(f"seed {seed}, {given.packets} packets a case", flush=True)

    began = printed_s = time.monotonic()
    until = began + 60 * given.minutes if given.minutes is not None else float("inf")
    done = _Done(given.packets)
    for number in itertools.count(seed) if given.cases is None else range(seed, seed + given.cases):
        turn = number % len(subjects)
        name = subjects[turn].format.name
        try:
            done.add(name, check_case(number, subjects[turn], corpora[turn], given.packets))
        except Exception:
            again = f"--format {name} --seed {number} --cases 1"
            print(f"case {number} of {name} fails; again: {again}", flush=True)
            raise
        now = time.monotonic()
        if now >= until:
            break
        if now - printed_s > 10:
            printed_s = now
            print(done.summary(now - began), flush=True)
    print(done.summary(time.monotonic() - began))
    return 0


class _Done:
    """What was searched, by format."""

    def __init__(self, packets: int) -> None:
        self._packets = packets
        self._cases: Counter[str] = Counter()
        self._rows: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, name: str, rows: Counter[str]) -> None:
        self._cases[name] += 1
        self._rows[name] += rows

    def summary(self, seconds: float) -> str:
        cases = self._cases.total()
        parts = [f"{cases * self._packets} packets in {cases} cases, {seconds:.0f} s"]
        for name, rows in self._rows.items():
            found = ", ".join(f"{count} {status}" for status, count in sorted(rows.items()))
            parts.append(f"{name}: {self._cases[name] * self._packets}, rows {found}")
        return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
