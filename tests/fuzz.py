"""Search for a stream that two readings disagree about: ``python -m tests.fuzz``.

Each case is a stream of damaged packets made from one number. It is read by the scalar reader,
the compiled columns and the incremental decoder; they must agree in everything, and every byte
must be accounted for. The number of a case that fails is printed, and makes the same case again.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa

from tests.mutations import MAX_CORPUS_BYTES, base_corpus, mutated_stream
from tests.readings import JMQ, assert_one_reading, assert_same, table_of
from wireyard.errors import EncodeError
from wireyard.streams.split import walk_pieces

__all__ = ["CASE_SECONDS", "check_case", "corpus_of", "time_bound"]

CASE_SECONDS = 120
"""No case takes two seconds on the slowest machine seen; this is a hang."""
PACKETS_PER_CASE = 500


def corpus_of(shared: Path | None = None) -> list[bytes]:
    """Return the packets to damage: the examples, and the shipped classes' own where they are."""
    corpus = base_corpus(Path(__file__).resolve().parent.parent / "examples")
    if shared is not None and shared.is_dir():
        for path in sorted((shared / "vectors" / "openmq").glob("jmq_*.bin")):
            if 72 <= path.stat().st_size <= MAX_CORPUS_BYTES:
                corpus.append(path.read_bytes())
    return corpus


@contextmanager
def time_bound(seconds: float = CASE_SECONDS) -> Iterator[None]:
    """End the process with a traceback if what is inside hangs, in a kernel too."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def check_case(
    number: int, corpus: Sequence[bytes], packets: int = PACKETS_PER_CASE
) -> Counter[str]:
    """Make one stream and assert that all readings of it agree; return its rows by status."""
    rng = Random(number)
    data = mutated_stream(corpus, rng, packets)
    # Under a larger limit one size that lies makes a tail of all that follows.
    limit = rng.choice((*8 * (MAX_CORPUS_BYTES,), 1 << 16, None))
    with time_bound():
        table = assert_one_reading(data, rng, limit)
        if number % 4 == 0:
            _check_columns(data, table, rng, limit)
        if number % 4 == 1:
            _check_splits(data, table, rng, limit or JMQ.max_packet_bytes)
        if number % 4 == 2:
            _check_encoding(data, table)
    return Counter(table["status"].to_pylist())


def _check_columns(data: bytes, table: pa.Table, rng: Random, limit: int | None) -> None:
    """Any columns, rows and modes are those of the whole."""
    names = rng.sample(table.schema.names, rng.randint(1, 8))
    some = table_of(data, compiled=True, columns=names, max_packet_bytes=limit)
    assert some.equals(table.select(names)), names
    kind = rng.randint(-1, 79)
    for mode in ("permissive", "dropmalformed"):
        found = table_of(
            data,
            compiled=True,
            max_packet_bytes=limit,
            mode=mode,
            where=[("packet_type", "<=", kind)],
        )
        wanted = pa.compute.less_equal(table["packet_type"], kind)
        if mode == "dropmalformed":
            wanted = pa.compute.and_(wanted, pa.compute.equal(table["status"], "ok"))
        assert_same(found, table.filter(wanted).combine_chunks())


def _check_splits(data: bytes, table: pa.Table, rng: Random, limit: int) -> None:
    """Every segment begins at a row and counts its rows, at any split size."""
    starts = table["offset"].to_pylist()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        for _ in range(3):
            split_bytes = rng.randint(max(1, len(data) // 200), len(data))
            at = rows = 0
            for segment in walk_pieces(file.name, len(data), JMQ, limit, split_bytes):
                assert segment.start == at and segment.start in starts
                assert segment.rows is not None
                at, rows = segment.stop, rows + segment.rows
            assert (at, rows) == (len(data), len(starts))


def _check_encoding(data: bytes, table: pa.Table) -> None:
    """What could be decoded is the same after encoding, or has a named reason not to be."""
    well = table.filter(pa.compute.equal(table["status"], "ok"))
    pairs = zip(well["offset"].to_pylist(), well["length"].to_pylist(), strict=True)
    for offset, length in pairs:
        packet = JMQ.decode(data[offset : offset + length], JMQ.context)
        try:
            again = JMQ.encode(packet)
        except EncodeError:
            continue
        found = JMQ.decode(again, JMQ.context)
        assert (found.properties, found.body) == (packet.properties, packet.body)
        assert found.sys_message_id == packet.sys_message_id
        assert JMQ.encode(found) == again


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases until the time or the number given is over; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to search")
    parser.add_argument("--cases", type=int, help="how many streams to try")
    parser.add_argument("--packets", type=int, default=PACKETS_PER_CASE, help="packets per stream")
    parser.add_argument("--seed", type=int, help="number of the first case")
    parser.add_argument("--shared", type=Path, help="folder with more packets to start from")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 48) if given.seed is None else given.seed
    corpus = corpus_of(given.shared)
    print(f"seed {seed}, {given.packets} packets a case, {len(corpus)} to start from", flush=True)

    began = told = time.monotonic()
    until = began + 60 * given.minutes if given.minutes is not None else float("inf")
    rows: Counter[str] = Counter()
    cases = itertools.count() if given.cases is None else range(given.cases)
    done = 0
    for done in cases:
        try:
            rows += check_case(seed + done, corpus, given.packets)
        except Exception:
            print(f"case {seed + done} fails; again: --seed {seed + done} --cases 1", flush=True)
            raise
        now = time.monotonic()
        if now >= until:
            break
        if now - told > 10:
            told = now
            print(_summary(done + 1, given.packets, rows, now - began), flush=True)
    print(_summary(done + 1, given.packets, rows, time.monotonic() - began))
    return 0


def _summary(cases: int, packets: int, rows: Counter[str], seconds: float) -> str:
    found = ", ".join(f"{count} {status}" for status, count in sorted(rows.items()))
    return f"{cases * packets} packets in {cases} cases, {seconds:.0f} s; rows: {found}"


if __name__ == "__main__":
    sys.exit(main())
