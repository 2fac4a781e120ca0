"""Options with mosquitto's letters that ``wireyard pub`` and ``wireyard sub`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from wireyard.cli import exits
from wireyard.client import Client, JmqClient

F = TypeVar("F", bound=Callable[..., Any])

HELP_NAMES = {"help_option_names": ["--help"]}
"""Settings of a command in which ``-h`` is the host."""
_VERSIONS = {"mqttv31": "3.1", "31": "3.1", "mqttv311": "3.1.1", "311": "3.1.1", "mqttv5": "5"}


class _QosOrQueue(click.ParamType[int | str]):
    """A QoS, or the name of a queue, which never is a number."""

    name = "qos"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        """Return the QoS as a number, the queue as text."""
        text = str(value)
        if not text.isdecimal():
            return text
        if len(text) > 1 or text > "2":
            self.fail(f"{text} is no quality of service: 0, 1 or 2", param, ctx)
        return int(text)


def client_options(function: F) -> F:
    """Add the options of a connection."""
    for option in (
        click.option("-V", "--mqtt-version", "version", default="5", show_default=True,
                     type=click.Choice([*_VERSIONS, "3.1", "3.1.1", "5"]), metavar="VERSION",
                     help="Version of MQTT: 3.1, 3.1.1 or 5."),
        click.option("-P", "--pw", "password", metavar="TEXT", help="Password."),
        click.option("-u", "--username", metavar="NAME", help="User name."),
        click.option("-i", "--id", "client_id", default="", metavar="ID",
                     help="Client id; one is made if not given."),
        click.option("-q", "--qos", type=_QosOrQueue(), default="0", show_default=True,
                     metavar="N|QUEUE",
                     help="Quality of service, 0 to 2; or a queue of a JMQ broker."),
        click.option("-p", "--port", type=click.IntRange(1, 0xFFFF), metavar="N",
                     help="Port of the broker; 1883, or 7676 of a JMQ broker, if not given."),
        click.option("-h", "--host", default="localhost", show_default=True, metavar="HOST",
                     help="The broker: host, or mqtt://HOST:PORT, mqtts:// for TLS, ws://,"
                     " mq:// for JMQ."),
    ):  # fmt: skip
        function = option(function)
    return function


def is_jmq(host: str, qos: int | str) -> bool:
    """Return whether the options name a JMQ broker."""
    return isinstance(qos, str) or host.startswith(("mq://", "mqs://"))


def _url(host: str, port: int | None) -> str:
    where = f"[{host}]" if host.count(":") > 1 and "/" not in host and "[" not in host else host
    return where if port is None else f"{where}:{port}"


def client_of(
    host: str,
    port: int | None,
    client_id: str,
    username: str | None,
    password: str | None,
    version: str,
    qos: int | str,
    *,
    reconnect: bool,
) -> Client | JmqClient:
    """Return the client that the options describe."""
    named: dict[str, Any] = {
        "username": username, "password": password, "reconnect": reconnect, "say": exits.note,
    }  # fmt: skip
    if is_jmq(host, qos):
        return JmqClient(_url(host, port), client_id=client_id or None, **named)
    version = _VERSIONS.get(version, version)
    return Client(_url(host, port), client_id=client_id, version=version, **named)
