"""Two endpoints that run one table each, over connections that are cut anywhere."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any, Final

import pytest

from tests.layers.mqtt.test_flows import Flows
from wireyard.layers.mqtt.qos import IN_FLIGHT, RECEIVER, SENDER, UNASKED
from wireyard.layers.states import Cell, StateTable

MESSAGES: Final = 30
WINDOW: Final = 5
DUE: Final = {
    # What a sender owes, by state, once a connection is there again.
    "resend_1": "dup_1", "resend_2": "dup_2", "unread_2": "pubrel", "rerelease": "pubrel",
}  # fmt: skip
ANSWERS: Final = {"owes_puback": "puback", "owes_pubrec": "pubrec", "owes_pubcomp": "pubcomp"}

Packet = tuple[int, str]


class Link:
    """A publisher, a receiver, and what is under way between them."""

    def __init__(self, random: Random, table: StateTable[str, str, str] = RECEIVER) -> None:
        self.random = random
        self.sender, self.receiver = Flows(SENDER), Flows(table)
        self.down, self.up = deque[Packet](), deque[Packet]()
        self.waiting = [(number, random.choice((1, 2))) for number in range(MESSAGES)]
        self.qos = dict(self.waiting)
        self.tracked: dict[int, int] = {}
        self.got = Counter[int]()
        self.cuts = 0

    def send(self, packet_id: int, event: str) -> None:
        self.lawful(self.sender.step(packet_id, event))
        self.down.append((packet_id, event))

    @staticmethod
    def lawful(cell: Cell[str, str]) -> Cell[str, str]:
        assert cell.rule is None, cell
        return cell

    def publish(self) -> None:
        """Send a new message under the lowest identifier that is not in flight."""
        used = set(self.sender.in_flight())
        if not self.waiting or len(used) == WINDOW:
            return
        number, qos = self.waiting.pop(0)
        packet_id = min(set(range(1, WINDOW + 1)) - used)
        self.tracked[packet_id] = number
        self.send(packet_id, f"publish_{qos}")

    def receive(self) -> None:
        if not self.down:
            return
        packet_id, event = self.down.popleft()
        fact = self.lawful(self.receiver.step(packet_id, event)).effect
        again_at_qos_1 = fact == "duplicate" and event == "dup_1"
        self.got[self.tracked[packet_id]] += fact == "delivered" or again_at_qos_1
        answer = ANSWERS[self.receiver.state(packet_id)]
        self.lawful(self.receiver.step(packet_id, answer))
        self.up.append((packet_id, answer))

    def answer(self) -> None:
        if self.up:
            packet_id, event = self.up.popleft()
            if self.lawful(self.sender.step(packet_id, event)).effect == "received":
                self.send(packet_id, "pubrel")

    def cut(self) -> None:
        if self.cuts < 40:
            self.cuts += 1
            self.down.clear()
            self.up.clear()
            self.sender.connect(True)
            self.receiver.connect(True)
            for packet_id in sorted(self.sender.in_flight()):
                self.send(packet_id, DUE[self.sender.state(packet_id)])

    def run(self) -> None:
        steps = (self.publish, self.receive, self.answer, self.cut)
        while self.waiting or any(True for _ in self.sender.in_flight()):
            self.random.choices(steps, (4, 4, 4, 1))[0]()


def keeps_its_promise(link: Link) -> bool:
    """Return whether every message came, and those at QoS 2 once."""
    return all(
        link.got[number] == 1 if qos == 2 else link.got[number] >= 1
        for number, qos in link.qos.items()
    )


@pytest.mark.parametrize("seed", range(200))
def test_at_least_once_and_exactly_once(seed: int) -> None:
    link = Link(Random(seed))
    link.run()
    assert keeps_its_promise(link)
    assert link.cuts and not IN_FLIGHT & {link.sender.state(one) for one in range(1, WINDOW + 1)}


def test_a_receiver_that_forgets_is_caught() -> None:
    """The same runs find one that hands a message at QoS 2 over again when it comes again."""
    rows: dict[str, Any] = {state: RECEIVER.row(state) for state in RECEIVER.states}
    rows["held"]["dup_2"] = Cell("owes_pubrec", "delivered")
    wrong: StateTable[str, str, str] = StateTable(rows, RECEIVER.events, event_rules=UNASKED)
    links = [Link(Random(seed), wrong) for seed in range(200)]
    for link in links:
        link.run()
    assert not all(map(keeps_its_promise, links))
