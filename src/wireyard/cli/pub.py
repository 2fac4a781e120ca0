"""``wireyard pub``."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.mqtt_options import HELP_NAMES, client_of, client_options
from wireyard.cli.options import PATH, examples
from wireyard.errors import SourceError, UsageError
from wireyard.formats.mqtt.layout import MAX_REMAINING_LENGTH
from wireyard.streams.source import reading

if TYPE_CHECKING:
    from wireyard.client import Client, JmqClient


@click.command(
    "pub",
    context_settings=HELP_NAMES,
    epilog=examples(
        "wireyard pub -t plant/line/1 -m 42",
        "wireyard pub -h mqtt://127.0.0.1:1884 -t plant/line/1 -m 42 -q 1 -r",
        "tail -f readings.txt | wireyard pub -t plant/line/1 -l",
        "wireyard pub -q orders -m 42",
    ),
)
@click.option("-t", "--topic", metavar="TOPIC", help="Topic to publish to.")
@click.option("-m", "--message", metavar="TEXT", help="Payload; empty if not given.")
@click.option("-f", "--file", type=PATH, metavar="FILE",
              help="Payload: the bytes of a file, or of standard input, -.")  # fmt: skip
@click.option("-l", "--stdin-line", "by_line", is_flag=True,
              help="A message for each line of standard input, as they come.")  # fmt: skip
@click.option("-r", "--retain", is_flag=True, help="Make it the retained value of the topic.")
@client_options
def command(
    topic: str | None,
    message: str | None,
    file: str | None,
    by_line: bool,
    retain: bool,
    qos: int | str,
    **connection: Any,
) -> int:
    """Publish a message to an MQTT broker; the letters are those of mosquitto_pub.

    At QoS 1 and 2 it ends when the broker has acknowledged the message. -q QUEUE sends a persistent
    text message to a queue of a JMQ broker, and -h mq://HOST to a topic of one; of -f it is one of
    bytes.
    """
    from wireyard.client import JmqClient, lines_of, run

    if (topic is None) is isinstance(qos, int):
        raise UsageError("a message goes to a topic, -t, or to a queue, -q QUEUE")
    if (message is not None) + (file is not None) + by_line > 1:
        raise UsageError("a payload is text, -m, or a file, -f, or lines of standard input, -l")

    payload = os.fsencode(message or "") if file is None else _read(file)

    async def publish() -> None:
        async with client_of(**connection, qos=qos, reconnect=False) as client:
            if not by_line:
                await send(client, payload)
                return
            async for line in lines_of(sys.stdin.fileno()):
                await send(client, line)

    async def send(client: Client | JmqClient, payload: bytes) -> None:
        if isinstance(client, JmqClient):
            body = os.fsdecode(payload) if file is None else payload
            await client.send(topic or str(qos), body, is_topic=topic is not None)
        else:
            await client.publish(topic or "", payload, int(qos), retain)

    run(publish())
    return exits.DONE


def _read(path: str) -> bytes:
    """Return the bytes of a file or of standard input, of which no packet has more."""
    with reading(path), nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        data = file.read(MAX_REMAINING_LENGTH + 1)
    if len(data) > MAX_REMAINING_LENGTH:
        raise SourceError(
            f"{path}: has more than {MAX_REMAINING_LENGTH:,} bytes, the most of a packet"
        )
    return data
