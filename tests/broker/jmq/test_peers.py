"""The stock client of Open MQ with our broker: its log is the one that it wrote of a real broker.

The scenario `admin` is not there, because the broker has no console. That of the cluster runs with
one broker in the place of both.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

import wireyard
from peers import openmq
from tests.broker.jmq.client_log import read_log
from tests.broker.wires import recorded
from wireyard.answers import open_tables
from wireyard.answers.why import find_symptoms
from wireyard.broker.access import Access, hash_password, read_users
from wireyard.broker.settings import Settings
from wireyard.client import Client

pytestmark = [pytest.mark.peer, pytest.mark.shared, pytest.mark.slow]

SEEDS = {"bulk": 3}
"""The recordings have the seed 1, but for these."""
NAMES = {"cluster": "crossbroker"}
FINDINGS: dict[str, set[str]] = {
    "bodies": set(), "pubsub": set(), "bulk": set(),
    "flow": {"slow_consumer"},
    "requests": {"request_unanswered"},
    "transactions": {"no_consumer", "given_back"},
    "acks": {"given_back"},
    "deadletters": {"dead_messages"},
    "auth": {"login_refused", "request_refused"},
    "jms20": {"dropped"},
    "drops": {"never_acknowledged", "dropped"},
    "cluster": {"given_back"},
}  # fmt: skip
"""What `wireyard why` finds in each: what the client does, or leaves undone, and nothing else."""
USERS = ("guest", "admin")
SECONDS = 100.0


def client(shared: Path, *words: str) -> subprocess.Popen[str]:
    """Start the program that drives the stock client; skip where it cannot run."""
    source = shared / "tools" / "openmq" / "Traffic.java"
    if not source.is_file():
        pytest.skip("no tools/openmq in the shared folder")
    try:
        command = openmq.java(source, "-Xshare:auto", "-XX:TieredStopAtLevel=1")
    except openmq.Unavailable as missing:
        pytest.skip(str(missing))
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*command, *words], stdout=quiet, stderr=quiet, text=True)


def wait_for(program: subprocess.Popen[str], log: Path, lines: int | None) -> None:
    """Wait for the end of a program, or for all lines of `jms20`, which does not end."""
    end = time.monotonic() + SECONDS
    while program.poll() is None and time.monotonic() < end:
        if lines is not None and log.exists() and log.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.1)
    program.kill()
    program.wait()


@pytest.mark.parametrize("scenario", list(FINDINGS))
def test_the_log_of_the_client_is_that_of_a_real_broker(
    scenario: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = shared / "captures" / "openmq" / f"{scenario}.client.jsonl.gz"
    if not logged.is_file():
        pytest.skip("no captures of Open MQ in the shared folder")
    settings = None
    if scenario == "auth":
        users = tmp_path / "users"
        users.write_text("".join(hash_password(one, one.encode()) + "\n" for one in USERS))
        settings = Settings(access=Access(read_users(str(users))))
    log, expected = tmp_path / "client.jsonl", read_log(logged)
    with recorded(tmp_path, monkeypatch, settings, jmq=0) as broker:
        words = [NAMES.get(scenario, scenario), str(SEEDS.get(scenario, 1)), str(log)]
        words += [f"{broker.jmq_url}/jms"] * (2 if scenario == "cluster" else 1)
        words += ["1500"] if scenario == "bulk" else []
        lines = sum(map(len, expected.values())) if scenario == "jms20" else None
        wait_for(client(shared, *words), log, lines)
    assert read_log(log) == expected
    with open_tables([str(tmp_path / "broker-own.pcapng")]) as tables:
        assert tables.sql("SELECT rule, text, frame FROM violations").to_pylist() == []
        found = {one.symptom for one in find_symptoms(tables, None, shown_as="it")}
    assert found <= FINDINGS[scenario]


def test_the_stock_client_and_ours_have_the_same_topics() -> None:
    """A JMS client answers what an MQTT client asks, each by its own library."""

    async def ask(url: str) -> None:
        async with asyncio.timeout(SECONDS), Client(url) as client:
            await client.subscribe("re/v1.2", 2)
            await client.publish("plant/fw/v1.2", b"\1\2", 0)
            asked = {
                "payload_format_indicator": 1, "response_topic": "re/v1.2", "content_type": "t",
                "correlation_data": b"\xff\0", "user_property": [("unit", "C")],
            }  # fmt: skip
            await client.publish("plant/a", "é", 2, properties=asked)
            answer = await anext(aiter(client))
            assert (answer.topic, answer.payload, answer.qos) == ("re/v1.2", b"answer", 2)
            found = dict(answer.properties)
            assert found["correlation_data"] == b"\xff\0"
            assert found["user_property"] == ("count", "3")

    try:
        command = openmq.java(Path(openmq.__file__).with_name("Topics.java"), "-Xshare:auto")
    except openmq.Unavailable as missing:
        pytest.skip(str(missing))
    with wireyard.broker(jmq=0) as broker:
        words = [*command, f"{broker.jmq_url}/jms", "2"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "ready\n"
                asyncio.run(ask(broker.url))
            finally:
                program.kill()
            assert program.stdout.read().splitlines() == [
                "plant.fw.v1$2E2 | bytes 2 | 1 | null | null | null",
                "plant.a | text é | 2 | 0xff00 | t | C",
            ]
