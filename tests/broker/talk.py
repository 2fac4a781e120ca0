"""Clients of a broker's core, packet by packet, at times that a test sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from wireyard import mqtt
from wireyard.broker.access import CheckLogin
from wireyard.broker.core import Core
from wireyard.broker.persistence import TABLES
from wireyard.broker.session import Link
from wireyard.broker.settings import Settings
from wireyard.broker.store import Store
from wireyard.formats import get_format
from wireyard.formats.mqtt.writing import encode
from wireyard.streams.decoder import Decoded, Decoder

LABELS = {3: "mqtt/3.1", 4: "mqtt/3.1.1", 5: "mqtt/5.0"}


class Broker:
    """A core, its time and its lines; with the path of a store it can be started again."""

    _OF_CORE: ClassVar[tuple[Any, Any]] = Core, TABLES
    core: Any

    def __init__(
        self, path: Path | None = None, check_login: CheckLogin | None = None, **settings: Any
    ) -> None:
        self.lines: list[str] = []
        self.now = 1_000_000.0
        self._path, self._check, self._settings = path, check_login, Settings(**settings)
        self._store: Store | None = None
        self.start()

    def start(self) -> None:
        core, tables = self._OF_CORE
        if self._path is not None:
            self._store = Store(str(self._path), tables)
        self.core = core(self._settings, self.lines.append, self._check, self._store)
        self.core.tick(self.now)
        if self._store is not None:
            self.core.restore()
            self._store.start(lambda: None)

    def restart(self, **settings: Any) -> None:
        """Kill the broker, all of whose changes are committed, and start it again."""
        self.close()
        self._settings = replace(self._settings, **settings)
        self.start()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def wait(self, seconds: float) -> None:
        """Let time pass, in steps, as a loop does."""
        until = self.now + seconds
        while self.now < until:
            due = self.core.tick(self.now)
            self.now = min(until, until if due is None else max(due, self.now + 0.001))
        self.core.tick(self.now)


class Peer:
    """A connection of a client."""

    def __init__(self, broker: Broker, version: int = 5) -> None:
        self.broker, self.version = broker, version
        link = broker.core.open_link("10.0.0.1:1")
        assert link is not None
        self.link: Link = link
        self._decoder = Decoder(get_format(LABELS[version]))
        self.early: list[mqtt.Packet] = []
        """What came together with CONNACK."""

    def send(self, packet_class: type[mqtt.Packet], **fields: Any) -> None:
        packet = packet_class(version_in_force=self.version, **fields)
        self.broker.core.receive(self.link, encode(packet), self.broker.now)

    def received(self) -> list[mqtt.Packet]:
        """Return the packets that the broker has sent since."""
        self._decoder.receive_data(self.link.endpoint.take())
        events: list[Decoded] = list(self._decoder.events())
        assert all(event.error is None for event in events)
        early, self.early = self.early, []
        return early + [event.packet for event in events]

    def messages(self) -> list[tuple[str, bytes, int, bool]]:
        return [
            (one.topic, one.payload, one.qos, one.retain)
            for one in self.received()
            if isinstance(one, mqtt.Publish)
        ]

    def lose(self) -> None:
        self.broker.core.lose(self.link)


def joined(broker: Broker, client_id: str, version: int = 5, **fields: Any) -> Peer:
    """Return a client that the broker has accepted."""
    peer = Peer(broker, version)
    peer.send(mqtt.Connect, client_id=client_id, **fields)
    answer, *peer.early = peer.received()
    assert isinstance(answer, mqtt.ConnAck) and answer.return_code == 0
    return peer


def subscribed(peer: Peer, *filters: str | tuple[str, int] | mqtt.Filter, **fields: Any) -> None:
    peer.send(mqtt.Subscribe, packet_id=1, filters=filters, **fields)
