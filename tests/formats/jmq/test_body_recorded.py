from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.formats.jmq.recorded import logged_value, received, recorded_packets, vectors
from wireyard.formats.jmq.body import body_text, body_value
from wireyard.formats.jmq.message import JmsMessage
from wireyard.formats.jmq.packet import read_row


def test_golden_bodies(shared: Path) -> None:
    bodies = {name.split("_", 2)[2]: body_value(read_row(data)[0]) for name, data in vectors(shared)
              if "_body_" in name}  # fmt: skip
    sentence = "All work and no play makes Jack a dull boy. "
    assert bodies["body_compressed_text"] == sentence * 50
    assert bodies["body_map_empty"] == {}
    assert bodies["body_object_null"] is None
    repeated = bodies["body_stream_message"]
    assert repeated[:8] == [True, 1, 2, "c", 3, 4, 5.0, 6.0]
    assert bodies["body_compressed_map"] == {
        "bool": True,
        "string": "s",
        "null": None,
        "byte": 1,
        "double": 6.0,
        "bytes": b"\1\2",
        "char": "c",
        "short": 2,
        "float": 5.0,
        "int": 3,
        "long": 4,
    }


def _to_string(value: Any) -> str:
    """Return what ``toString`` of the recorded objects prints."""
    match value:
        case None:
            return "null"
        case list():
            return f"[{', '.join(map(_to_string, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}={_to_string(item)}' for key, item in value.items())}}}"
        case datetime():
            return value.strftime("%a %b %d %H:%M:%S UTC %Y")
        case _:
            return str(value)


def _as_logged(kind: str, value: Any) -> Any:
    return _to_string(value) if kind == "object" else value


def _logged_body(event: dict[str, Any]) -> Any:
    match event["kind"]:
        case "map":
            return {name: logged_value(entry) for name, entry in event["body"].items()}
        case "stream":
            return [logged_value(entry) for entry in event["body"]]
        case _:
            return event.get("body")


@pytest.mark.parametrize("scenario", ["acks", "bodies", "bulk", "cluster", "flow", "transactions"])
def test_the_client_saw_the_same_body(shared: Path, scenario: str) -> None:
    bodies = defaultdict(list)
    for data in recorded_packets(shared, scenario):
        found, error = read_row(data)
        assert error is None
        if found["packet_type"] in range(1, 7):
            message = JmsMessage.of(found)
            bodies[message.jms_message_id].append(_as_logged(message.body_kind, body_value(found)))
    for event in received(shared, scenario):
        assert bodies[event["jms_message_id"]]
        for body in bodies[event["jms_message_id"]]:
            if event["kind"] == "bytes":
                assert sha256(body or b"").hexdigest() == event["sha256"]
            else:
                assert body == _logged_body(event)


def test_every_recorded_body_can_be_opened(shared: Path) -> None:
    opened = 0
    for data in recorded_packets(shared):
        found, _ = read_row(data)
        opened += body_text(found) is not None
    assert opened > 5000


def test_decimal_text_is_exact(shared: Path) -> None:
    found = [
        row
        for row in (read_row(data)[0] for data in recorded_packets(shared, "bodies"))
        if row["packet_type"] == 5 and body_value(row) == Decimal("12.50")
    ]
    assert found
    assert body_text(found[0]) == '"12.50"'
