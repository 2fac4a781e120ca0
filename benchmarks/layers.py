"""Benchmark: facts against bronze on all cores; state machines and stages of layers on one core.

An event is an input of a machine: a packet, or for the later stages of a chain a keyed record. The
unit that carries over to other machines is a look-up in a table of one cell, measured in the same
run: a state machine in Python can hardly take less. The table shows how many look-ups an event
costs. All figures are processor time, the best of several rounds. Objects that were made before are
excluded from garbage collections, as in a task, which sees its rows once.
"""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import facts
from benchmarks.layer_traffic import PAYLOAD, rmp_packets
from benchmarks.packets import best_seconds
from tests.layers.rmp import make as rmp
from wireyard.formats.base import Row
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.connection import CONNECTION, connection_event
from wireyard.layers.mqtt.deliveries.subscriptions import Subscription, Subscriptions
from wireyard.layers.rmp import Delivered, Event, MessageId, QoS, Want
from wireyard.layers.rmp.chain import CHAIN as RMP
from wireyard.layers.rmp.events import RequestDone
from wireyard.layers.rmp.limits import Drops
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.requests import Request, Requests
from wireyard.layers.stages import Chain, Found, Key, Stage, run_chain

ROUNDS = 5
EVENTS = 30_000
"""Approximate number of events in a round."""
TOPICS, FILTERS = 1_000, 200
PACKET_BYTES = 1_400
_ONE_CELL = {"open": {"packet": "open"}}

_drain = deque[object](maxlen=0).extend


class Case(NamedTuple):
    """Work to measure, and its number of events."""

    work: Callable[[], object]
    events: int


def look_up(rows: Sequence[object]) -> Case:
    """Return the baseline of all cases: iterate over rows, with a look-up for each."""

    def work() -> None:
        state = "open"
        for _ in rows:
            state = _ONE_CELL[state]["packet"]

    return Case(work, len(rows))


# --- machines alone -------------------------------------------------------------------------


def connections() -> Case:
    """Return MQTT connections from CONNECT to DISCONNECT."""
    packets = [(True, layout.CONNECT), (False, layout.CONNACK)]
    packets += [(True, layout.PUBLISH), (False, layout.PUBACK)] * 9 + [(True, layout.DISCONNECT)]
    times = EVENTS // len(packets)

    def work() -> None:
        for _ in range(times):
            state = "new"
            for from_client, kind in packets:
                event = connection_event(from_client, kind, 5)
                assert event is not None
                state = CONNECTION[state, event].state
            assert state == "left"

    return Case(work, times * len(packets))


def subscriptions() -> Case:
    """Return topics looked up among subscriptions, of which two match each."""
    tree = Subscriptions()
    for number in range(FILTERS):
        tree.subscribe(Subscription(f"{number}", f"plant/{number}/#"))
        tree.subscribe(Subscription("all", f"plant/+/line/{number}"))
    topics = [f"plant/{n % FILTERS}/line/{n * 7 % FILTERS}" for n in range(TOPICS)]
    times = EVENTS // TOPICS

    def work() -> None:
        for _ in range(times):
            for topic in topics:
                assert len(list(tree.matching(topic))) == 2

    return Case(work, times * TOPICS)


def rmp_sender() -> Case:
    """Return small messages, from sending each to the packets that they share."""

    def work() -> None:
        sender = rmp.layer(PACKET_BYTES)
        for place in range(EVENTS):
            sender.send(rmp.RING, PAYLOAD, now=place * 1e-6)
            if place % 20 == 0:
                while sender.next_packet(rmp.RING):
                    pass

    return Case(work, EVENTS)


