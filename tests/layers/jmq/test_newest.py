"""The newest packets give the rows that all packets so far give, or none yet."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wireyard
from tests.layers.jmq.judge import NO_ENDS
from tests.layers.jmq.make import BROKER, Talk
from tests.layers.jmq.recorded import SCENARIOS, ended
from tests.layers.kept_rows import KeptRows, derived_rows
from wireyard.captures.stream_table import streams_table
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.rows import rows_to_batch
from wireyard.layers import newest
from wireyard.layers.jmq.newest import JMS
from wireyard.layers.jmq.tracking import Ends
from wireyard.layers.newest import NewestPackets, NewestRows
from wireyard.schema import CAPTURED, COMMON

Tables = dict[str, pa.Table]
Whole = dict[int, dict[str, list[Row]]]
"""Rows of tables that all packets up to a time give."""

SOURCE = "made.pcap"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "traffic.pcap"


class Traffic:
    """Producers, and consumers of all kinds who come and go, in one capture."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.talks: list[Talk] = []
        self.now_ms = 1_000
        self.waiting: list[Row] = []
        self.producers = [self.connect(b"p%d" % number) for number in range(3)]
        self.consumers = [self.consumer(number) for number in range(4)]
        self.transactions: dict[int, int] = {}

    def connect(self, name: bytes) -> Talk:
        talk = Talk(client=("10.0.0.9", 50_000 + len(self.talks)), now_ms=self.now_ms)
        self.talks.append(talk)
        talk.login()
        talk.request("SET_CLIENTID", JMQClientID=name.decode())
        self.now_ms = talk.now_ms
        return talk

    def consumer(self, kind: int) -> tuple[Talk, int]:
        talk = self.connect(b"c%d" % len(self.talks))
        if kind == 3:
            talk.request("BROWSE", re_JMQConsumerID=7)
        else:
            named = {"JMQDurableName": "lasting"} if kind == 1 else {}
            talk.consumer(7, 32768 if kind == 2 else 1, JMQSessionID=70, **named)
        self.now_ms = talk.now_ms
        return talk, kind

    def on(self, talk: Talk) -> Talk:
        talk.now_ms = max(talk.now_ms, self.now_ms)
        return talk

    def run(self, messages: int) -> None:
        for number in range(messages):
            self.send(number)
            place = self.dice.randrange(len(self.consumers))
            talk, kind = self.consumers[place]
            self.receive(self.on(talk), kind)
            self.now_ms = talk.now_ms
            if self.dice.random() < 0.1:
                self.leave(place)

    def send(self, number: int) -> None:
        dice, talk = self.dice, self.on(self.producers[number % 3])
        values: dict[str, Any] = {"destination": f"orders.{number % 2}", "producer_id": 4}
        if dice.random() < 0.3:
            self.waiting.append(talk.ask("TEXT_MESSAGE", **values))
            talk.reply("SEND_REPLY")
        else:
            self.waiting.append(talk.send(**values))
        if dice.random() < 0.05:
            talk.send(**values, flags="I")
        self.now_ms = talk.now_ms

    def receive(self, talk: Talk, kind: int) -> None:
        dice = self.dice
        if kind == 3:
            for message in self.waiting[:2]:
                talk.deliver(message, 7)
            return
        several = [self.waiting.pop(0) for _ in range(min(dice.randrange(4), len(self.waiting)))]
        given = [talk.deliver(message, 7) for message in several]
        if kind == 2 or not given or dice.random() < 0.1:
            return
        if dice.random() < 0.4:
            number = 100 + talk.ack_id + 1000 * talk.client[1]
            number = self.transactions.pop(talk.client[1], number)
            if number == 100 + talk.ack_id + 1000 * talk.client[1]:
                talk.request("START_TRANSACTION", re_JMQTransactionID=number)
            for one in given:
                talk.acknowledge(one, transaction_id=number)
            if dice.random() < 0.2:
                self.transactions[talk.client[1]] = number
            elif dice.random() < 0.8:
                talk.request("COMMIT_TRANSACTION", JMQTransactionID=number)
            else:
                talk.request("ROLLBACK_TRANSACTION", reply="ROLLBACK_REPLY",
                             JMQTransactionID=number)  # fmt: skip
                talk.tell("REDELIVER", body=b"")
                self.waiting = several + self.waiting
        else:
            talk.acknowledge(*given, status=None if dice.random() < 0.3 else 200)

    def leave(self, place: int) -> None:
        talk, kind = self.consumers[place]
        self.on(talk)
        if self.dice.random() < 0.5:
            talk.request("DELETE_CONSUMER", JMQConsumerID=7)
        talk.goodbye()
        self.now_ms = talk.now_ms
        self.consumers[place] = self.consumer(kind)

    def packets(self) -> Tables:
        rows = [row for talk in self.talks for row in talk.rows]
        return tables_of(sorted(rows, key=lambda row: (row["captured_ns"], row["src_port"])))


