"""Record the MQTT example traffic: mosquitto, paho clients, and a tap on loopback between them.

usage: python -m examples.recording.record_mqtt [--mosquitto PROGRAM] [--out examples/traffic]

It needs mosquitto and mosquitto_passwd, which Debian's package mosquitto has both, and the Python
package paho-mqtt. Each connection becomes two files of raw bytes, exactly as they went over the
wire: NAME-c2b.mqtt from the client to the broker, NAME-b2c.mqtt back. The messages that the
clients published and received, as they log them, go to _clients.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import json
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TextIO

# Only new recordings need it, so it is not among the locked packages.
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from examples.recording.tap import LOOPBACK, free_ports, running, tap

MOSQUITTO = "/usr/sbin/mosquitto"
PASSWORD = "made-up-for-this-recording"
QUIET_S = 0.15
"""Pause after a step, so that its effects end before the next and the order is always the same."""
EXPIRY_S = 2.5
"""Longer than the expiry of the messages that must not be delivered, and than the keep alive of the
shelf."""


def properties(packet_type: int, **values: Any) -> Properties:
    result = Properties(packet_type)
    for name, value in values.items():
        setattr(result, name, value)
    return result


class Client:
    """A paho client in the event loop that logs the messages it publishes and receives."""

    def __init__(self, name: str, log: TextIO, **settings: Any) -> None:
        self.name = name
        self.log = log
        self.answers = 0
        """The number of answers to packets of this client."""
        self.topics: dict[int, str] = {}
        """The topic of each alias."""
        self.paho = paho = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            **{"client_id": name, "protocol": mqtt.MQTTv5, **settings},
        )
        loop = asyncio.get_running_loop()
        paho.on_socket_open = lambda _, __, opened: loop.add_reader(opened, paho.loop_read)
        paho.on_socket_close = lambda _, __, closed: loop.remove_reader(closed)
        paho.on_socket_register_write = lambda _, __, it: loop.add_writer(it, paho.loop_write)
        paho.on_socket_unregister_write = lambda _, __, it: loop.remove_writer(it)
        paho.on_connect = paho.on_subscribe = paho.on_unsubscribe = self._answered
        paho.on_message = self._received

    def _answered(self, *_: Any) -> None:
        self.answers += 1

    def _received(self, _client: Any, _data: Any, message: Any) -> None:
        self._log("received", message.topic, message)

    def _log(self, event: str, topic: str, message: Any) -> None:
        entry = {
            "connection": self.name,
            "event": event,
            "topic": topic,
            "qos": message.qos,
            "retain": bool(message.retain),
            "payload_hex": message.payload.hex(),
            "properties": message.properties.json() if message.properties else {},
        }
        self.log.write(json.dumps(entry, ensure_ascii=False) + "\n")

    async def _step(self, done: Callable[[], bool]) -> None:
        """Wait until a step is done, and then until its effects have ended."""
        async with asyncio.timeout(10):
            while not done():
                await asyncio.sleep(0.01)
        await asyncio.sleep(QUIET_S)

    async def _answer(self) -> None:
        wanted = self.answers + 1
        await self._step(lambda: self.answers >= wanted)

    async def connect(self, port: int, **options: Any) -> None:
        """Connect, and wait for any answer of the broker."""
        self.paho.connect(LOOPBACK, port, **options)
        await self._answer()

    async def subscribe(self, *filters: tuple[str, Any], **values: Any) -> None:
        """Subscribe, each filter with its QoS or options."""
        result = properties(PacketTypes.SUBSCRIBE, **values) if values else None
        self.paho.subscribe(list(filters), properties=result)
        await self._answer()

    async def unsubscribe(self, *filters: str, **values: Any) -> None:
        """Unsubscribe."""
        self.paho.unsubscribe(list(filters), properties(PacketTypes.UNSUBSCRIBE, **values))
        await self._answer()

    def send(
        self,
        topic: str,
        payload: str | bytes = b"",
        qos: int = 0,
        retain: bool = False,
        **values: Any,
    ) -> Any:
        """Publish without waiting; a topic with an alias is sent only the first time."""
        alias = values.get("TopicAlias")
        known = alias is not None and self.topics.get(alias) == topic
        if alias is not None:
            self.topics[alias] = topic
        result = properties(PacketTypes.PUBLISH, **values) if values else None
        sent = mqtt.MQTTMessage()
        sent.qos, sent.retain, sent.properties = qos, retain, result
        sent.payload = payload.encode() if isinstance(payload, str) else payload
        self._log("published", topic, sent)
        return self.paho.publish("" if known else topic, payload, qos, retain, result)

    async def publish(self, topic: str, payload: str | bytes = b"", **options: Any) -> None:
        """Publish, and wait for the acknowledgement that the QoS requires."""
        await self._step(self.send(topic, payload, **options).is_published)

    async def disconnect(self, **values: Any) -> None:
        """Send DISCONNECT, and wait for the end of the connection."""
        self.paho.disconnect(
            properties=properties(PacketTypes.DISCONNECT, **values) if values else None
        )
        await self._step(lambda: self.paho.socket() is None)

    async def vanish(self) -> None:
        """Send all buffered packets, read no answer, and end the connection without DISCONNECT."""
        loop, opened = asyncio.get_running_loop(), self.paho.socket()
        loop.remove_reader(opened)
        while self.paho.want_write():
            await asyncio.sleep(0)
        opened.shutdown(socket.SHUT_WR)
        await asyncio.sleep(QUIET_S)


class Stock(Client):
    """A service that answers requests on their response topic."""

    def _received(self, client: Any, data: Any, message: Any) -> None:
        super()._received(client, data, message)
        request = message.properties
        left = len(message.payload) * 3
        self.send(
            request.ResponseTopic,
            json.dumps({"left": left}),
            qos=1,
            CorrelationData=request.CorrelationData,
            UserProperty=("answered by", self.name),
        )


# --- the scenario ---------------------------------------------------------------------------

Ports = dict[str, int]
NAMES = ("office", "shelf", "till", "till-again", "stock-1", "stock-2", "monitor", "stranger")


async def open_monitor(ports: Ports, log: TextIO) -> Client:
    """Log in, and subscribe to everything."""
    monitor = Client("monitor", log)
    monitor.paho.username_pw_set("monitor", PASSWORD)
    hello = properties(
        PacketTypes.CONNECT,
        ReceiveMaximum=20,
        MaximumPacketSize=65536,
        RequestProblemInformation=1,
        UserProperty=[("place", "back office"), ("place", "Büro 2")],
    )
    await monitor.connect(ports["monitor"], clean_start=True, properties=hello)
    everything = SubscribeOptions(qos=2, retainAsPublished=True)
    await monitor.subscribe(("shop/#", everything), SubscriptionIdentifier=1)
    await monitor.subscribe(("$SYS/broker/version", SubscribeOptions(qos=0)))
    return monitor


async def open_office(ports: Ports, log: TextIO) -> Client:
    """Publish prices as retained values."""
    office = Client("office", log)
    later = properties(PacketTypes.CONNECT, SessionExpiryInterval=300, TopicAliasMaximum=10)
    await office.connect(ports["office"], clean_start=False, properties=later)
    quiet = SubscribeOptions(
        qos=1, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND
    )
    await office.subscribe(
        ("shop/answers/office", quiet), ("shop/sales/+", SubscribeOptions(qos=1))
    )
    prices = {"apples": "2.40 €", "café crème": "3.10 €", "緑茶": "4.80 €", "🥨": "0.95 €"}
    for number, (name, price) in enumerate(prices.items()):
        await office.publish(
            f"shop/prices/{name}",
            price,
            qos=number % 3,
            retain=True,
            PayloadFormatIndicator=1,
            ContentType="text/plain",
            UserProperty=[("currency", "EUR"), ("list", "summer"), ("list", "été")],
        )
    await office.publish("shop/offers/today", "two for one", qos=1, retain=True,
                         MessageExpiryInterval=3600)  # fmt: skip
    await office.publish("shop/offers/now", "gone in a second", qos=1, retain=True,
                         MessageExpiryInterval=1)  # fmt: skip
    return office


async def open_shelf(ports: Ports, log: TextIO) -> Client:
    """Send measurements under topic aliases, with a will."""
    shelf = Client("shelf", log)
    will = properties(
        PacketTypes.WILLMESSAGE,
        WillDelayInterval=0,
        MessageExpiryInterval=600,
        ContentType="text/plain",
        UserProperty=("shelf", "7"),
    )
    shelf.paho.will_set("shop/shelf/7/state", "lost", 1, True, will)
    await shelf.connect(ports["shelf"], keepalive=2, clean_start=True)
    await shelf.publish("shop/shelf/7/state", "there", qos=1, retain=True)
    for number in range(30):
        temperature = f"{4 + number * 7 % 10 / 10}"
        await shelf.publish("shop/shelf/7/temperature", temperature, TopicAlias=1)
        if number % 8 == 0:
            await shelf.publish("shop/shelf/7/weight", bytes((0xFF, number)), TopicAlias=2)
    await shelf.publish("shop/shelf/7/door", "open", TopicAlias=1)
    return shelf


async def open_till(ports: Ports, log: TextIO) -> Client:
    """Sell, with MQTT 3.1.1."""
    till = Client("till", log, protocol=mqtt.MQTTv311, clean_session=False)
    await till.connect(ports["till"])
    await till.subscribe(("shop/prices/+", 1), ("shop/till/3/display", 2))
    for number in range(6):
        sale = {"sale": number, "item": "Äpfel", "grams": 250 * (number + 1)}
        text = json.dumps(sale, ensure_ascii=False)
        await till.publish(f"shop/sales/{number % 2}", text, qos=number % 3)
    receipt = "".join(f"{line:3}  1 kg Äpfel      2.40 €\n" for line in range(12))
    await till.publish("shop/receipts", receipt, qos=1)
    await till.publish("shop/till/3/opened")
    return till


async def ask_stock(office: Client, ports: Ports, log: TextIO) -> list[Client]:
    """Send requests to two clients that share a subscription and answer them."""
    stocks: list[Client] = []
    for name, client_id in (("stock-1", "stock-1"), ("stock-2", "")):  # the broker assigns one id
        stock = Stock(name, log, client_id=client_id)
        await stock.connect(ports[name], clean_start=True)
        await stock.subscribe(("$share/stock/shop/requests/#", SubscribeOptions(qos=1)))
        stocks.append(stock)
    for number, item in enumerate(("apples", "緑茶", "café crème", "🥨")):
        await office.publish(
            "shop/requests/left",
            item,
            qos=1,
            ResponseTopic="shop/answers/office",
            CorrelationData=bytes((0xC0, number)) if number % 2 else b"request %d" % number,
            PayloadFormatIndicator=1,
        )
    return stocks


async def lose_till(till: Client, office: Client, ports: Ports) -> None:
    """End the till's connection before the acknowledgements; it sends both messages again."""
    till.send("shop/sales/0", '{"sale": 6, "item": "Tee"}', qos=1)
    till.send("shop/sales/1", '{"sale": 7, "item": "Tee"}', qos=2)
    await till.vanish()
    await office.publish("shop/till/3/display", "closing at 18:00", qos=2)
    await office.publish("shop/till/3/display", "never shown", qos=1, MessageExpiryInterval=1)
    await asyncio.sleep(EXPIRY_S)
    till.name = "till-again"
    await till.connect(ports["till-again"])
    await till.publish("shop/till/3/opened", "again", qos=1)


