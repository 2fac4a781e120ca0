"""The cases of the goldens of MQTT: recordings, pieces of them, and random conversations.

The goldens were written with the scalar stages that the product had before. They change only where
a rule changes: ``python -m tests.reference.mqtt_cases`` writes them with the model. It needs the
recordings of ``../shared``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import wireyard
from tests.layers.mqtt.conversations import Packets, conversations, mutated, short_connections
from tests.layers.mqtt.recorded import ends_of
from tests.reference.goldens import Digests, digests, write_goldens
from tests.reference.order import in_order

__all__ = ["CASES", "SHARED", "Derive", "digests_of", "packets_of"]

Row = dict[str, Any]
Tables = Mapping[str, list[Row]]
Derive = Callable[[list[Row], list[Row] | None], Tables]

_ROOT: Final = Path(__file__).resolve().parents[2]
SHARED: Final = "shared/"
"""The names of recordings in ``../shared`` begin so."""
_EXAMPLES: Final = (
    "traffic.pcap", "delay/with.pcap", "delay/without.pcap", "encrypted/mqtt.pcap",
    "encrypted/websocket.pcap", "symptoms/mqtt-*.pcap", "traffic/*.mqtt",
)  # fmt: skip
_MOSQUITTO: Final = (
    "bulk-v4.pcap.gz", "bulk-v5.pcap.gz", "keepalive-v4.pcap", "keepalive-v5.pcap",
    "properties-v5.pcap", "qos-v3.pcap.gz", "qos-v4.pcap.gz", "qos-v5.pcap.gz",
    "refusals-v4.pcap", "refusals-v5.pcap", "retained-v4.pcap", "retained-v5.pcap",
    "sessions-v4.pcap", "sessions-v5.pcap", "splits-v4.pcap", "splits-v5.pcap",
    "wildcards-v4.pcap", "wildcards-v5.pcap", "wills-v4.pcap", "wills-v5.pcap",
)  # fmt: skip
_SURICATA: Final = (
    "mqtt-connect-rules__mqtt5_pub_jpeg", "mqtt-events-invalid-qos__input",
    "mqtt-frames-truncated__input", "mqtt-midstream-split__mqtt-midstream-split",
    "mqtt-ping__input", "mqtt31-pub-qos1__input", "mqtt31-pub-qos2__input",
    "mqtt31-pub-userpass-auto-clientid__input", "mqtt31-unsub-qos2__input",
    "mqtt311-pub-qos1__input", "mqtt311-pub-qos2__input",
    "mqtt311-pub-userpass-auto-clientid__input", "mqtt311-pub-userpass__input",
    "mqtt311-unsub-qos1__input", "mqtt311-unsub-qos2__input", "mqtt311-unsub-userpass__input",
    "mqtt5-excessiveproplen__input", "mqtt5-pub-mosquittoprops__input", "mqtt5-pub-qos1__input",
    "mqtt5-pub-qos2__input", "mqtt5-pub-userpass-auto-clientid__input",
    "mqtt5-pub-userpass__input", "mqtt5-sub-mosquittoprops__input", "mqtt5-sub-userpass__input",
    "mqtt5-unsub-qos1__input", "mqtt5-unsub-qos2__input",
)  # fmt: skip
_PIECES: Final = 3
"""Pieces of each recording, some of their packets lost and some changed."""
_SEEDS: Final = (1, 2, 3)


def _names() -> Iterator[str]:
    """Yield the names of all cases."""
    for pattern in _EXAMPLES:
        for path in sorted((_ROOT / "examples").glob(pattern)):
            yield str(path.relative_to(_ROOT))
    for name in _MOSQUITTO:
        recording = f"{SHARED}captures/mosquitto/{name}"
        yield recording
        yield f"{recording}, no beginnings and ends"
        if not name.startswith("bulk"):
            yield from (f"{recording}, piece {number}" for number in range(_PIECES))
    yield from (f"{SHARED}captures/mqtt/suricata-verify/{name}.pcap" for name in _SURICATA)
    yield f"{SHARED}captures/mqtt/verimqtt/mqtt.pcapng"
    for kind in ("conversations", "short connections"):
        yield from (f"{kind}, version {v}, seed {seed}" for v in (3, 4, 5) for seed in _SEEDS)


CASES: Final = tuple(_names())
"""The names of all cases: a recording, or a batch of random conversations."""


def packets_of(case: str, shared: Path) -> list[Packets]:
    """Return the packets of a case: one recording, or several conversations."""
    name, *how = case.split(", ")
    if name == "conversations":
        return list(conversations(*_numbers(how)))
    if name == "short connections":
        return list(short_connections(*_numbers(how)))
    path = shared / name.removeprefix(SHARED) if name.startswith(SHARED) else _ROOT / name
    recording = _read(path)
    if not how:
        return [recording]
    if how[0].startswith("no "):
        return [Packets(recording.rows, None)]
    return [Packets(in_order(mutated(recording.rows, random.Random(case))), recording.streams)]


def _numbers(how: list[str]) -> list[int]:
    return [int(words.split()[-1]) for words in how]


@cache
def _read(path: Path) -> Packets:
    """Return the packets of a recording, and the beginnings and ends of its streams."""
    rows = wireyard.read(path, "mqtt").to_pylist()
    if path.suffix == ".mqtt":
        raw = {"source": path.name, "stream": path.name, "captured_ns": None, "frame": None}
        return Packets([row | raw for row in rows], None)
    return Packets(in_order(row | {"source": path.name} for row in rows), ends_of(path, path.name))


def digests_of(case: str, shared: Path, derive: Derive) -> Digests:
    """Return the digests of the tables of a case; those of several conversations as one."""
    tables: defaultdict[str, list[Row]] = defaultdict(list)
    for packets in packets_of(case, shared):
        for name, rows in derive(*packets).items():
            tables[name] += rows
    return digests(tables)


if __name__ == "__main__":
    from tests.reference.mqtt import derive

    write_goldens(
        "mqtt", {case: digests_of(case, _ROOT.parent / "shared", derive) for case in CASES}
    )
