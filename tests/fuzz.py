"""Search for input that is not read as it should be: ``python -m tests.fuzz``.

Each case is made from one number. Most are a stream of damaged packets of one format. It is read by
the scalar reader, the compiled columns and the incremental decoder; they must agree in everything,
and every byte must be accounted for. The others are what is stored beside data (`tests.stored`).
The number of a case that fails is printed, and makes the same case again.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import secrets
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from tests.agreement import CHECKS
from tests.mutations import MAX_CORPUS_BYTES, Corpus, Subject, damaged_streams, subject_of
from tests.readings import assert_one_reading
from tests.stored import STORED
from wireyard.formats import names

__all__ = ["CASE_SECONDS", "check_case", "time_bound"]

CASE_SECONDS = 120
"""Of processor time. No case takes five on the slowest machine seen; this is a hang."""
PACKETS_PER_CASE = 500
CHECKED = 0.1
"""How many of the streams that are one packet are asked more than whether all read them alike."""


@contextmanager
def time_bound(seconds: float = CASE_SECONDS) -> Iterator[None]:
    """End the process with a traceback if what is inside takes so much processor time.

    It ends in a kernel too. The time of a clock would be that of the other programs as well.
    """
    faulthandler.register(signal.SIGPROF, file=sys.__stderr__ or sys.stderr, chain=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)


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


def _checks(
    names: Sequence[str], given: argparse.Namespace
) -> Mapping[str, Callable[[int], Counter[str]]]:
    """Return what makes and checks the case of a number, by name."""
    subjects = {name: subject_of(name) for name in names if name not in STORED}
    formats = {
        name: partial(
            check_case,
            subject=subject,
            corpus=subject.corpus(given.shared),
            packets=given.packets,
        )
        for name, subject in subjects.items()
    }
    return {name: formats.get(name) or STORED[name] for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases until the time or the number given is over; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--format", choices=(*names(), *STORED), help="what to damage; all by turns if not given"
    )
    parser.add_argument("--minutes", type=float, help="how long to search")
    parser.add_argument("--cases", type=int, help="how many cases to try")
    parser.add_argument("--packets", type=int, default=PACKETS_PER_CASE, help="packets per case")
    parser.add_argument("--seed", type=int, help="number of the first case")
    parser.add_argument("--shared", type=Path, help="folder with more packets to start from")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 48) if given.seed is None else given.seed
    checks = _checks([given.format] if given.format else [*names(), *STORED], given)
    print(f"seed {seed}, {given.packets} packets a case", flush=True)

    began = printed_s = time.monotonic()
    until = began + 60 * given.minutes if given.minutes is not None else float("inf")
    done = _Done()
    for number in itertools.count(seed) if given.cases is None else range(seed, seed + given.cases):
        name = [*checks][number % len(checks)]
        try:
            with time_bound():
                done.add(name, 1 if name in STORED else given.packets, checks[name](number))
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
    """What was searched, by format or kind; a case of what is stored counts as a packet."""

    def __init__(self) -> None:
        self._cases = 0
        self._packets: Counter[str] = Counter()
        self._rows: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, name: str, packets: int, rows: Counter[str]) -> None:
        self._cases += 1
        self._packets[name] += packets
        self._rows[name] += rows

    def summary(self, seconds: float) -> str:
        parts = [f"{self._packets.total()} packets in {self._cases} cases, {seconds:.0f} s"]
        for name, rows in self._rows.items():
            found = ", ".join(f"{count} {status}" for status, count in sorted(rows.items()))
            parts.append(f"{name}: {self._packets[name]}, rows {found}")
        return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
