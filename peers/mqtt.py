"""Other MQTT software for tests and benchmarks, installed under build/ by pip, npm and Maven.

Parsers for benchmarks: mqtt5 (Rust) and zmqtt (Python). For tests, clients: paho-mqtt, aiomqtt,
gmqtt, mqtt.js and HiveMQ's client for Java; and brokers: amqtt, aedes and Moquette.
``python -m peers.mqtt NAME PORT`` runs a broker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from peers import openmq
from peers.openmq import BUILD, Unavailable

__all__ = ["BROKERS", "CLIENTS", "Unavailable", "parser"]

_HERE: Final = Path(__file__).parent
_NPM: Final = ("mqtt@5.16.0", "aedes@1.2.0")
_AMQTT, _MOQUETTE = "amqtt==0.12.1", "io.moquette:moquette-broker:0.17"
_HIVEMQ: Final = ("com.hivemq:hivemq-mqtt-client:1.3.5", "io.netty:netty-codec-http:4.1.118.Final")


def parser(module: str) -> ModuleType:
    """Import a module of a parser; install the parsers first if necessary.

    Raises
    ------
    Unavailable
        No package index can be reached, or it has no package for this machine.
    """
    folder = str(_installed("parsers"))
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(module)


def _installed(name: str) -> Path:
    """Return the folder with the packages of a file of requirements; install them if necessary."""
    file = str(_HERE / f"{name}.txt")
    return _pip(name, "--require-hashes", "--no-deps", "--requirement", file)


def _pip(name: str, *wanted: str) -> Path:
    folder = BUILD / f"peers-{name}"
    if not folder.is_dir():
        part = folder.with_name(f"{folder.name}.part")
        options = ["install", "--quiet", "--upgrade", "--target", str(part)]
        _run([sys.executable, "-m", "pip", *options, *wanted])
        part.rename(folder)
    return folder


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or words[0]).splitlines()
        raise Unavailable(said[-1])


def _python(program: str) -> list[str]:
    return ["env", f"PYTHONPATH={_installed('clients')}", sys.executable, "-c", program]


def _node(program: str) -> list[str]:
    node, npm, folder = shutil.which("node"), shutil.which("npm"), BUILD / "peers-npm"
    if node is None or npm is None:
        raise Unavailable("no node or npm")
    if not folder.is_dir():
        part = folder.with_name("peers-npm.part")
        _run([npm, "install", "--silent", "--prefix", str(part), *_NPM])
        part.rename(folder)
    return ["env", f"NODE_PATH={folder / 'node_modules'}", node, "-e", program]


def _hivemq(program: str) -> list[str]:
    jars = openmq.jars("hivemq", *_HIVEMQ)
    return openmq.java_with(_HERE / program, [f"{jars}{os.sep}*"], "-Xshare:auto")


_PAHO: Final = """
import sys, threading
from paho.mqtt.client import CallbackAPIVersion, Client
port, version, scheme = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
transport = "websockets" if scheme == "ws" else "tcp"
payloads, subscribed, done = [], threading.Event(), threading.Event()
client = Client(CallbackAPIVersion.VERSION2, "paho", protocol=version, transport=transport)
client.on_subscribe = lambda *given: subscribed.set()
def on_message(client, given, message):
    payloads.append(message.payload.decode())
    if len(payloads) == 30:
        done.set()
client.on_message = on_message
client.connect("127.0.0.1", port)
client.loop_start()
client.subscribe("plant/#", 2)
subscribed.wait()
for number in range(30):
    client.publish("plant/x", f"message {number}", number % 3).wait_for_publish()
done.wait()
client.disconnect()
client.loop_stop()
print(",".join(sorted(payloads)))
"""
_AIOMQTT: Final = """
import asyncio, sys
from aiomqtt import Client, ProtocolVersion
port, version, scheme = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
transport = "websockets" if scheme == "ws" else "tcp"
async def main():
    protocol, payloads = ProtocolVersion(version), []
    async with Client("127.0.0.1", port, protocol=protocol, transport=transport) as client:
        await client.subscribe("plant/#", qos=2)
        for number in range(30):
            await client.publish("plant/x", f"message {number}", qos=number % 3)
        async for message in client.messages:
            payloads.append(message.payload.decode())
            if len(payloads) == 30:
                break
    print(",".join(sorted(payloads)))
