"""Every rule is broken by a vector that breaks nothing else, in each version that has it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.formats.mqtt.make import VERSIONS, variety
from tests.formats.mqtt.matrix import CASES, DOCUMENT, MQTT, Case, malformed_matrix, verdict_of
from wireyard.errors import DecodeError
from wireyard.formats.mqtt.packet import read_packet
from wireyard.formats.mqtt.rules import RULES

PAIRS = [(case, version) for case in CASES for version in VERSIONS if case.make(version)]


def name(value: object) -> str:
    return value.name.replace(" ", "-") if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "version"), PAIRS, ids=name)
def test_a_case_breaks_its_rule_and_no_other(case: Case, version: int) -> None:
    data = case.make(version)
    assert data is not None
    rule = RULES[case.rule]
    if case.rule == "remaining_length":
        with pytest.raises(DecodeError) as raised:
            MQTT.framing.frame_size(
                data, 0, len(data), MQTT.framing.max_packet_bytes, version, True
            )
        assert raised.value.code == rule.verdict(version)
    codes = [fault.code for fault in read_packet(data, version)[1].faults]
    assert codes == ([rule.verdict(version)] if rule.holds(version) else [])
    row, error = MQTT.read_row(data, version)
    assert row["verdict"] == (error.code if error else None)
    if not codes:
        assert MQTT.encode(MQTT.decode(data, version)) == data
        return
    with pytest.raises(DecodeError) as raised:
        MQTT.decode(data, version)
    assert raised.value.row() == (error.row() if error else None)
    assert rule.spec(version).split(",")[0] == raised.value.spec.split(",")[0]
    assert 0 <= raised.value.offset <= len(data)


def test_every_rule_is_broken_in_every_version_that_has_it() -> None:
    broken = defaultdict(set)
    for case, version in PAIRS:
        broken[case.rule].add(version)
    assert {rule: set(RULES[rule].cited) - versions for rule, versions in broken.items()} == {
        rule: set() for rule in RULES
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_packets_that_break_no_rule(version: int) -> None:
    for data in variety(version):
        assert verdict_of(data, version) is None, data.hex()


def test_an_unknown_version_breaks_what_3_1_and_3_1_1_both_forbid() -> None:
    for case in CASES:
        data = case.make(4)
        if data is None or data[0] == 0x10:  # a CONNECT says its version
            continue
        rule = RULES[case.rule]
        forbidden = rule.holds(3) and rule.holds(4)
        assert verdict_of(data, 0) == (rule.verdict(4) if forbidden else None), case.name


def test_the_numbers_of_the_standards() -> None:
    """Spot checks against the standards' own lists of conformance statements."""
    wanted = {
        "qos_3": ("qos_3", "qos_3", "MQTT-3.3.1-4", "MQTT-3.3.1-4"),
        "bad_utf8": ("bad_utf8", "bad_utf8", "MQTT-1.5.3-1", "MQTT-1.5.4-1"),
        "packet_id_0": ("packet_id_0", "packet_id_0", "MQTT-2.3.1-1", "MQTT-2.2.1-3"),
        "will_qos_3": ("will_qos_3", "will_qos_3", "MQTT-3.1.2-14", "MQTT-3.1.2-12"),
    }
    for rule, verdicts in wanted.items():
        assert tuple(RULES[rule].verdict(version) for version in VERSIONS) == verdicts
    assert RULES["qos_3"].spec(4) == "MQTT 3.1.1, MQTT-3.3.1-4"
    assert RULES["qos_3"].spec(3) == "MQTT 3.1, 2.1"
    assert not RULES["dup_qos_0"].holds(3) and not RULES["dup_qos_0"].holds(0)


def test_the_document_is_up_to_date() -> None:
    assert malformed_matrix() == DOCUMENT.read_text(), "python -m tests.formats.mqtt.matrix"


# --- what mosquitto did ---------------------------------------------------------------------


def outcomes(shared: Path, version: int) -> dict[str, tuple[str, bytes]]:
    """Return by offence what the broker did, and the bytes that were sent to it last."""
    path = shared / "captures" / "mosquitto" / f"refusals-v{version}.client.jsonl.gz"
    found: dict[str, tuple[str, bytes]] = {}
    sent: dict[str, bytes] = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        event = json.loads(line)
        if event["event"] == "wire_sent":
            sent[event["who"]] = bytes.fromhex(event["hex"])
        elif event["event"] == "outcome":
            found[event["offence"]] = (said(event), sent[event["who"]])
    return found


def said(outcome: dict[str, Any]) -> str:
    words = []
    for answer in outcome["answers"][:1]:
        code = answer["reason_code"]
        words.append(answer["packet"] if code is None else f"{answer['packet']} {code}")
    if outcome["closed_by_broker"]:
        words.append("closed")
    return ", ".join(words) or "taken"


@pytest.mark.parametrize("version", [4, 5])
def test_what_mosquitto_did(shared: Path, version: int) -> None:
    """The matrix quotes the recording, and the recorded bytes have the verdict of the case."""
    found = outcomes(shared, version)
    compared = 0
    for case in CASES:
        quoted = case.mosquitto[version - 4]
        if not quoted:
            continue
        assert case.offence is not None
        answer, data = found[case.offence]
        assert quoted == answer, case.name
        # A bridge's level in 5.0 is a level that nobody has: there is no such case.
        made = case.make(version) if case.rule != "protocol_level" else b""
        rule = RULES[case.rule]
        if made is not None:
            wanted = rule.verdict(version) if rule.holds(version) else None
            assert verdict_of(data, version) == wanted, case.name
        compared += 1
    assert compared == {4: 43, 5: 52}[version]
