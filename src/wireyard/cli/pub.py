"""``wireyard pub``."""

from __future__ import annotations

import os
from typing import Any

import click

from wireyard.cli import exits
from wireyard.cli.mqtt_options import HELP_NAMES, client_of, client_options
from wireyard.cli.options import examples
from wireyard.errors import UsageError


@click.command(
    "pub",
    context_settings=HELP_NAMES,
    epilog=examples(
        "wireyard pub -t plant/line/1 -m 42",
        "wireyard pub -h mqtt://127.0.0.1:1884 -t plant/line/1 -m 42 -q 1 -r",
        "wireyard pub -q orders -m 42",
    ),
)
@click.option("-t", "--topic", metavar="TOPIC", help="Topic to publish to.")
@click.option("-m", "--message", default="", metavar="TEXT", help="Payload; empty if not given.")
@click.option("-r", "--retain", is_flag=True, help="Make it the retained value of the topic.")
@client_options
def command(
    topic: str | None, message: str, retain: bool, qos: int | str, **connection: Any
) -> int:
    """Publish a message to an MQTT broker; the letters are those of mosquitto_pub.

    At QoS 1 and 2 it ends when the broker has acknowledged the message. -q QUEUE sends a persistent
    text message to a queue of a JMQ broker, and -h mq://HOST to a topic of one.
    """
    from wireyard.client import JmqClient, run

    if (topic is None) is isinstance(qos, int):
        raise UsageError("a message goes to a topic, -t, or to a queue, -q QUEUE")

    async def publish() -> None:
        async with client_of(**connection, qos=qos, reconnect=False) as client:
            if isinstance(client, JmqClient):
                await client.send(topic or str(qos), message, is_topic=topic is not None)
            else:
                await client.publish(topic or "", os.fsencode(message), int(qos), retain)

    run(publish())
    return exits.DONE
