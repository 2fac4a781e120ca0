"""Every rule is broken by a vector that breaks nothing else, in each version that has it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.formats.mqtt.make import VERSIONS, variety
from tests.formats.mqtt.matrix import DOCUMENT, malformed_matrix
from wireyard.conform.packets import CASES, Case, verdict_of
from wireyard.errors import DecodeError
from wireyard.formats import get_format
from wireyard.formats.mqtt.packet import read_packet
from wireyard.formats.mqtt.rules import RULES

MQTT = get_format("mqtt")
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
