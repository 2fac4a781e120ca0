"""``wireyard sub``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.mqtt_options import HELP_NAMES, client_of, client_options
from wireyard.cli.options import examples
from wireyard.cli.output import to_terminal
from wireyard.text import payload_text, printable

if TYPE_CHECKING:
    from wireyard.endpoints import Message

__all__ = ["command"]


@click.command(
    "sub",
    context_settings=HELP_NAMES,
    epilog=examples(
        "wireyard sub -t 'plant/#'",
        "wireyard sub -t 'plant/+/1' -q 1 -C 10 | jq .payload",
    ),
)
@click.option("-t", "--topic", "filters", multiple=True, required=True, metavar="FILTER",
              help="Topic filter to subscribe to, or several.")  # fmt: skip
@click.option("-C", "--count", type=click.IntRange(min=1), metavar="N",
              help="End after N messages.")  # fmt: skip
@click.option("--out", type=click.Choice(["text", "jsonl"]), help="Text on a terminal.")
@client_options
def command(
    filters: Sequence[str], count: int | None, out: str | None, qos: int, **connection: Any
) -> int:
    """Show the messages of topics as they arrive; the letters are those of mosquitto_sub.

    A line has the time, the topic, the QoS with r for a retained value, and the payload: text, or
    hexadecimal behind 0x if it is none. When piped, lines are JSON objects. If the connection is
    lost, it is made again.
    """
    from wireyard.client import run

    kind = out or ("text" if to_terminal(None) else "jsonl")
    shown = _text if kind == "text" else _json

    async def show() -> None:
        left = count
        async with client_of(**connection, reconnect=True) as client:
            await client.subscribe(list(filters), qos)
            async for message in client:
                sys.stdout.write(shown(message))
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return

    run(show())
    return exits.DONE


def _text(message: Message) -> str:
    now = datetime.now().astimezone()
    retained = "r" if message.retain else " "
    topic, payload = printable(message.topic), printable(payload_text(message.payload))
    return f"{now:%H:%M:%S.%f}  {topic}  {message.qos}{retained}  {payload}\n"


def _json(message: Message) -> str:
    from wireyard.cli.decoding.cells import json_text

    row = {
        "received_ns": time.time_ns(),
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        "payload_size": len(message.payload),
        "payload": payload_text(message.payload),
    }
    return json_text(row) + "\n"
