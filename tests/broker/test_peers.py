"""Stock clients with our broker: none breaks a rule, and its record is that of its sockets."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peers.mqtt import CLIENTS, Unavailable
from tests.broker.wires import recorded
from wireyard.answers import open_tables
from wireyard.broker.thread import BrokerThread

pytestmark = pytest.mark.peer
SECONDS = 30.0
WAYS = "/usr/bin:/usr/local/bin"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    """Run a broker that records, and judge the recording at the end."""
    with recorded(tmp_path, monkeypatch) as broker:
        yield broker
    with open_tables([str(tmp_path / "broker-own.pcapng")]) as tables:
        assert tables.sql("SELECT rule, text FROM violations").to_pylist() == []
        found = tables.sql("SELECT DISTINCT verdict FROM deliveries")["verdict"].to_pylist()
        assert set(found) <= {"delivered", "no_subscriber"}
    assert not any("violates" in line for line in broker.lines)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_pub_and_sub(broker: BrokerThread, version: str) -> None:
    pub, sub = (shutil.which(f"mosquitto_{name}", path=WAYS) for name in ("pub", "sub"))
    if pub is None or sub is None:
        pytest.skip("mosquitto_pub and mosquitto_sub are not installed")
    where = ["-h", "127.0.0.1", "-p", str(broker.port), "-V", version]
    listen = [sub, *where, "-i", "watcher", "-t", "plant/#", "-q", "2", "-C", "4", "-W", "10"]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as watching:
        sessions = broker.server.core.router.sessions
        until(lambda: "watcher" in sessions and bool(sessions["watcher"].subscriptions))
        for qos in "012":
            words = [pub, *where, "-t", f"plant/{qos}", "-m", f"message {qos}", "-q", qos]
            subprocess.run(words, check=True, timeout=SECONDS)
        words = [pub, *where, "-t", "plant/kept", "-m", "kept", "-r", "-q", "1"]
        subprocess.run(words, check=True, timeout=SECONDS)
        said, _ = watching.communicate(timeout=SECONDS)
    assert said.splitlines() == ["message 0", "message 1", "message 2", "kept"]


@pytest.mark.parametrize(
    ("name", "scheme", "version"),
    [
        (name, scheme, version)
        for name, (_, schemes, versions) in CLIENTS.items()
        for scheme in schemes
        for version in versions
    ],
)
def test_clients(broker: BrokerThread, name: str, scheme: str, version: int) -> None:
    try:
        command = CLIENTS[name][0]()
    except Unavailable as missing:
        pytest.skip(str(missing))
    words = [*command, str(broker.port), str(version), scheme]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    expected = ",".join(sorted(f"message {number}" for number in range(30)))
    assert found.stdout.strip() == expected, found.stderr
