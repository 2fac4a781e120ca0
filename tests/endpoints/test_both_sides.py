"""A client's endpoint and a broker's on a wire that breaks at any place: nothing is lost."""

from __future__ import annotations

import random

import pytest

from wireyard.endpoints import (
    ClientEndpoint,
    Completed,
    Delivery,
    Ended,
    Flows,
    Limits,
    Message,
    ServerEndpoint,
)
from wireyard.formats.mqtt.control import Connect

MESSAGES = 40


class Line:
    """A session of one client with a broker, over connections that break."""

    def __init__(self, version: int, seed: int) -> None:
        self.version, self.random = version, random.Random(seed)
        self.client_flows, self.broker_flows = Flows(), Flows()
        self.limits = Limits(in_flight=5, oldest_version=2)
        self.was_connected = False
        self.received: dict[bool, list[bytes]] = {True: [], False: []}

    def connect(self) -> None:
        self.client, self.broker = ClientEndpoint(self.limits), ServerEndpoint(self.limits)
        packet = Connect(client_id="a", clean_start=False, version_in_force=self.version)
        self.client.open(packet, self.client_flows)
        self.broker.receive(self.client.take(), 0.0)
        self.broker.accept(self.broker_flows, self.was_connected, {}, 0.0)
        self.was_connected = True

    def carry(self, *, from_client: bool) -> None:
        """Bring some of the bytes over, perhaps all."""
        sender, receiver = (self.client, self.broker)[:: 1 if from_client else -1]
        data = sender.take()
        part = data[: self.random.choice((len(data), self.random.randint(0, len(data))))]
        self.is_broken = len(part) < len(data)
        for event in receiver.receive(part, 0.0):
            assert not isinstance(event, Ended), event
            # A PUBREL that comes again is answered with 146, which is no error then.
            assert not isinstance(event, Completed) or event.code in (0, 16)
            if isinstance(event, Message):
                self.received[from_client].append(event.payload)
                receiver.acknowledge(event)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(7))
def test_nothing_is_lost_and_of_qos_2_nothing_comes_twice(
    version: int, qos: int, seed: int
) -> None:
    line = Line(version, seed)
    left = {True: list(range(MESSAGES)), False: list(range(MESSAGES))}
    line.connect()
    while any(left.values()) or line.client_flows.sending or line.broker_flows.sending:
        for from_client, side in ((True, line.client), (False, line.broker)):
            while left[from_client] and side.room > 0:
                number = left[from_client].pop(0)
                side.send(Delivery(Message("t", b"%d" % number, qos), qos), 0.0)
            line.carry(from_client=from_client)
            if line.is_broken:
                line.connect()
                break
    for got in line.received.values():
        assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(MESSAGES)]
        assert qos == 1 or len(got) == MESSAGES
    assert not line.client_flows.receiving and not line.broker_flows.receiving
