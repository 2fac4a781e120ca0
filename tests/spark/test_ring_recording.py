"""A ring that was recorded, through ``wireyard run``: its members say what has to be found."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.spark.lakes import table
from wireyard.cli import main

PORT = 7078


def wireyard(*words: object) -> Result:
    result = CliRunner().invoke(
        main, [*map(str, words)], catch_exceptions=False, prog_name="wireyard"
    )
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def lake(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the lake that the command makes of the recording."""
    target = tmp_path_factory.mktemp("ring") / "lake"
    given = ("--decode-as", f"udp.port=={PORT},rmp", "--engine", "process")
    wireyard("run", examples / "ring.pcap", *given, "--lake", target)
    return target


@pytest.fixture(scope="module")
def logged(examples: Path) -> list[dict[str, Any]]:
    """Return what the members say."""
    lines = (examples / "ring_members.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def rows(lake: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(lake, name).to_pylist()
    return found


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def properties(message: dict[str, Any]) -> dict[str, str]:
    return {name: one["value"] for name, one in message["properties"]}


def test_every_message_that_was_sent_is_found(lake: Path, logged: list[dict[str, Any]]) -> None:
    messages = rows(lake, "messages")
    assert {row["protocol"] for row in messages} == {"rmp"}
    found = Counter(
        (
            row["producer"],
            int(row["producer_client_id"]),
            properties(row)["layer"],
            digest(row["body"]),
        )
        for row in messages
    )
    sent = Counter(
        (one["process"], one["client"], str(one.get("layer", 0)), one["sha256"])
        for one in logged
        if one["event"] in ("sent", "asked")
    )
    assert found == sent and found.total() == 145


def test_every_message_that_was_received_is_found(lake: Path, logged: list[dict[str, Any]]) -> None:
    found = {(row["producer"], digest(row["body"])) for row in rows(lake, "messages")}
    received = {
        (one["sender"], one["sha256"])
        for one in logged
        if one["event"] in ("received", "got reply")
    }
    assert received <= found and len(received) > 20


def test_messages_of_several_packets_are_whole(lake: Path) -> None:
    large = {row["body_size"]: row for row in rows(lake, "messages") if row["body_size"] > 1400}
    assert {1500, 8000, 20_000, 60_000} <= large.keys()
    assert properties(large[60_000])["packets"] == "44"
    frames = rows(lake, "packets_rmp")
    for row in large.values():
        parts = [
            one
            for one in frames
            if one["stream"] == row["stream"]
            and one["message_number"] == int(properties(row)["message_number"])
        ]
        assert len(parts) == int(properties(row)["packets"]) > 1
        assert row["offset"] == parts[0]["offset"]
        assert row["length"] == sum(part["length"] for part in parts)


def test_equal_messages_are_as_many_as_were_sent(lake: Path) -> None:
    assert sum(row["body"] == b"still here" for row in rows(lake, "messages")) == 20


def test_every_request_is_a_conversation(lake: Path, logged: list[dict[str, Any]]) -> None:
    bodies = {row["message_key"]: digest(row["body"]) for row in rows(lake, "messages")}
    found = Counter(
        (row["requester"], bodies[row["request_key"]], row["responder"],
         row["reply_key"] and bodies[row["reply_key"]])
        for row in rows(lake, "conversations")
    )  # fmt: skip
    said: Counter[tuple[Any, ...]] = Counter()
    over = {one["sha256"]: one["reason"] for one in logged if one["event"] == "request over"}
    asked = {one["sha256"]: one["process"] for one in logged if one["event"] == "asked"}
    replies = {
        (one["reply_to"], one["sha256"]): one["process"]
        for one in logged
        if one["event"] == "sent" and "reply_to" in one
    }
    by_id = {row["correlation_id"]: row for row in rows(lake, "messages")
             if "reply_requested" in properties(row)
             and properties(row)["reply_requested"] == "true"}  # fmt: skip
    for (request, reply), process in replies.items():
        question = digest(by_id[request]["body"])
        said[asked[question], question, process, reply] += 1
    for question, reason in over.items():
        if reason == "timeout":
            said[asked[question], question, None, None] += 1
    assert found == said and found.total() == 10
    assert {row["kind"] for row in rows(lake, "conversations")} == {"rmp"}


def test_nobody_broke_a_rule(lake: Path) -> None:
    assert rows(lake, "violations") == []


def test_the_story_of_a_request(lake: Path) -> None:
    [asked] = [row for row in rows(lake, "messages") if row["body"] == b"who sells the most"]
    lines = wireyard("trace", lake, asked["message_key"]).stdout.splitlines()
    assert lines[0] == f"message      {asked['message_key']}"
    assert lines[1] == "  group      239.255.77.78:7078"
    assert lines[2].endswith(f" by 21 ({asked['producer']})")
    frame = properties(asked)["frames"]
    assert lines[3].startswith(f"  in         frame {frame} of ")
    assert "  payload    who sells the most (18 bytes)" in lines
    number = properties(asked)["message_number"]
    assert f"  packets    layer RPC, domain 1, number {number}; 1 packet, frame {frame}" in lines
    replies = [line.split()[1] for line in lines if line.startswith("  reply ")]
    assert len(replies) == 2
    assert lines[-1].endswith("every member of the group: no capture shows who read it")
    answer = wireyard("trace", lake, replies[0]).stdout.splitlines()
    assert any(line.startswith(f"  answers    {asked['message_key']} in") for line in answer)


def test_the_story_of_a_large_message(lake: Path) -> None:
    [large] = [row for row in rows(lake, "messages") if row["body_size"] == 60_000]
    logged = wireyard("trace", lake, large["message_key"]).stdout
    assert f"; 44 packets, frames {properties(large)['frames']}" in " ".join(logged.split())
    silent = [row for row in rows(lake, "messages") if row["body"] == b"the weather"]
    logged = wireyard("trace", lake, silent[0]["message_key"]).stdout
    assert "  reply      expected, and none was seen" in logged
