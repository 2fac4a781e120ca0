"""Which inputs the tasks of facts take together, and the texts of their rows."""

from __future__ import annotations

from typing import Any

from wireyard.lake.ledgers import LedgerSum
from wireyard.lake.records import Input
from wireyard.layers.facts import facts_of
from wireyard.layers.tables import fact_table
from wireyard.pipeline.facts.tasks import groups_of


def test_text_that_arrow_cannot_have_is_spelled_out() -> None:
    batch = fact_table("sessions", [{"client": "a\udc80"}, {"client": None}, {"user": "ä"}])
    assert batch["client"].to_pylist() == ["a\\udc80", None, None]
    assert batch["user"].to_pylist() == [None, None, "ä"]


# --- groups of inputs -----------------------------------------------------------------------


def input_of(source: str, ledger: dict[str, int], **files: list[str]) -> Input:
    sums = {format: LedgerSum(packets_ok=count) for format, count in ledger.items()}
    return Input(source, None, {}, sums, {**files, "streams": [f"of-{source}"]})


def test_inputs_are_grouped_by_the_files_that_they_share() -> None:
    """Files of different tables may have the same name; inputs may show the same JMS messages."""
    inputs = [
        input_of("a", {"mqtt": 1, "jmq": 10}, packets_mqtt=["x"], packets_jmq=["x"]),
        input_of("b", {"mqtt/5.0": 2}, packets_mqtt=["x", "y"]),
        input_of("c", {"mqtt": 4, "gpacket": 20}, packets_mqtt=["z"], packets_gpacket=["z"]),
    ]
    files = {
        "mqtt": [f"lake/packets_mqtt/{name}" for name in "zyx"],
        "jmq": ["lake/packets_jmq/x"],
        "gpacket": ["lake/packets_gpacket/z"],
    }
    streams = [f"lake/streams/of-{name}" for name in "abc"]
    found: dict[str, list[Any]] = {}
    for protocol in ("mqtt", "jms", "rmp"):
        facts = facts_of(protocol)
        assert facts is not None
        found[protocol] = [
            (
                {path: format for format, path in group.files},
                group.sources,
                group.packets,
                group.streams,
            )
            for group in groups_of(facts, files, inputs, streams)
        ]
    x, y, z = (f"lake/packets_mqtt/{name}" for name in "xyz")
    assert found["mqtt"] == [
        ({x: "mqtt", y: "mqtt"}, ("a", "b"), 3, tuple(streams[:2])),
        ({z: "mqtt"}, ("c",), 4, (streams[2],)),
    ]
    assert [(files, {*sources}, packets) for files, sources, packets, _ in found["jms"]] == [
        ({"lake/packets_jmq/x": "jmq", "lake/packets_gpacket/z": "gpacket"}, {"a", "c"}, 30)
    ]
    assert found["rmp"] == []
