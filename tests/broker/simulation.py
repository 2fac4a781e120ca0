"""A broker and random clients without sockets, in a time of their own, recorded as a capture."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wireyard.broker.core import Core
from wireyard.broker.persistence import TABLES
from wireyard.broker.recording import Recording, Tape
from wireyard.broker.session import Link
from wireyard.broker.settings import Settings
from wireyard.broker.store import Store
from wireyard.endpoints import ClientEndpoint, Completed, Delivery, Flows, Limits, Message
from wireyard.formats.mqtt.control import ConnAck, Connect
from wireyard.formats.mqtt.filters import Filter

TOPICS = ("a", "a/b", "a/c", "b/c", "b/c/d")
FILTERS = ("a", "a/+", "a/#", "#", "+/c", "b/c/d")
SHARED = ("$share/t/#",)
SETTINGS = Settings(endpoint=Limits(oldest_version=2))


@dataclass
class Client:
    """A client: its endpoint while it is connected, and its side of the session."""

    name: str
    version: int
    filters: tuple[str, ...]
    flows: Flows = field(default_factory=Flows)
    endpoint: ClientEndpoint | None = None
    link: Link | None = None
    tape: Tape | None = None
    wire: Tape | None = None
    """The bytes of its socket, as somebody between would record them."""
    held: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    """What the broker has to send, behind a commit."""
    shown: bytes = b""
    unread: list[bytes] = field(default_factory=list)
    unacknowledged: list[Message] = field(default_factory=list)
    got: list[Message] = field(default_factory=list)


class Simulation:
    """A broker at a port of its own, and the clients that talk to it."""

    def __init__(
        self, seed: int, recording: Recording, path: Path | None = None,
        wires: Recording | None = None,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.now = 1_700_000_000.0 + 1000 * seed
        self.recording, self.wires = recording, wires or recording
        self.lines: list[str] = []
        self.path = path
        self.start()
        self.server = ("10.1.0.1", 1883 + seed)
        self.port = 30_000
        # A client has either shared subscriptions or others, so that each copy has one reason.
        self.clients = [
            Client(
                f"c{seed}-{n}",
                self.random.choice(((2, 3)[n % 2], 4, 5)),
                FILTERS if n < 4 else SHARED,
            )
            for n in range(6)
        ]
        self.number = 0

    def start(self) -> None:
        """Start the broker, with what its store has."""
        self.store = None if self.path is None else Store(str(self.path), TABLES)
        self.core = Core(SETTINGS, self.lines.append, None, self.store)
        self.core.tick(self.now)
        if self.store is not None:
            self.core.restore()

    def kill(self) -> None:
        """End the broker between two commits, and start it again."""
        assert self.store is not None
        self.store._changes = {}
        for client in self.clients:
            client.held.clear()
            if client.link is not None:
                client.link = None
                self.close(client, by_client=False)
        self.store.close()
        self.start()
        self.check_account()

    def commit(self) -> None:
        """Commit what the broker has changed, and bring onto the wire what waited for it."""
        if self.store is not None and self.store._changes:
            self.store._write(self.store._changes)
            self.store._changes = {}
            self.store.committed, self.store.group = self.store.group, self.store.group + 1
        for client in self.clients:
            self.leave(client)

    def leave(self, client: Client) -> None:
        committed = 0 if self.store is None else self.store.committed
        while client.held and client.held[0][0] <= committed:
            _, data, shown = client.held.pop(0)
            assert client.tape is not None
            client.tape.write(False, shown)
            if client.wire is not None:
                client.wire.write(False, data)
            client.unread.append(data)

    def tap(self, client: Client, tape: Tape) -> Callable[[bool, bytes], None]:
        def record(arrived: bool, data: bytes) -> None:
            if arrived:
                tape.write(True, data)
            else:
                client.shown = data

        return record

    # --- the network ----------------------------------------------------------------------

    def flush(self) -> None:
        """Bring what the broker has to send onto the wire."""
        self.core.tick(self.now)
        for link in self.core.take_dirty():
            client = next((one for one in self.clients if one.link is link), None)
            data = link.endpoint.take()
            if client is None:
                continue
            if data:
                client.held.append((link.waits_for, data, client.shown))
            self.leave(client)
            if link.endpoint.ended is not None:
                self.close(client, by_client=link.endpoint.ended.packet is not None)

    def send(self, client: Client) -> None:
        """Bring what a client has to send to the broker."""
        if client.endpoint is None or client.link is None:
            return
        data = client.endpoint.take()
        if data:
            if client.wire is not None:
                client.wire.write(True, data)
            self.core.receive(client.link, data, self.now)
        self.flush()

    def read(self, client: Client) -> None:
        """Have a client read what is on the wire; messages wait for their acknowledgement."""
        endpoint, data = client.endpoint, b"".join(client.unread)
        client.unread.clear()
        if endpoint is None:
            return
        for event in endpoint.receive(data, self.now):
            if isinstance(event, Message):
                client.got.append(event)
                client.unacknowledged.append(event)
            elif isinstance(event, ConnAck) and not endpoint.has_session:
                client.flows.discard()
            else:
                assert isinstance(event, Completed | ConnAck) or not hasattr(event, "text"), event
        self.send(client)

    def close(self, client: Client, *, by_client: bool) -> None:
        """End a connection; what is unread is lost.

        What waits for a commit goes onto the wire before, because a recording cannot show that
        it never was there.
        """
        if client.held and self.store is not None:
            self.commit()
        link, client.link, client.endpoint = client.link, None, None
        for left in (client.held, client.unread, client.unacknowledged):
            left.clear()
        for tape in (client.tape, client.wire):
            if tape is not None:
                tape.close(by_client)
        client.tape = client.wire = None
        if link is not None:
            self.core.lose(link)
            self.flush()

    # --- what clients do ------------------------------------------------------------------

    def connect(self, client: Client) -> None:
        # Before 3.1.1 CONNACK does not say whether the broker had the session: nobody can judge it.
        keeps = client.version > 3 and self.random.random() < 0.7
        self.commit()
        older, older_tapes = client.link, (client.tape, client.wire)
        for left in (client.held, client.unread, client.unacknowledged):
            left.clear()
        self.port += 1
        ends = ("10.2.0.1", self.port), self.server
        client.tape = self.recording.open(*ends)
        client.wire = None if self.wires is self.recording else self.wires.open(*ends)
        client.link = self.core.open_link(client.name, self.tap(client, client.tape))
        client.endpoint = ClientEndpoint()
        if not keeps:
            client.flows = Flows()
        will = self.random.random() < 0.3
        properties = {"session_expiry_interval": 3600 if keeps else 0}
        if self.random.random() < 0.3:
            properties |= {"receive_maximum": 2, "topic_alias_maximum": 3}
        client.endpoint.open(
            Connect(
                client_id=client.name,
                clean_start=not keeps,
                version_in_force=client.version,
                username="ann" if client.version > 2 else None,
                password="sesame-open" if client.version > 2 else None,
                will_topic=self.random.choice(TOPICS) if will else None,
                will_payload=self.payload() if will else None,
                will_qos=self.random.randrange(3) if will else None,
                properties=properties if client.version == 5 else (),
            ),
            client.flows,
        )
        self.send(client)
        # Whether a CONNECT without an answer has ended the session, a recording cannot show either.
        self.commit()
        if older is not None:
            self.core.lose(older)
            for tape in older_tapes:
                if tape is not None:
                    tape.close(by_client=False)
        self.read(client)

    def payload(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def publish(self, client: Client) -> None:
        qos = self.random.randrange(3)
        if client.endpoint is None or (qos and client.endpoint.room <= 0):
            return
        retain = self.random.random() < 0.2
        message = Message(self.random.choice(TOPICS), self.payload(), qos, retain)
        client.endpoint.send(Delivery(message, qos, retain), self.now)

    def subscribe(self, client: Client) -> None:
        if client.endpoint is None or client.endpoint.state != "open":
            return
        five = client.version == 5
        text = self.random.choice(client.filters)
        chance = self.random.random
        filter = Filter.of(
            text,
            self.random.randrange(3),
            no_local=five and not text.startswith("$") and chance() < 0.2,
            retain_handling=self.random.randrange(3) if five else 0,
        )
        number = {"subscription_identifier": self.random.randrange(1, 9)}
        client.endpoint.subscribe([filter], number if five and chance() < 0.5 else ())

    def step(self) -> None:
        """Have a random client do something, and the others read, or not yet."""
        self.now += self.random.choice((0.001, 0.01, 0.2))
        client, chance = self.random.choice(self.clients), self.random.random()
        if client.endpoint is None:
            self.connect(client)
        elif chance < 0.55:
            self.publish(client)
        elif chance < 0.7:
            self.subscribe(client)
        elif chance < 0.75 and client.endpoint.state == "open":
            client.endpoint.unsubscribe([self.random.choice(client.filters)])
        elif chance < 0.85:
            self.close(client, by_client=True)
        elif chance < 0.9:
            self.read(client)
            if client.endpoint is not None:
                client.endpoint.disconnect(keeps_session=True)
                self.send(client)
        elif chance < 0.93:
            self.connect(client)  # the broker ends the older connection
        self.send(client)
        for other in self.clients:
            if self.random.random() < 0.6:
                self.read(other)
            if self.random.random() < 0.5:
                self.acknowledge(other)
        if self.store is not None:
            if self.random.random() < 0.5:
                self.commit()
            if self.random.random() < 0.03:
                self.kill()

    def acknowledge(self, client: Client) -> None:
        if client.endpoint is not None:
            for message in client.unacknowledged:
                client.endpoint.acknowledge(message)
            client.unacknowledged.clear()
            self.send(client)

    def finish(self) -> None:
        """Have everybody read and acknowledge until nothing is left."""
        for client in self.clients:
            if client.endpoint is None and client.version > 3:
                self.connect(client)
        for _ in range(30):
            self.now += 0.01
            self.commit()
            for client in self.clients:
                self.read(client)
                self.acknowledge(client)
        self.check_account()

    def check_account(self) -> None:
        """Compare the bytes that the broker counts for each session with those that it keeps."""
        router = self.core.router
        for session in router.sessions.values():
            kept = (*session.queue, *session.flows.sending.values())
            assert session.kept_bytes == sum(delivery.message.size for delivery in kept)
        assert router._kept_bytes == sum(one.kept_bytes for one in router.sessions.values())
