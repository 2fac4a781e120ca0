"""``wireyard replay``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.options import PATH, decode_as_option, examples, keylog_option
from wireyard.errors import SourceError, UsageError

if TYPE_CHECKING:
    from wireyard.client.address import Address
    from wireyard.replay.player import Login, Played
    from wireyard.replay.script import Script

__all__ = ["command"]

_MOST_LOGIN_BYTES = 16 << 20


def _speed(ctx: Any, param: Any, value: str) -> float | None:
    """Return the factor of a speed, None for the highest; a callback of click."""
    if value == "max":
        return None
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise click.BadParameter(f"'{value}' is neither a factor above 0 nor max")
    return factor


@click.command(
    "replay",
    epilog=examples(
        "wireyard replay old.pcapng --to localhost:1884 --record new",
        "wireyard shadow old.pcapng new",
        "wireyard replay old.pcapng --to localhost:1884 --speed max --logins logins.json",
    ),
)
@click.argument("file", type=PATH)
@click.option("--to", required=True, metavar="BROKER",
              help="HOST:PORT, mqtt://HOST:PORT, or mqtts://HOST:PORT for TLS.")  # fmt: skip
@click.option("--speed", default="1", show_default=True, metavar="N|max", callback=_speed,
              help="Factor of the recorded speed, or as fast as the broker answers.")  # fmt: skip
@click.option("--logins", type=PATH, metavar="FILE",
              help='Logins as JSON, by client id or user name: {"till": {"username": "u",'
              ' "password": "p"}}.')  # fmt: skip
@click.option("--record", type=PATH, metavar="DIR",
              help="Write what passes as a capture into this folder, without secrets.")  # fmt: skip
@click.option("--yes-to", metavar="HOST",
              help="Allow the broker of this host, if it is not on this machine.")  # fmt: skip
@decode_as_option
@keylog_option
def command(
    file: str,
    to: str,
    speed: float | None,
    logins: str | None,
    record: str | None,
    yes_to: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
) -> int:
    """Have the MQTT clients of a recording do the same again, with another broker.

    They connect, subscribe, publish, acknowledge and end as they did, at the times at which they
    did, and not before the broker has sent what came before. What a client withheld is withheld.
    Packets that cannot be sent, such as those of a client that is refused, are noted, with exit
    status 1.
    """
    from wireyard.captures.inputs import open_input
    from wireyard.client.address import parse_address
    from wireyard.replay.player import run
    from wireyard.replay.script import read_script

    address = parse_address(to)
    if address.path is not None:
        raise UsageError("replay has no WebSocket: give mqtt:// or mqtts://")
    known = {} if logins is None else _read_logins(logins)
    source = open_input(file, decode_as=decode_as, keylog=keylog)
    try:
        script = read_script(source)
    finally:
        source.close()
    about = _about(script, address)
    if not _is_own(address.host) and yes_to != address.host:
        raise UsageError(f"{address.host} is not this machine; --yes-to {address.host} {about}")
    for note in script.notes:
        exits.note(f"{file}: {note}")
    for client in sorted(_without_password(script, known)):
        exits.note(f"{client}: its password is masked in the recording, and --logins has none")
    exits.say(about)
    played = run(script, address, exits.note, speed=speed, logins=known, record=record)
    exits.say(_summary(played))
    for client, count in sorted(played.unsent.items()):
        exits.note(f"{client}: {count:,} of its packets could not be sent")
    return exits.DATA_LOST if played.unsent or script.notes else exits.DONE


def _is_own(host: str) -> bool:
    """Return whether a host is this machine for certain."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _about(script: Script, address: Address) -> str:
    from wireyard.formats.mqtt.control import Connect, Publish

    connections, messages = (sum(1 for _ in script.sent(kind)) for kind in (Connect, Publish))
    return (
        f"replays {connections:,} connections of {len(script.clients):,} clients and"
        f" {messages:,} messages, recorded in {script.seconds:,.1f} s, to {address}"
    )


def _without_password(script: Script, logins: Mapping[str, Login]) -> set[str]:
    """Return the clients whose passwords are neither in the recording nor in the logins."""
    from wireyard.formats.mqtt.control import Connect

    return {
        recorded.client
        for recorded, packet in script.sent(Connect)
        if packet.password and not packet.password.strip(b"*")
        and logins.keys().isdisjoint({recorded.client, packet.username})
    }  # fmt: skip


def _summary(played: Played) -> str:
    text = f"sent {played.sent:,} packets"
    if played.late_s:
        late = sorted(played.late_s)
        middle, almost_all = late[len(late) // 2], late[len(late) * 99 // 100]
        text += f", {middle * 1e3:.1f} ms late at the median"
        text += f", {almost_all * 1e3:.1f} ms at the 99th percentile"
    return text


def _read_logins(path: str) -> dict[str, Login]:
    """Read the file of logins, which only its owner may read."""
    from wireyard.replay.player import Login

    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UsageError(f"{path}: has passwords, and others may read it (chmod 600)")
            text = file.read(_MOST_LOGIN_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    form = '{"CLIENT OR USER": {"username": "...", "password": "..."}}'
    try:
        logins = {name: Login(**entry) for name, entry in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"{path}: is no JSON of the form {form}") from None
    if not all(isinstance(value, str) for login in logins.values() for value in login):
        raise UsageError(f"{path}: a user name or a password is no text; the form is {form}")
    return logins
