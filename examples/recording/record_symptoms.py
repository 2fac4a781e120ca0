"""Record a small capture of each symptom, with mosquitto, Open MQ and dumpcap.

usage: python -m examples.recording.record_symptoms [--mq-home DIR] [--out examples/symptoms]
           [SYMPTOM...]

It needs mosquitto with mosquitto_passwd, dumpcap with the right to capture, and what `record` needs
for the captures of Open MQ, which are left out without --mq-home. Everything is on loopback, and
each capture has a broker of its own. MQTT clients are sockets that the functions below drive, so
that they can do what no library does. JMS clients are those of SymptomTraffic.java.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from examples.recording import record
from examples.recording.tap import LOOPBACK, free_ports, running
from wireyard import encode, mqtt

MOSQUITTO = "/usr/sbin/mosquitto"
PASSWORD = "made-up-for-this-recording"
TOPIC = "plant/state"
QUIET_S = 0.15
"""Pause after a step, so that its effects end before the next step."""
STUCK_S = 1.6
"""Longer than the time after which a pending message counts as stuck."""
SETTLED_S = 1.5
"""Pause after which the last captured packets are in the file."""
ACL = f"user guest\ntopic write {TOPIC}\ntopic readwrite open/#\n"
"""Subscriptions to the topic are accepted but get nothing; publishing to others is forbidden."""


class Client:
    """A client that sends given packets, and discards the bytes that it receives."""

    connected: ClassVar[list[Client]] = []
    """All clients; an unreferenced connection would be closed."""

    def __init__(self, port: int, version: int = 4) -> None:
        self.port, self.version, self.packet_id = port, version, 0

    async def connect(self, name: str, **fields: Any) -> Client:
        """Open a connection; a client may do so several times."""
        self.reader, self.writer = await asyncio.open_connection(LOOPBACK, self.port)
        self.reading = asyncio.create_task(self.reader.read())
        self.connected.append(self)
        await self.send(mqtt.Connect, client_id=name, **{"keep_alive": 60, **fields})
        return self

    async def send(self, packet: Any, **fields: Any) -> None:
        """Send a packet, and wait until its effects have ended."""
        self.writer.write(encode(packet(version_in_force=self.version, **fields)))
        await self.writer.drain()
        await asyncio.sleep(QUIET_S)

    async def subscribe(self, topic: str = TOPIC, qos: int = 1) -> None:
        """Subscribe to a topic."""
        await self.send(mqtt.Subscribe, packet_id=99, filters=[(topic, qos)])

    async def publish(self, payload: str, topic: str = TOPIC, **fields: Any) -> None:
        """Publish at QoS 1, with the next packet identifier."""
        self.packet_id += 1
        numbered = {"packet_id": self.packet_id, "qos": 1}
        await self.send(mqtt.Publish, topic=topic, payload=payload, **numbered, **fields)

    async def acknowledge(self, packet_id: int) -> None:
        """Acknowledge a delivered message by its packet identifier."""
        await self.send(mqtt.PubAck, packet_id=packet_id)

    async def leave(self) -> None:
        """Send DISCONNECT, and close."""
        await self.send(mqtt.Disconnect)
        self.writer.close()
        await asyncio.gather(self.reading, return_exceptions=True)

    async def vanish(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()
        await asyncio.sleep(QUIET_S)


# --- symptoms of MQTT -----------------------------------------------------------------------


async def healthy(port: int) -> None:
    """Publish messages that a subscriber gets and acknowledges."""
    subscriber, publisher = await Client(port).connect("gets"), await Client(port).connect("sends")
    await subscriber.subscribe()
    for number in range(1, 6):
        await publisher.publish(f"state {number}")
        await subscriber.acknowledge(number)
    await subscriber.leave()
    await publisher.leave()


async def window_full(port: int) -> None:
    """Let a subscriber with Receive Maximum 2 acknowledge late."""
    subscriber = await Client(port, 5).connect("gets", properties={"receive_maximum": 2})
    publisher = await Client(port, 5).connect("sends")
    await subscriber.subscribe()
    for number in range(1, 5):
        await publisher.publish(f"state {number}")
    await asyncio.sleep(STUCK_S)
    for number in range(1, 5):
        await subscriber.acknowledge(number)
    await subscriber.leave()
    await publisher.leave()


async def queued_away(port: int) -> None:
    """Let a subscriber with a persistent session disconnect for good."""
    subscriber, publisher = Client(port), await Client(port).connect("sends")
    await subscriber.connect("gets", clean_start=False)
    await subscriber.subscribe()
    await subscriber.leave()
    for number in range(1, 4):
        await publisher.publish(f"state {number}")
    await asyncio.sleep(STUCK_S)
    await publisher.leave()


async def taken_over(port: int) -> None:
    """Let a second client connect with the client id of the first."""
    await Client(port).connect("twin")
    await (await Client(port).connect("twin")).leave()


async def session_expired(port: int) -> None:
    """Let a client with queued messages reconnect after its session has expired."""
    subscriber, publisher = Client(port, 5), await Client(port, 5).connect("sends")
    await subscriber.connect("gets", properties={"session_expiry_interval": 1})
    await subscriber.subscribe()
    await subscriber.vanish()
    await publisher.publish("state 1")
    await asyncio.sleep(7)  # mosquitto checks for expired sessions every few seconds
    await subscriber.connect("gets", clean_start=False, properties={"session_expiry_interval": 1})
    await asyncio.sleep(STUCK_S)
    await subscriber.leave()
    await publisher.leave()


async def login_refused(port: int) -> None:
    """Let a client log in with a wrong password."""
    await Client(port).connect("stranger", username="guest", password="wrong")


async def publish_refused(port: int) -> None:
    """Let a client publish to a topic that the access list forbids."""
    login = {"username": "guest", "password": PASSWORD}
    publisher = await Client(port, 5).connect("sends", **login)
    await publisher.publish("not for you", "secret/state")
    await publisher.leave()


async def not_forwarded(port: int) -> None:
    """Let the broker accept a message that the access list withholds from the subscriber."""
    login = {"username": "guest", "password": PASSWORD}
    subscriber = await Client(port).connect("gets", **login)
    publisher = await Client(port).connect("sends", **login)
    await subscriber.subscribe()
    await publisher.publish("state 1")
    await subscriber.send(mqtt.PingReq)
    await subscriber.leave()
    await publisher.leave()


async def unacknowledged(port: int) -> None:
    """Let a subscriber never acknowledge."""
    subscriber, publisher = await Client(port).connect("gets"), await Client(port).connect("sends")
    await subscriber.subscribe()
    for number in range(1, 4):
        await publisher.publish(f"state {number}")
    await asyncio.sleep(STUCK_S)
    await publisher.leave()


async def keep_alive_missed(port: int) -> None:
    """Let a client with a keep-alive of one second be silent."""
    await Client(port).connect("silent", keep_alive=1)
    await asyncio.sleep(8)  # mosquitto checks every few seconds


async def retained_unread(port: int) -> None:
    """Let a value be retained that no client subscribes to."""
    publisher = await Client(port).connect("sends")
    await publisher.publish("nobody asks", "plant/forgotten", retain=True)
    await asyncio.sleep(QUIET_S)
    await publisher.leave()


async def too_large(port: int) -> None:
    """Publish a message above the Maximum Packet Size of its subscriber."""
    subscriber = await Client(port, 5).connect("gets", properties={"maximum_packet_size": 40})
    publisher = await Client(port, 5).connect("sends")
    await subscriber.subscribe()
    await publisher.publish("x" * 100)
    await publisher.publish("small")
    await subscriber.acknowledge(2)
    await subscriber.leave()
    await publisher.leave()


async def expired(port: int) -> None:
    """Let a queued message expire before its subscriber reconnects."""
    subscriber, publisher = Client(port, 5), await Client(port, 5).connect("sends")
    session = {"properties": {"session_expiry_interval": 60}}
    await subscriber.connect("gets", **session)
    await subscriber.subscribe()
    await subscriber.vanish()
    await publisher.publish("for a second", properties={"message_expiry_interval": 1})
    await asyncio.sleep(2.5)
    await subscriber.connect("gets", clean_start=False, **session)
    await publisher.publish("state 2")
    await subscriber.acknowledge(2)
    await subscriber.leave()
    await publisher.leave()


Scenario = Callable[[int], Awaitable[None]]
MQTT_SCENARIOS: tuple[Scenario, ...] = (
    healthy, window_full, queued_away, taken_over, session_expired, login_refused, publish_refused,
    not_forwarded, unacknowledged, keep_alive_missed, retained_unread, too_large, expired,
)  # fmt: skip
WITH_LOGINS = (login_refused, publish_refused, not_forwarded)
JMS_SCENARIOS = (
    "healthy", "slow_consumer", "producer_paused", "consumer_paused", "no_consumer", "selector",
    "unacknowledged", "given_back", "expired", "dead", "over_limit", "refused",
)  # fmt: skip


def capturing(port: int, out: Path) -> Any:
    """Return a context in which a port is captured."""
    # -P: the classic format, which does not describe the machine.
    return running(
        "dumpcap", "-P", "-i", "lo", "-f", f"tcp port {port}", "-w", out, ready=b"File: "
    )


async def record_mqtt(scenario: Scenario, out: Path, work: Path) -> None:
    [port] = free_ports(1)
    passwords, acl, settings = work / "passwords", work / "acl", work / "mosquitto.conf"
    subprocess.run(["mosquitto_passwd", "-c", "-b", passwords, "guest", PASSWORD], check=True)
    acl.write_text(ACL)
    logins = f"allow_anonymous false\npassword_file {passwords}\nacl_file {acl}\n"
    settings.write_text(
        f"listener {port} {LOOPBACK}\nuser {getpass.getuser()}\nlog_dest stderr\n"
        + (logins if scenario in WITH_LOGINS else "allow_anonymous true\n")
    )
    async with running(MOSQUITTO, "-c", settings, ready=b"running"), capturing(port, out):
        await scenario(port)
        await asyncio.sleep(SETTLED_S)


async def record_jms(name: str, mq_home: Path, classes: Path, out: Path, work: Path) -> None:
    java_home = record.installed_java()
    [mapper] = free_ports(1)
    async with record.running_broker(mq_home, java_home, work, mapper) as port:
        java = [f"{java_home}/bin/java", "-Dos.version=0", "-cp", f"{mq_home}/lib/*:{classes}"]
        client = [*java, "SymptomTraffic", name, f"mqtcp://{LOOPBACK}:{port}/jms"]
        if name in ("producer_paused", "over_limit"):
            behavior = "FLOW_CONTROL" if name == "producer_paused" else "REJECT_NEWEST"
            await limit(mq_home, java_home, mapper, work, behavior)
        async with capturing(port, out):
            await record.run(*client)
            await asyncio.sleep(SETTLED_S)


async def limit(mq_home: Path, java_home: Path, mapper: int, work: Path, behavior: str) -> None:
    """Create a queue that holds five messages at most."""
    password = work / "password"
    password.write_text("imq.imqcmd.password=admin\n")
    await record.run(
        f"{mq_home}/bin/imqcmd", "-javahome", str(java_home), "create", "dst", "-t", "q", "-n",
        "symptoms", "-o", "maxNumMsgs=5", "-o", f"limitBehavior={behavior}", "-u", "admin",
        "-passfile", str(password), "-f", "-b", f"{LOOPBACK}:{mapper}",
    )  # fmt: skip


async def play(names: set[str], mq_home: Path | None, out: Path) -> None:
    for scenario in MQTT_SCENARIOS:
        name = f"mqtt-{scenario.__name__}"
        if not names or name in names:
            with tempfile.TemporaryDirectory() as work:
                await record_mqtt(scenario, out / f"{name}.pcap", Path(work))
    if mq_home is None:
        return
    with tempfile.TemporaryDirectory() as classes:
        compiler, source = f"{record.installed_java()}/bin/javac", record.HERE
        jars = f"{mq_home}/lib/*"
        await record.run(compiler, "-cp", jars, "-d", classes, f"{source}/SymptomTraffic.java")
        for each in JMS_SCENARIOS:
            name = f"jms-{each}"
            if not names or name in names:
                with tempfile.TemporaryDirectory() as work:
                    target = out / f"{name}.pcap"
                    await record_jms(each, mq_home, Path(classes), target, Path(work))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path)
    parser.add_argument("--out", type=Path, default=record.HERE.parent / "symptoms")
    parser.add_argument("symptoms", nargs="*", metavar="SYMPTOM")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(exist_ok=True)
    mq_home = arguments.mq_home and arguments.mq_home.resolve()
    asyncio.run(play(set(arguments.symptoms), mq_home, out))
    for path in sorted(out.glob("*.pcap")):
        path.chmod(0o644)  # dumpcap makes it readable for its user only
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
