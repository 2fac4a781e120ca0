"""A scenario of a broker and its clients in a time of its own, recorded; a test may plant defects.

A defect changes what the broker sends before it is recorded and before the client acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.broker.jmq import talk
from wireyard import encode, jmq, mqtt
from wireyard.broker.core import Core
from wireyard.broker.recording import Recording, Tape
from wireyard.broker.session import Link
from wireyard.broker.settings import Settings
from wireyard.formats import get_format
from wireyard.formats.mqtt.control import Packet
from wireyard.streams.decoder import Decoder

SERVER = ("10.0.0.1", 1883)
Defect = Callable[["Scenario", str, Packet], Sequence[Packet]]
"""The scenario, the client, and a packet to it -> the packets that it gets instead."""
JmsDefect = Callable[["JmsScenario"], None]
"""Is called before anybody connects."""


class Touched(NamedTuple):
    """Packets that a defect is about: every one that has these values, each None any."""

    packet: str | None = None
    destination: str | None = None
    payload: bytes | None = None


def none(scenario: Scenario, client: str, packet: Packet) -> Sequence[Packet]:
    """Change nothing."""
    return (packet,)


class Scenario:
    """A broker, clients of MQTT 5.0, and what all of them do.

    `touched` has what a defect was about; a defect fills it.
    """

    def __init__(self, path: Path, defect: Defect = none, began: float = 1_700_000_000.0) -> None:
        self.now = began
        self.touched: set[Touched] = set()
        self._defect = defect
        self._file = path.open("wb")
        self._recording = Recording(self._file, lambda: int(self.now * 1e9))
        self._core = Core(Settings(), lambda line: None)
        self._core.tick(self.now)
        self._clients: dict[str, _Client] = {}
        self._port = int(began) % 20_000 + 20_000

    def run(self, rounds: int = 12) -> None:
        """Have the clients do everything that a defect may show in."""
        self.connect("display")
        self.connect("till")
        self.send("display", mqtt.Subscribe, packet_id=1, filters=[("shop/#", 1), ("gone/#", 1)])
        self.connect("sleeper", clean_start=False, properties={"session_expiry_interval": 600})
        self.send("sleeper", mqtt.Subscribe, packet_id=1, filters=[("shop/2", 1)])
        for number in range(rounds):
            self.wait(0.1)
            for topic in ("shop/1", "shop/2"):
                self.publish("till", topic, b"%d" % number, qos=number % 2, number=number)
            if number == 3:
                self.disconnect("sleeper")
        for number in range(3):
            kept = f"shop/kept/{number}"
            self.publish("till", kept, b"value", qos=1, number=number, retain=True)
        self.connect("sleeper", clean_start=False, properties={"session_expiry_interval": 600})
        self.connect("late")
        self.send("late", mqtt.Subscribe, packet_id=1, filters=[("shop/kept/#", 1)])
        for number in range(3):
            will = {"will_topic": f"gone/{number}", "will_payload": b"bye", "will_qos": 1}
            self.connect(f"doomed {number}", will_retain=False, **will)
            self.cut(f"doomed {number}")
        self.connect("guest")
        self.end("display", "late", "till", "sleeper", "guest")

    def end(self, *names: str) -> None:
        """Show that nothing more comes, and end."""
        for name in names:
            self.send(name, mqtt.PingReq)
        for name in names:
            self.disconnect(name)
        self._file.close()

    # --- what clients do ------------------------------------------------------------------

    def connect(self, name: str, **fields: Any) -> None:
        self._port += 1
        self._clients[name] = _Client(self._core, self._recording, name, self._port)
        self.send(name, mqtt.Connect, client_id=name, **fields)

    def publish(self, name: str, topic: str, payload: bytes, number: int, **fields: Any) -> None:
        if fields["qos"]:
            self._clients[name].last_id += 1
            fields["packet_id"] = self._clients[name].last_id
        properties = [("user_property", ("number", str(number)))]
        self.send(name, mqtt.Publish, topic=topic, payload=payload, properties=properties, **fields)

    def send(self, name: str, kind: type[Packet], **fields: Any) -> None:
        client = self._clients[name]
        if client.link is None:
            return
        data = encode(kind(version_in_force=5, **fields))
        client.tape.write(True, data)
        self.wait(0.001)
        self._core.receive(client.link, data, self.now)
        self._deliver()

    def disconnect(self, name: str) -> None:
        self.send(name, mqtt.Disconnect)
        self.cut(name)

    def cut(self, name: str) -> None:
        client = self._clients[name]
        if client.link is not None:
            client.tape.close(by_client=True)
            self._core.lose(client.link)
            client.link = None
            self._deliver()

    def forget(self, name: str) -> None:
        """Have the broker lose a session."""
        self._core._discard(self._core.router.sessions[name])

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._core.tick(self.now)

    def _deliver(self) -> None:
        self._core.tick(self.now)
        for link in [*self._core.take_dirty()]:
            name, client = next((n, c) for n, c in self._clients.items() if c.link is link)
            client.decoder.receive_data(link.endpoint.take())
            for event in [*client.decoder.events()]:
                for packet in self._defect(self, name, event.packet):
                    self.wait(0.001)
                    client.tape.write(False, encode(packet))
                    self._answer(name, packet)

    def _answer(self, name: str, packet: Packet) -> None:
        if isinstance(packet, mqtt.Publish) and packet.qos == 1:
            self.send(name, mqtt.PubAck, packet_id=packet.packet_id)
        elif isinstance(packet, mqtt.ConnAck) and packet.return_code:
            self.cut(name)


class _Client:
    def __init__(self, core: Core, recording: Recording, name: str, port: int) -> None:
        self.tape = recording.open(("10.0.0.2", port), SERVER)
        link = core.open_link(f"10.0.0.2:{port}")
        assert link is not None
        self.link: Link | None = link
        self.decoder = Decoder(get_format("mqtt/5.0"))
        self.last_id = 0


class JmsScenario:
    """A broker, clients of JMS, and what all of them do.

    `change` has each packet that the broker sends, before it is recorded and before a client acts.
    """

    def __init__(
        self, path: Path, defect: JmsDefect = lambda scenario: None, began: float = 1_700_000_000.0
    ) -> None:
        self.broker = talk.Broker()
        self.touched: set[Touched] = set()
        self.broker.now = began
        self.broker.wait(0)
        self.change: Callable[[jmq.Packet], jmq.Packet] = lambda packet: packet
        self._file = path.open("wb")
        self._recording = Recording(self._file, lambda: int(self.broker.now * 1e9))
        self._port = 40_000
        defect(self)

    def run(self, rounds: int = 12) -> None:
        """Have the clients do everything that a defect may show in."""
        till, tape = self.joined("till")
        producer = till.producer("stock")
        soon = int((self.broker.now + 1) * 1000)
        for number in range(rounds):
            text = f"{number}"
            till.send(producer, text, destination="stock", priority=number % 10)
        for number in range(3):
            till.send(producer, f"short {number}", destination="stock", expiration=soon)
        self.leave(till, tape)
        self.broker.wait(2)
        for left in (3, 0):
            self.consume("desk", "stock", left)
        self.end()

    def consume(self, name: str, queue: str, left: int = 0) -> None:
        """Have a client take all messages of a queue, and acknowledge all but the first."""
        client, tape = self.joined(name)
        client.consumer(client.session(2), queue)
        client.acknowledge(*client.messages()[left:])
        self.leave(client, tape)

    def end(self) -> None:
        """End the recording."""
        self._file.close()

    def joined(self, name: str) -> tuple[talk.Peer, Tape]:
        """Connect a client, and log it in."""
        self._port += 1
        tape = self._recording.open(("10.0.0.2", self._port), SERVER)

        passed = {arrived: Decoder(get_format("jmq")) for arrived in (False, True)}

        def write(arrived: bool, data: bytes) -> None:
            passed[arrived].receive_data(data)
            for event in passed[arrived].events():  # each in a frame of its own
                self.broker.wait(0.001)
                tape.write(arrived, encode(event.packet))

        peer = talk.joined(self.broker, client_id=name, wire=write)
        endpoint, decoder = peer.link.endpoint, Decoder(get_format("jmq"))
        take = endpoint.take

        def changed() -> bytes:
            decoder.receive_data(take())
            return b"".join(encode(self.change(each.packet)) for each in decoder.events())

        endpoint.take = changed  # type: ignore[method-assign]
        return peer, tape

    def leave(self, peer: talk.Peer, tape: Tape) -> None:
        """End a connection."""
        peer.tell("GOODBYE")
        tape.close(by_client=True)
        peer.lose()
