"""``wireyard pub``."""

from __future__ import annotations

import os
from typing import Any

import click

from wireyard.cli import exits
from wireyard.cli.mqtt_options import HELP_NAMES, client_of, client_options
from wireyard.cli.options import examples

__all__ = ["command"]


@click.command(
    "pub",
    context_settings=HELP_NAMES,
    epilog=examples(
        "wireyard pub -t plant/line/1 -m 42",
        "wireyard pub -h mqtt://127.0.0.1:1884 -t plant/line/1 -m 42 -q 1 -r",
    ),
)
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Topic to publish to.")
@click.option("-m", "--message", default="", metavar="TEXT", help="Payload; empty if not given.")
@click.option("-r", "--retain", is_flag=True, help="Make it the retained value of the topic.")
@client_options
def command(topic: str, message: str, retain: bool, qos: int, **connection: Any) -> int:
    """Publish a message to an MQTT broker; the letters are those of mosquitto_pub.

    At QoS 1 and 2 it ends when the broker has acknowledged the message.
    """
    from wireyard.client import run

    async def publish() -> None:
        async with client_of(**connection, reconnect=False) as client:
            await client.publish(topic, os.fsencode(message), qos, retain)

    run(publish())
    return exits.DONE