async def close_shop(office: Client, monitor: Client, shelf: Client) -> None:
    """Delete a price, let the shelf vanish, subscribe to the remaining values."""
    await office.publish("shop/prices/apples", qos=1, retain=True)
    await shelf.vanish()
    await monitor.unsubscribe(
        "$SYS/broker/version", "shop/never/asked", UserProperty=("why", "done")
    )
    left = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE)
    await monitor.subscribe(("shop/offers/+", left), ("shop/prices/#", left),
                            SubscriptionIdentifier=200)  # fmt: skip
    await office.unsubscribe("shop/sales/+")


async def refuse_stranger(ports: Ports, log: TextIO) -> None:
    stranger = Client("stranger", log)
    stranger.paho.username_pw_set("monitor", "a guess")
    await stranger.connect(ports["stranger"], clean_start=True)


async def play(ports: Ports, log: TextIO) -> None:
    """Play the scenario once, step by step."""
    monitor = await open_monitor(ports, log)
    office = await open_office(ports, log)
    shelf = await open_shelf(ports, log)
    till = await open_till(ports, log)
    keeping_alive = asyncio.create_task(keep_alive(shelf))
    stocks = await ask_stock(office, ports, log)
    await lose_till(till, office, ports)
    keeping_alive.cancel()
    await close_shop(office, monitor, shelf)
    await refuse_stranger(ports, log)
    for client in (*stocks, till, monitor):
        await client.disconnect()
    await office.disconnect(SessionExpiryInterval=0, UserProperty=("why", "Feierabend"))