def tables_of(rows: list[Row]) -> Tables:
    """Return rows in the order of time as columns, by format."""
    names = {*JMS.needed["jmq"]}
    found = {}
    for format in ("jmq", "gpacket"):
        some = [row for row in rows if row["format"].partition("/")[0] == format]
        columns = [*COMMON, *CAPTURED, *get_format(format).columns]
        wanted = [column for column in columns if column.name in names]
        found[format] = pa.Table.from_batches([rows_to_batch(wanted, some)])
    return found


def recorded(path: Path) -> Tables:
    """Return the packets of a capture in the order of time."""
    found = {}
    for format in ("jmq", "gpacket"):
        some = wireyard.read(str(path), format)
        some = some.select([name for name in JMS.needed["jmq"] if name in some.column_names])
        found[format] = some.sort_by([("captured_ns", "ascending"), ("frame", "ascending")])
    return found


def shown_of(packets: Tables, over: Ends) -> pa.Table:
    """Return what a capture shows of its streams."""
    formats = {
        (row["source"], row["stream"]): format
        for format, some in packets.items()
        for row in some.select(["source", "stream"]).to_pylist()
    }
    shown = []
    for key in sorted(formats):
        ns, frame = over.get(key, (None, None))
        end = {"ended": "fin" if key in over else None, "ended_ns": ns, "ended_frame": frame}
        shown.append({"source": key[0], "stream": key[1], "format": formats[key], **end})
    return streams_table(shown)


def over_until(over: Ends, ns: int, *, last: bool) -> Ends:
    """Return the ends that a capture shows up to a time, or at its own end: all."""
    return {key: end for key, end in over.items() if last or (end[0] or 0) <= ns}


def until(packets: Tables, ns: int, since: int = -1) -> Tables:
    """Return the packets of a span of time."""
    return {
        name: some.filter(
            pa.array([since < at <= ns for at in some["captured_ns"].to_pylist()], pa.bool_())
        )
        for name, some in packets.items()
    }


def as_text(row: Row) -> str:
    return json.dumps(row, default=str, sort_keys=True)


def made(
    packets: Tables, times: list[int], source: str, over: Ends
) -> Iterator[tuple[int, list[NewestRows]]]:
    """Yield rows as they are made part by part, and until when."""
    some = NewestPackets(JMS)
    some.advance(source, times[0])
    for name, rows in until(packets, times[0]).items():
        some.add(name, rows, old=True)
    for since, ns in pairwise(times):
        for name, rows in until(packets, ns, since).items():
            some.add(name, rows)
        shown = shown_of(until(packets, ns), over_until(over, ns, last=ns == times[-1]))
        yield ns, some.rows(shown, [source])


