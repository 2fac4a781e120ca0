"""Stock clients with our broker, and our client with mosquitto: none breaks a rule."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wireyard
from wireyard.answers import open_tables
from wireyard.broker.thread import BrokerThread

pytestmark = pytest.mark.peer
SECONDS = 10.0
WAYS = "/usr/bin:/usr/local/bin"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """Run a broker that records, and judge the recording at the end."""
    with wireyard.broker(record=tmp_path) as broker:
        yield broker
    with open_tables([str(path) for path in tmp_path.glob("*.pcapng")]) as tables:
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


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_paho(broker: BrokerThread, version: int, transport: str) -> None:
    paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
    api = paho.CallbackAPIVersion.VERSION2
    got: list[tuple[str, bytes, int]] = []
    subscribed = threading.Event()
    reader = paho.Client(api, client_id="reader", protocol=version, transport=transport)
    writer = paho.Client(api, client_id="writer", protocol=version, transport=transport)
    reader.on_message = lambda *given: got.append((given[2].topic, given[2].payload, given[2].qos))
    reader.on_subscribe = lambda *given: subscribed.set()
    for client in (reader, writer):
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
    try:
        reader.subscribe("plant/#", 2)
        assert subscribed.wait(SECONDS)
        for number in range(30):
            writer.publish("plant/x", str(number), number % 3).wait_for_publish(SECONDS)
        until(lambda: len(got) == 30)
    finally:
        for client in (writer, reader):
            client.disconnect()
            client.loop_stop()
    assert sorted(got) == sorted(("plant/x", b"%d" % n, n % 3) for n in range(30))


MQTT_JS = """
const client = require("mqtt").connect(process.argv[1], {protocolVersion: +process.argv[2]})
const payloads = []
client.on("connect", () => client.subscribe("plant/#", {qos: 2}, () => {
  for (let n = 0; n < 30; n++) client.publish("plant/x", "message " + n, {qos: n % 3})
}))
client.on("message", (topic, payload) => {
  payloads.push(payload.toString())
  if (payloads.length == 30) client.end(() => console.log(payloads.sort().join()))
})
"""


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js(broker: BrokerThread, version: int, scheme: str) -> None:
    node = shutil.which("node") or ""
    asked = [node, "-e", 'require("mqtt")']
    if not node or subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("node has no package mqtt: NODE_PATH names a folder that has it")
    words = [node, "-e", MQTT_JS, f"{scheme}://127.0.0.1:{broker.port}", str(version)]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert found.stdout.strip() == ",".join(sorted(f"message {n}" for n in range(30)))