asyncio.run(main())
"""
_GMQTT: Final = """
import asyncio, sys
from gmqtt import Client
port, version = int(sys.argv[1]), int(sys.argv[2])
async def main():
    payloads, subscribed, done = [], asyncio.Event(), asyncio.Event()
    client = Client("gmqtt")
    client.on_subscribe = lambda *given: subscribed.set()
    async def on_message(client, topic, payload, qos, properties):
        payloads.append(payload.decode())
        if len(payloads) == 30:
            done.set()
        return 0
    client.on_message = on_message
    await client.connect("127.0.0.1", port, version=version)
    client.subscribe("plant/#", qos=2)
    await subscribed.wait()
    for number in range(30):
        client.publish("plant/x", f"message {number}", qos=number % 3)
    await done.wait()
    await asyncio.sleep(0.2)
    await client.disconnect()
    print(",".join(sorted(payloads)))
asyncio.run(main())
"""
_JS: Final = """
const [port, version, scheme] = process.argv.slice(1)
const url = `${scheme}://127.0.0.1:${port}`
const protocolId = version == 3 ? "MQIsdp" : "MQTT"
const client = require("mqtt").connect(url, {protocolVersion: +version, protocolId})
const payloads = []
client.on("connect", () => client.subscribe("plant/#", {qos: 2}, () => {
  for (let n = 0; n < 30; n++) client.publish("plant/x", "message " + n, {qos: n % 3})
}))
client.on("message", (topic, payload) => {
  payloads.push(payload.toString())
  if (payloads.length == 30) client.end(() => console.log(payloads.sort().join()))
})
"""

CLIENTS: Final[dict[str, tuple[Callable[[], list[str]], tuple[str, ...], tuple[int, ...]]]] = {
    "paho": (lambda: _python(_PAHO), ("mqtt", "ws"), (3, 4, 5)),
    "aiomqtt": (lambda: _python(_AIOMQTT), ("mqtt", "ws"), (3, 4, 5)),
    "gmqtt": (lambda: _python(_GMQTT), ("mqtt",), (4, 5)),
    "mqtt.js": (lambda: _node(_JS), ("mqtt", "ws"), (3, 4, 5)),
    "hivemq": (lambda: _hivemq("HiveMq.java"), ("mqtt", "ws"), (4, 5)),
}
"""Clients by name: the command that runs each, the schemes and the versions that it speaks.

The command takes port, version and scheme. It subscribes to ``plant/#``, publishes 30 messages to
``plant/x`` at the three QoS in turn, and prints the payloads that it got back, sorted. An
`Unavailable` is raised where it cannot be installed.
"""


_AMQTT_SETTINGS: Final = """
listeners: {{default: {{type: tcp, bind: "127.0.0.1:{port}"}}}}
plugins: {{amqtt.plugins.authentication.AnonymousAuthPlugin: {{allow_anonymous: true}}}}
"""
_AEDES: Final = """
require("aedes").Aedes.createBroker().then(broker =>
  require("net").createServer(broker.handle).listen(+process.argv[1], "127.0.0.1"))
"""
_MOQUETTE_SETTINGS: Final = """
host 127.0.0.1
port {port}
allow_anonymous true
persistence_enabled false
telemetry_enabled false
"""


def _amqtt(port: int, folder: Path) -> list[str]:
    settings = folder / "amqtt.yaml"
    settings.write_text(_AMQTT_SETTINGS.format(port=port))
    python = ["env", f"PYTHONPATH={_pip('amqtt', _AMQTT)}", sys.executable, "-m"]
    return [*python, "amqtt.scripts.broker_script", "-c", str(settings)]


def _moquette(port: int, folder: Path) -> list[str]:
    jars, settings = openmq.jars("moquette", _MOQUETTE), folder / "config" / "moquette.conf"
    settings.parent.mkdir()
    settings.write_text(_MOQUETTE_SETTINGS.format(port=port))
    java = [openmq.jdk_tool("java"), f"-Dmoquette.path={folder}", "-cp", f"{jars}{os.sep}*"]
    return [*java, "io.moquette.broker.Server"]


BROKERS: Final[dict[str, tuple[Callable[[int, Path], list[str]], tuple[str, ...]]]] = {
    "amqtt": (_amqtt, ("3.1.1",)),
    "aedes": (lambda port, folder: [*_node(_AEDES), str(port)], ("3.1", "3.1.1")),
    "moquette": (_moquette, ("3.1", "3.1.1")),
}
"""Brokers by name: a function of a port and an empty folder that returns the command of each, and
the versions that it speaks. An `Unavailable` is raised where it cannot be installed."""


if __name__ == "__main__":
    command = BROKERS[sys.argv[1]][0](int(sys.argv[2]), Path(tempfile.mkdtemp()))
    os.execvp(command[0], command)
