"""Damaged files: rows or a clear error, never a crash, and every byte accounted for."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from random import Random
from zlib import adler32

import pytest

from tests.captures.stores.judge import judged
from tests.captures.stores.make import (
    FREE,
    RECORD,
    group,
    log,
    log_header,
    log_record,
    message,
    packets,
    record,
    single,
    states,
    vrfile,
)
from tests.captures.stores.test_configrecord import MAGIC, entry
from tests.captures.stores.test_maps import DATA, STREAM, info, lists, text, uid
from tests.captures.stores.test_txnlog import EVENTS
from tests.captures.test_fuzz import damage
from tests.fuzz import time_bound
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.read import read_store

CASES = 3000
Corpus = list[tuple[Kind, bytes]]

_SUM_AT, _BODY_AT = 36, 48


@pytest.fixture(scope="module")
def corpus(examples: Path) -> Corpus:
    """Return files of every kind, real ones and made ones with everything in them."""
    return make_corpus(examples)


def make_corpus(examples: Path) -> Corpus:
    made = packets(6)
    events = [log_record(body, number) for number, (body, _) in enumerate(EVENTS.values())]
    old = [
        log_record(struct.pack(">qi", 7, 2) + made[1] + made[2], 0, type=1),
        log_record(group((-1, EVENTS["send"][0]), (-1, EVENTS["local complete"][0])), 1, type=8),
        log_record(EVENTS["send"][0], 2, checkpoint=1),
    ]
    body = EVENTS["local prepare"][0][2:]
    transaction = STREAM + uid(f"{DATA}TransactionUID", 77) + info(5) + b"%CD\6"
    return [
        *((file.kind, file.data) for file in read_store(examples / "store")),
        (Kind.LOG, log(*events)),
        (Kind.LOG, log(*old, header=log_header(cookie=0))),
        (Kind.INCOMPLETE, vrfile(record(struct.pack(">i", len(body)) + body))),
        (Kind.MESSAGES, vrfile(*(record(message(one, (1, 2), (3, 0))) for one in made), version=1)),
        (Kind.MESSAGES, vrfile(record(message(made[0]), FREE), record(message(made[1]), 2, -1))),
        (Kind.MESSAGE, single(made[3], states((1, 1)))),
        (Kind.PREPARED, single(body)),
        (Kind.TRANSACTIONS, vrfile(record(transaction))),
        (Kind.MAP, vrfile(record(STREAM + text("k") + lists(3, 2)), record(STREAM + b"pp"))),
        (Kind.CONFIG, MAGIC + entry(3) + entry(9)),
    ]


def sealed(data: bytes) -> bytes:
    """Return a log with the sums its records and its header should have, as far as it has some."""
    out = bytearray(data)
    out[32:40] = struct.pack(">q", adler32(out[:32]))[: max(0, len(out) - 32)]
    at = _BODY_AT
    while out[at : at + 4] == RECORD and len(out) - at >= _BODY_AT:
        size = int.from_bytes(out[at + 8 : at + 12], "big")
        total = adler32(out[at + _BODY_AT : at + _BODY_AT + size])
        out[at + _SUM_AT : at + _SUM_AT + 8] = struct.pack(">q", total)
        at += _BODY_AT + size
    return bytes(out)


def run_case(number: int, corpus: Corpus) -> Counter[str]:
    """Make one case, check it, and return its records by status."""
    rng = Random(number)
    kind, data = rng.choice(corpus)
    damaged = damage(data, rng)
    if kind is Kind.LOG and rng.random() < 0.7:
        damaged = sealed(damaged)
    if rng.random() < 0.02:
        kind = rng.choice(list(Kind))
    with time_bound():
        return Counter(one.status for one in judged(kind, damaged))


def test_damaged_files(corpus: Corpus) -> None:
    found: Counter[str] = Counter()
    for number in range(CASES):
        found += run_case(number, corpus)
    assert found.keys() == {"ok", "malformed", "garbage", "tail"}
    assert all(count > CASES // 30 for count in found.values()), found


def test_the_corpus_itself_is_whole(corpus: Corpus) -> None:
    for kind, data in corpus:
        assert {one.status for one in judged(kind, data)} == {"ok"}
