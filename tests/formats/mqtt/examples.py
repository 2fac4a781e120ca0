"""The recorded MQTT examples, and what their clients say that they published and received."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["events_of", "logged"]


def events_of(examples: Path, connection: str, event: str) -> list[dict[str, Any]]:
    """Return what one connection's client logged, in its order; payloads as bytes."""
    lines = (examples / "traffic" / "_clients.jsonl").read_text("utf-8").splitlines()
    every = map(json.loads, lines)
    mine = [one for one in every if (one["connection"], one["event"]) == (connection, event)]
    return [{**one, "payload": bytes.fromhex(one["payload_hex"])} for one in mine]


def logged(name: str, value: Any) -> list[dict[str, Any]]:
    """Return a property of a paho client's log as rows have it."""
    spelled = "".join(f"_{char.lower()}" if char.isupper() else char for char in name)[1:]
    if spelled == "user_property":
        return [{"name": spelled, "value": pair} for pair in value]
    if spelled == "subscription_identifier":
        return [{"name": spelled, "value": number} for number in value]
    if spelled == "correlation_data":
        return [{"name": spelled, "value": bytes.fromhex(value)}]
    return [{"name": spelled, "value": value}]