async def keep_alive(client: Client) -> None:
    while True:
        client.paho.loop_misc()
        await asyncio.sleep(0.5)


# --- the recording --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running_broker(mosquitto: str, work: Path, port: int) -> AsyncIterator[None]:
    """Run a broker on loopback only."""
    passwords, settings = work / "passwords", work / "mosquitto.conf"
    subprocess.run(["mosquitto_passwd", "-c", "-b", passwords, "monitor", PASSWORD], check=True)
    settings.write_text(
        f"listener {port} {LOOPBACK}\nallow_anonymous true\npassword_file {passwords}\n"
        # Started by root it would change to a user that cannot read the passwords.
        f"user {getpass.getuser()}\npersistence false\nlog_dest stderr\n"
    )
    async with running(mosquitto, "-c", settings, ready=b"running"):
        yield


async def tapped(port: int, out: Path) -> Ports:
    """Open a tap for each client; return their ports."""
    return {name: await tap(name, "mqtt", port, out) for name in NAMES}


async def record(mosquitto: str, out: Path) -> None:
    """Play the scenario with each connection through its own tap."""
    [port] = free_ports(1)
    with (
        tempfile.TemporaryDirectory() as work,
        (out / "_clients.jsonl").open("w", encoding="utf-8") as log,
    ):
        async with running_broker(mosquitto, Path(work), port):
            await play(await tapped(port, out), log)
            await asyncio.sleep(1)  # the last bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mosquitto", default=MOSQUITTO)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "traffic")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for old in arguments.out.glob("*.mqtt"):
        old.unlink()
    asyncio.run(record(arguments.mosquitto, arguments.out))
    for stream in sorted(arguments.out.glob("*.mqtt")):
        print(f"{stream.stat().st_size:9,} bytes  {stream.name}")


if __name__ == "__main__":
    main()
