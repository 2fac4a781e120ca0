"""What a client program logged, without what differs between two runs of it."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

Log = dict[str, list[dict[str, Any]]]

_TEMPORARY = re.compile(r"temporary_destination://(\w+)/[^/]+/\d+/(\d+)")
_OF_A_BROKER = ("COMMENT", "TIMESTAMP", "DEAD_BROKER", "PRODUCING_BROKER")
"""Ends of properties of dead messages that each broker fills in its own way."""
_SOON_MS = 1000


def read_log(path: Path) -> Log:
    """Return what each producer and consumer logged, in its order.

    The order between them is that of threads. Message ids are replaced by numbers of what a
    producer sent; times by what they are relative to the message's; clocks by nothing.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    sent: dict[str, int] = {}
    numbers: dict[str, str] = {}
    for entry in entries:
        if entry["event"] == "sent":
            who = entry["who"]
            sent[who] = sent.get(who, 0) + 1
            numbers[entry["jms_message_id"]] = f"{who} {sent[who]}"
    log: Log = {}
    for entry in entries:
        log.setdefault(entry.get("who", entry["event"]), []).append(_comparable(entry, numbers))
    return log


def _comparable(entry: dict[str, Any], numbers: dict[str, str]) -> dict[str, Any]:
    shown = {name: value for name, value in entry.items() if name not in ("t_ms", "jms_timestamp")}
    for name in ("jms_message_id", "jms_correlation_id"):
        value = shown.get(name)
        if isinstance(value, str) and value.startswith("ID:"):
            shown[name] = numbers.get(value, "not logged")
    for name in ("jms_destination", "jms_reply_to"):
        shown[name] = _TEMPORARY.sub(r"temporary \1 \2", shown.get(name) or "")
    if shown.get("jms_expiration"):
        shown["jms_expiration"] = shown["jms_expiration"] - entry["jms_timestamp"] < _SOON_MS
    if shown.get("jms_delivery_time"):
        # 200 ms lie between those of two messages.
        shown["jms_delivery_time"] = (
            shown["jms_delivery_time"] - entry["jms_timestamp"] + 20
        ) // 200
    if "properties" in shown:
        shown["properties"] = {
            name: value
            for name, value in shown["properties"].items()
            if not (name.startswith("JMS_SUN_DMQ_") and name.endswith(_OF_A_BROKER))
        }
    return shown
