"""Options with mosquitto's letters that ``wireyard pub`` and ``wireyard sub`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from wireyard.cli import exits
from wireyard.client import Client

__all__ = ["HELP_NAMES", "client_of", "client_options"]

F = TypeVar("F", bound=Callable[..., Any])

HELP_NAMES = {"help_option_names": ["--help"]}
"""Settings of a command in which ``-h`` is the host."""
_VERSIONS = {"mqttv31": "3.1", "31": "3.1", "mqttv311": "3.1.1", "311": "3.1.1", "mqttv5": "5"}


def client_options(function: F) -> F:
    """Add the options of a connection."""
    for option in (
        click.option(
            "-V",
            "--mqtt-version",
            "version",
            type=click.Choice([*_VERSIONS, "3.1", "3.1.1", "5"]),
            default="5",
            show_default=True,
            metavar="VERSION",
            help="Version of MQTT: 3.1, 3.1.1 or 5.",
        ),
        click.option("-P", "--pw", "password", metavar="TEXT", help="Password."),
        click.option("-u", "--username", metavar="NAME", help="User name."),
        click.option(
            "-i",
            "--id",
            "client_id",
            default="",
            metavar="ID",
            help="Client id; one is made if not given.",
        ),
        click.option(
            "-q",
            "--qos",
            type=click.IntRange(0, 2),
            default=0,
            show_default=True,
            metavar="N",
            help="Quality of service.",
        ),
        click.option(
            "-p",
            "--port",
            type=click.IntRange(1, 0xFFFF),
            metavar="N",
            help="Port of the broker; 1883 if not given.",
        ),
        click.option(
            "-h",
            "--host",
            default="localhost",
            show_default=True,
            metavar="HOST",
            help="The broker: its host, or mqtt://HOST:PORT; mqtts:// for TLS, ws:// in WebSocket.",
        ),
    ):
        function = option(function)
    return function


def client_of(
    host: str,
    port: int | None,
    client_id: str,
    username: str | None,
    password: str | None,
    version: str,
    *,
    reconnect: bool,
) -> Client:
    """Return the client that the options describe."""
    where = f"[{host}]" if host.count(":") > 1 and "/" not in host and "[" not in host else host
    return Client(
        where if port is None else f"{where}:{port}",
        client_id=client_id,
        username=username,
        password=password,
        version=_VERSIONS.get(version, version),
        reconnect=reconnect,
        say=exits.note,
    )
