"""A capture that another process goes on reading gives the rows and streams of the whole one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.captures.make import pcap
from tests.captures.test_live import EXAMPLES, Fed, Row, in_order, network, whole_rows
from tests.captures.test_torture import interleaved
from tests.captures.torture import make_flow
from wireyard.captures.carriers.tls_keys import KeyLog, embedded_secrets, read_key_logs
from wireyard.captures.inputs import open_input
from wireyard.captures.live.growing import GrowingCapture
from wireyard.captures.live.state import StateError, pack_state, unpack_state
from wireyard.captures.stream_table import describe_stream
from wireyard.formats import Format, get_format

Facts = dict[str, Mapping[str, Any]]


def begin(named: Format | None, keys: KeyLog | None = None) -> Fed:
    return Fed(GrowingCapture("<bytes>", named, keys=keys, describes=True), [])


def interrupted(
    data: bytes, rng: Random, named: Format | None = None, keylog: list[Path] | None = None
) -> tuple[list[Row], Facts, int]:
    """Read a capture that grows, in several processes; return rows, streams and restarts."""
    facts: Facts = {}
    fed, at, restarts = begin(named, read_key_logs(keylog or [])), 0, 0
    while at < len(data):
        size = rng.randint(1, rng.choice((60, 900, 9000, 40000)))
        fed.feed(data[at : at + size], idle=rng.random() < 0.5)
        at += size
        facts.update(fed.capture.take_ended())
        state = fed.growing.state() if rng.random() < 0.3 else None
        if state is not None:
            facts.update(fed.capture.describe())
            text, arrays = pack_state(state)
            for array in arrays:
                array.flags.writeable = False  # as it comes from a file
            # Secrets are in no state: they are read again.
            before = [np.frombuffer(data[: fed.growing.file.offset], np.uint8)]
            other = begin(named, read_key_logs(keylog or [], partial(embedded_secrets, before)))
            other.growing.restore(unpack_state(text, arrays))
            other.rows = fed.rows
            fed, at, restarts = other, other.growing.file.offset, restarts + 1
    fed.end()
    facts.update(fed.capture.take_ended())
    return fed.rows, facts, restarts


def assert_as_whole(
    data: bytes, rng: Random, named: Format | None = None, keylog: list[Path] | None = None
) -> int:
    rows, facts, restarts = interrupted(data, rng, named, keylog)
    whole = open_input(data, named, keylog=keylog or [])
    expected = {one.opened.stream: describe_stream(one.opened.captured) for one in whole.streams}  # type: ignore[attr-defined]
    if not keylog:
        assert in_order(rows) == in_order(whole_rows(data, named))
    assert {name: facts.get(name) for name in expected} == expected
    return restarts


@pytest.mark.parametrize("name", ["traffic.pcap", "ring.pcap"])
def test_examples(name: str) -> None:
    named = get_format("rmp") if name == "ring.pcap" else None
    assert assert_as_whole((EXAMPLES / name).read_bytes(), Random(name), named) > 3


@pytest.mark.parametrize("name", ["mqtt.pcap", "websocket.pcap", "jms.pcapng"])
def test_encrypted_and_wrapped(name: str) -> None:
    path = EXAMPLES / "encrypted" / name
    logs = [path.with_suffix(".keys")] if path.with_suffix(".keys").exists() else []
    assert_as_whole(path.read_bytes(), Random(name), None, logs)


@pytest.mark.parametrize("seed", range(6))
def test_many_connections_with_loss_reordering_and_retransmission(seed: int) -> None:
    rng = Random(seed)
    assert assert_as_whole(network(40, rng), rng) > 3


@pytest.mark.parametrize("seed", range(6))
def test_connections_as_a_bad_capture_shows_them(seed: int) -> None:
    rng = Random(seed)
    flows = [make_flow(number, rng) for number in range(100)]
    segments = [replace(one, silences=0) for one in interleaved(flows, rng)]
    records = [segment.packet(number) for number, segment in enumerate(segments, 1)]
    assert assert_as_whole(pcap(records), rng) > 3


@pytest.mark.shared
def test_recorded_captures(shared: Path) -> None:
    folder, count = shared / "captures", 0
    if not folder.is_dir():
        pytest.skip("no captures in the shared folder")
    for path in sorted(folder.rglob("*.pcap*")):
        if "oracle" in path.parts:
            continue
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        if len(data) < 400_000:
            try:
                count += assert_as_whole(data, Random(path.name))
            except AssertionError as error:
                raise AssertionError(f"{path}: {error}") from None
    assert count > 200


def test_a_damaged_state_is_refused() -> None:
    fed = begin(None)
    fed.feed((EXAMPLES / "traffic.pcap").read_bytes()[:50_000])
    state = fed.growing.state()
    assert state is not None
    text, arrays = pack_state(state)
    rng = Random(0)
    refused = 0
    for _ in range(300):
        some = [array.copy() for array in arrays]
        changed = text
        if rng.random() < 0.5:
            array = some[rng.randrange(len(some))]
            some[rng.randrange(len(some))] = array[: len(array) // 2]
        else:
            tree = json.loads(text)
            part = tree["capture"]
            part.pop(rng.choice([*part]))
            changed = json.dumps(tree)
        other = begin(None)
        try:
            other.growing.restore(unpack_state(changed, some))
        except StateError:
            refused += 1
    assert refused > 200
    with pytest.raises(StateError, match="another version"):
        GrowingCapture("x").restore({**state, "version": 0})
    with pytest.raises(StateError, match="damaged"):
        unpack_state('{"a": {"\\u0000array": 0}}', [np.zeros(1)])
