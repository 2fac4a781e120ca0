"""Search for a capture whose streams read together are not what each is by itself.

``python -m tests.captures.fuzz --minutes 5``. Each case is a capture of a few connections of MQTT
and JMQ, most of them damaged or broken, made from one number; ``--seed`` makes a case again.
"""

from __future__ import annotations

import argparse
import itertools
import secrets
import time
from collections.abc import Sequence
from random import Random

from tests.captures.connections import make_capture
from tests.captures.test_bundled import REQUESTS, check
from tests.fuzz import time_bound

_TOLD = 200
"""Captures between two lines about what was searched."""


def check_case(number: int) -> int:
    """Make one capture and assert that both ways to read it agree; return its rows."""
    rng = Random(number)
    data = make_capture(rng, rng.choice((1, 1, 2, 6)), lossy=rng.random() < 0.5)
    try:
        return check(data, rng.choice(REQUESTS[:-1]))
    except Exception:
        print(f"case {number} fails; again: --seed {number} --cases 1", flush=True)
        raise


def parse_arguments(
    program: str,
    description: str | None,
    arguments: Sequence[str] | None,
    kinds: Sequence[str] = (),
) -> argparse.Namespace:
    """Parse the arguments of a search over cases of these kinds, which are made from numbers."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--minutes", type=float, help="how long to search")
    parser.add_argument("--cases", type=int, help="how many cases to try")
    parser.add_argument("--seed", type=int, help="number of the first case")
    if kinds:
        parser.add_argument("--kind", choices=kinds, default=kinds[0], help="what to try")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases until the time or the number given is over; return the exit status."""
    given = parse_arguments("tests.captures.fuzz", __doc__, arguments)
    seed = secrets.randbelow(1 << 48) if given.seed is None else given.seed
    until = time.monotonic() + 60 * given.minutes if given.minutes is not None else float("inf")
    print(f"seed {seed}", flush=True)
    cases = rows = 0
    for first in itertools.count(seed, _TOLD):
        last = first + _TOLD if given.cases is None else min(first + _TOLD, seed + given.cases)
        for number in range(first, last):
            with time_bound():
                rows += check_case(number)
        cases += max(last - first, 0)
        print(f"{cases} captures, {rows} rows", flush=True)
        if last < first + _TOLD or time.monotonic() >= until:
            break
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
