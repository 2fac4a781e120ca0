"""``wireyard sub``."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

import click

from wireyard.cli import exits
from wireyard.cli.mqtt_options import HELP_NAMES, client_of, client_options, is_jmq
from wireyard.cli.options import examples
from wireyard.cli.output import to_terminal
from wireyard.errors import UsageError
from wireyard.text import payload_text, printable

_PREFETCH = 100
"""Messages of a queue that come before the first one is shown; they go back at the end."""


@click.command(
    "sub",
    context_settings=HELP_NAMES,
    epilog=examples(
        "wireyard sub -t 'plant/#'",
        "wireyard sub -t 'plant/+/1' -q 1 -C 10 | jq .payload",
        "wireyard sub -q orders",
    ),
)
@click.option("-t", "--topic", "filters", multiple=True, metavar="FILTER",
              help="Topic filter to subscribe to, or several.")  # fmt: skip
@click.option("-C", "--count", type=click.IntRange(min=1), metavar="N",
              help="End after N messages.")  # fmt: skip
@click.option("-W", "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True),
              metavar="SECONDS", help="End after so many seconds.")  # fmt: skip
@click.option("-R", "--no-retained", is_flag=True,
              help="Leave out retained values that were there before.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, expose_value=False,
              help="Show topics, as is done without it.")  # fmt: skip
@click.option("--out", type=click.Choice(["text", "jsonl"]), help="Text on a terminal.")
@client_options
def command(
    filters: Sequence[str],
    count: int | None,
    timeout_s: float | None,
    no_retained: bool,
    out: str | None,
    qos: int | str,
    **connection: Any,
) -> int:
    """Show the messages of topics as they arrive; the letters are those of mosquitto_sub.

    A line has the time, the topic, the QoS with r for a retained value, and the payload: text, or
    hexadecimal behind 0x if it is none. When piped, lines are JSON objects. If the connection is
    lost, it is made again. -q QUEUE takes the messages of a queue of a JMQ broker, and -h mq://HOST
    is for its topics; P is a persistent message, R one that may have come before.
    """
    from wireyard.client import run

    if bool(filters) is isinstance(qos, str):
        raise UsageError("messages come from topics, -t, or from a queue, -q QUEUE")
    if len(filters) > 1 and is_jmq(connection["host"], qos):
        raise UsageError("a JMQ broker is asked for one -t, which may have wildcards: plant.>")
    kind = out or ("text" if to_terminal(None) else "jsonl")
    write = _text if kind == "text" else _json

    async def show() -> None:
        async with aclosing(_rows(filters, qos, count, connection)) as rows:
            left = count
            async for topic, flags, payload, columns in rows:
                if no_retained and columns.get("retain"):
                    continue
                sys.stdout.write(write(topic, flags, payload, columns))
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return

    run(show(), timeout_s)
    return exits.DONE


_Shown = tuple[str, str, bytes, dict[str, Any]]


async def _rows(
    filters: Sequence[str], qos: int | str, count: int | None, connection: dict[str, Any]
) -> AsyncGenerator[_Shown, None]:
    """Yield of each message the topic, its flags for people, its payload, and other columns."""
    from wireyard.client import JmqClient

    async with client_of(**connection, qos=qos, reconnect=True) as client:
        if not isinstance(client, JmqClient):
            await client.subscribe(list(filters), int(qos))
            async for one in client:
                shown = f"{one.qos}{'r' if one.retain else ' '}"
                yield one.topic, shown, one.payload, {"qos": one.qos, "retain": one.retain}
            return
        name = filters[0] if filters else str(qos)
        prefetch = min(count or _PREFETCH, _PREFETCH)
        async for message in await client.consume(name, is_topic=bool(filters), prefetch=prefetch):
            packet = message.packet
            columns = {"flags": packet.flags, "properties": message.properties}
            flags = "".join(letter if letter in packet.flags else " " for letter in "PR")
            yield packet.destination or "", flags, packet.body or b"", columns


def _text(topic: str, flags: str, payload: bytes, columns: dict[str, Any]) -> str:
    now = datetime.now().astimezone()
    shown = printable(payload_text(payload))
    return f"{now:%H:%M:%S.%f}  {printable(topic)}  {flags}  {shown}\n"


def _json(topic: str, flags: str, payload: bytes, columns: dict[str, Any]) -> str:
    from wireyard.cli.decoding.cells import json_text

    row = {"received_ns": time.time_ns(), "topic": topic, **columns,
           "payload_size": len(payload), "payload": payload_text(payload)}  # fmt: skip
    return json_text(row) + "\n"
