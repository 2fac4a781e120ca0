"""Other MQTT software for tests and benchmarks, installed under build/ by pip, npm and Maven.

Parsers for benchmarks: mqtt5 (Rust) and zmqtt (Python). Clients for tests: paho-mqtt, aiomqtt,
gmqtt, mqtt.js and HiveMQ's client for Java.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from peers import openmq
from peers.openmq import BUILD, Unavailable

__all__ = ["CLIENTS", "Unavailable", "parser"]

_HERE: Final = Path(__file__).parent
_MQTT_JS: Final = "mqtt@5.16.0"
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
    folder = BUILD / f"peers-{name}"
    if not folder.is_dir():
        options = ["install", "--quiet", "--require-hashes", "--no-deps", "--upgrade"]
        part = folder.with_name(f"{folder.name}.part")
        target = ["--target", str(part), "--requirement", str(_HERE / f"{name}.txt")]
        _run([sys.executable, "-m", "pip", *options, *target])
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
        _run([npm, "install", "--silent", "--prefix", str(part), _MQTT_JS])
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