def rmp_receiver(size: int) -> Case:
    """Return messages received, from packets to an event for each; long ones are segmented."""
    sender = rmp.layer(PACKET_BYTES)
    data, messages = PAYLOAD * (size // len(PAYLOAD)), EVENTS // -(-size // PACKET_BYTES)
    packets: list[bytes] = []
    for _ in range(messages):
        sender.send(rmp.RING, data, now=0.0, qos=QoS.UNRELIABLE)
        packets += rmp.packets(sender)
    sender.flush()
    packets += rmp.packets(sender)

    def work() -> None:
        receiver = rmp.layer(PACKET_BYTES)
        for packet in packets:
            receiver.receive(rmp.RING, rmp.YOU, packet, qos=QoS.TOTALLY_ORDERED, now=0.0)
        assert len(rmp.events(receiver)) == messages

    return Case(work, max(messages, len(packets)))


def rmp_requests() -> Case:
    """Return requests alone, with the replies of all other members of a ring of nine."""
    others = [f"10.0.1.{number}:7001" for number in range(8)]
    values = 0, None, None, None, MessageId(rmp.ME, 0), False, PAYLOAD, ()
    replies = [Delivered(rmp.RING, source, QoS.TOTALLY_ORDERED, *values) for source in others]
    times = EVENTS // (1 + len(others))

    def work() -> None:
        events: deque[Event] = deque()
        numbers = Numbers(0)
        requests = Requests(numbers, Drops(10), len(others), events)
        for _ in range(times):
            number = numbers.allocate(Hold.PENDING, 0.0)
            members = frozenset(others)
            asked = Request(rmp.RING, Want.ALL, 1.0, 0.0, None, None, number, members)
            requests.add(asked, 0.0)
            for reply in replies:
                requests.reply(number, reply, 0.0)
        assert len(events) == times * (1 + len(others))

    return Case(work, times * (1 + len(others)))


def rmp_replies() -> Case:
    """Return requests, with a reply to each from all other members of a ring of nine."""
    others = [f"10.0.1.{number}:7001" for number in range(8)]
    replies = [
        rmp.plain(PAYLOAD, reply_message_number=number, reply_source=rmp.ME)
        for number in range(EVENTS // 10)
    ]

    def work() -> None:
        asker = rmp.layer(PACKET_BYTES, members=(rmp.ME, *others), first_number=0)
        receive, ends = partial(asker.receive, rmp.RING, qos=QoS.TOTALLY_ORDERED, now=0.0), 0
        for reply in replies:
            asker.request(rmp.RING, PAYLOAD, now=0.0, want=Want.ALL, timeout_s=1.0)
            while (packet := asker.next_packet(rmp.RING)) is not None:
                receive(rmp.ME, packet[1])
            for source in others:
                receive(source, reply)
            while (event := asker.next_event()) is not None:
                ends += type(event) is RequestDone
        assert ends == len(replies)

    return Case(work, (2 + len(others)) * len(replies))


MACHINES: dict[str, Callable[[], Case]] = {
    "MQTT connection": connections,
    "MQTT subscriptions, topics": subscriptions,
    "RMP sender, 64 bytes": rmp_sender,
    "RMP receiver, 64 bytes": partial(rmp_receiver, 64),
    "RMP receiver, 64 KiB, packets": partial(rmp_receiver, 1 << 16),
    "RMP requests": rmp_requests,
    "RMP requests, from packets": rmp_replies,
}


# --- stages of chains -----------------------------------------------------------------------


def stages(name: str, chain: Chain, packets: Sequence[tuple[Key, Row]]) -> dict[str, Case]:
    """Return a case for each stage of a chain with its recorded input, and one for all stages."""
    inputs: dict[str, list[list[Any]]] = {stage: [] for stage in chain}

    def recording(stage: str, records: Iterator[Any]) -> Iterator[Found]:
        inputs[stage].append(list(records))
        yield from chain[stage](iter(inputs[stage][-1]))

    run_chain({stage: partial(recording, stage) for stage in chain}, packets)
    cases = {
        f"{name} {stage}": repeated(run_stage(chain[stage], keys)) for stage, keys in inputs.items()
    }
    whole = Case(partial(run_chain, chain, packets), len(packets))
    return {**cases, f"{name}, the whole chain": repeated(whole)}


def run_stage(stage: Stage, keys: Sequence[Sequence[Any]]) -> Case:
    """Return the case of a stage over the records of each key."""

    def work() -> None:
        for records in keys:
            _drain(stage(iter(records)))

    return Case(work, sum(map(len, keys)))


def repeated(case: Case) -> Case:
    """Repeat a case until it has enough events to be measured."""
    times = -(-EVENTS // case.events)

    def work() -> None:
        for _ in range(times):
            case.work()

    return Case(work, times * case.events)


def main() -> None:
    """Measure and print one table."""
    facts.main()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    packets = rmp_packets()
    cases = {"rows, a look-up for each": repeated(look_up(packets))}
    cases |= {name: make() for name, make in MACHINES.items()}
    cases |= stages("RMP", RMP, packets)
    gc.collect()
    gc.freeze()
    seconds = {name: best_seconds(case.work, ROUNDS, process_time) for name, case in cases.items()}
    rates = {name: cases[name].events / taken for name, taken in seconds.items()}
    baseline = next(iter(rates.values()))
    table = Table(title="state machines, one core, time of the processor")
    for heading in ("case", "events", "events/s", "look-ups an event"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for name, rate in rates.items():
        figures = f"{cases[name].events:,}", f"{rate:,.0f}", f"{baseline / rate:.1f}"
        table.add_row(name, *figures)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