def parts_of(packets: Tables, parts: int) -> list[int]:
    """Return the times that cut packets into parts; the first is a third of them."""
    ns = sorted(at for some in packets.values() for at in some["captured_ns"].to_pylist())
    first = len(ns) // 3
    cuts = [first + (len(ns) - first) * number // parts for number in range(parts + 1)]
    return sorted({ns[min(cut, len(ns) - 1)] for cut in cuts})


def judge(
    packets: Tables,
    source: str,
    over: Ends = NO_ENDS,
    parts: int = 9,
    whole: Whole | None = None,
    *,
    forgets: bool = False,
) -> tuple[set[str], int, Counter[str]]:
    """Compare rows with those of all packets so far.

    Parameters
    ----------
    whole
        Keeps the rows of all packets so far for another comparison with the same packets.
    forgets
        Whether rare packets are forgotten.

    Returns
    -------
    messages, closed_rows, others
        The messages that had some, how many rows were closed, and how many there were of tables
        that are not of messages.
    """
    times = parts_of(packets, parts)
    whole = {} if whole is None else whole

    def rows_of(ns: int) -> dict[str, list[Row]]:
        if ns not in whole:
            so_far = until(packets, ns)
            shown = shown_of(so_far, over_until(over, ns, last=ns == times[-1]))
            whole[ns] = derived_rows(JMS, so_far, shown, source)
        return whole[ns]

    kept = KeptRows(rows_of(times[0]), times[0])
    messages, closed_rows, others = set[str](), 0, Counter[str]()
    for ns, several in made(packets, times, source, over):
        kept.take(several)
        if not forgets:
            others = Counter(kept.judge(rows_of(ns)))
        for name, closed, still_open in several:
            if name not in JMS.tables:
                continue
            closed_rows += closed.num_rows
            expected = {*map(as_text, rows_of(ns)[name])}
            for row in (*closed.to_pylist(), *still_open.to_pylist()):
                if as_text(row) not in expected:
                    # It was acknowledged in a transaction that began before, and the connection
                    # ended.
                    assert name == "deliveries" and row["verdict"] == "in_transaction", row
                    ends = {"verdict": "rolled_back", "outcome": "rolled_back"}
                    assert as_text(row | ends) in expected, row
                if name == "messages":
                    messages.add(row["message_key"])
    return messages, closed_rows, others


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_all_packets_so_far(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(seed)
    traffic.run(120)
    packets = traffic.packets()
    since_ns = parts_of(packets, 9)[0]
    sent = {
        row["sys_message_id"]
        for row in packets["jmq"].to_pylist()
        if row["captured_ns"] > since_ns and row["packet_type"] == 1
        and row["dst_port"] == BROKER[1] and not row["bit_flags"] & FLAGS["I"]
    }  # fmt: skip
    assert len(sent) > 50
    whole: Whole = {}
    for most in (90, 1 << 16):
        monkeypatch.setattr(newest, "MAX_NEWEST", most)
        found, closed, others = judge(packets, SOURCE, whole=whole)
        assert bool(closed) == (most == 90)
        assert found == sent
        assert others["sessions"] > 8
        assert others["conversations"] > 20
        assert others["transactions"] > 2


def test_rows_of_the_example_are_those_of_all_packets_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packets, over = recorded(EXAMPLE), ended(EXAMPLE)
    whole: Whole = {}
    for most in (64, 1 << 16):
        monkeypatch.setattr(newest, "MAX_NEWEST", most)
        found, _, _ = judge(packets, str(EXAMPLE), over, whole=whole)
        assert len(found) > 50


@pytest.mark.shared
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rows_of_recordings_are_those_of_all_packets_so_far(
    scenario: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 100)
    path = shared / "captures" / "openmq" / f"{scenario}.pcap"
    judge(recorded(path), str(path), ended(path))


@pytest.mark.parametrize("seed", range(3))
def test_what_was_forgotten_of_a_connection_gives_no_wrong_row(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 60)
    monkeypatch.setattr(newest, "MAX_RARE", 40)
    traffic = Traffic(seed)
    traffic.run(150)
    packets = traffic.packets()
    found, _, _ = judge(packets, SOURCE, parts=12, forgets=True)
    assert found
    some = NewestPackets(JMS)
    some.advance(SOURCE, 0)
    for at in range(0, packets["jmq"].num_rows, 60):
        some.add("jmq", packets["jmq"].slice(at, 60))
        some.rows(streams_table([]), [SOURCE])
        assert sum(part.num_rows for part in some._rare["jmq"]) <= 40


def of_consumers(traffic: Traffic) -> Tables:
    """Return the packets of the connections that send no messages."""
    packets = traffic.packets()
    producers = {talk.client[1] for talk in traffic.producers}
    ports = [packets["jmq"][name].to_pylist() for name in ("src_port", "dst_port")]
    kept = [not {*pair} & producers for pair in zip(*ports, strict=True)]
    return packets | {"jmq": packets["jmq"].filter(pa.array(kept))}


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_consumers_alone_are_those_of_all_packets_so_far(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = Traffic(seed)
    traffic.run(200)
    packets = of_consumers(traffic)
    times, whole = parts_of(packets, 9), Whole()
    for most in (50, 1 << 16):
        monkeypatch.setattr(newest, "MAX_NEWEST", most)
        found, closed, _ = judge(packets, SOURCE, whole=whole)
        assert bool(closed) == (most == 50)
        first = [row for row in whole[times[-1]]["messages"] if row["captured_ns"] > times[0]]
        # Those that are delivered later than others that were sent after them may be in the gap.
        late = {row["message_key"] for row in first} - found
        assert 2 * len(late) < len(first)


def test_what_may_have_been_delivered_in_the_gap_has_no_row_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 8)
    traffic = Traffic(1)
    traffic.run(1)
    producer, consumer = traffic.producers[0], traffic.connect(b"late")
    consumer.consumer(9, 32768, JMQSessionID=90)
    old, between, new = (traffic.on(producer).send(destination="q") for _ in range(3))
    traffic.now_ms = producer.now_ms

    def rows_of(*delivered: Row) -> set[str]:
        talk = traffic.on(consumer)
        start = len(talk.rows)
        talk.deliver(between, 9)
        for _ in range(20):
            talk.ask("PING")
            talk.reply("PING_REPLY")
        for message in delivered:
            talk.deliver(message, 9)
        rows = [row for one in traffic.talks if one is not producer for row in one.rows]
        packets = tables_of(sorted(rows, key=lambda row: row["captured_ns"]))
        del talk.rows[start:]
        ns = sorted(packets["jmq"]["captured_ns"].to_pylist())
        times = [ns[len(ns) - len(delivered) - 1], ns[-1]]
        return {
            row["message_key"]
            for _, several in made(packets, times, SOURCE, NO_ENDS)
            for name, *both in several
            if name == "messages"
            for some in both
            for row in some.to_pylist()
        }

    assert rows_of(new) == {new["sys_message_id"]}
    assert rows_of(old, between) == set()
