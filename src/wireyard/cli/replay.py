"""``wireyard replay``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wireyard.cli import exits
from wireyard.cli.options import FOLDER, PATH, decode_as_option, examples, keylog_option
from wireyard.errors import SourceError, UsageError

if TYPE_CHECKING:
    from wireyard.client.address import Address
    from wireyard.replay.player import Played
    from wireyard.replay.renaming import Renaming
    from wireyard.replay.script import Login, Script

F = TypeVar("F", bound=Callable[..., Any])
BROKER = (
    "HOST:PORT, mqtt://HOST:PORT, mqtts://HOST:PORT for TLS, or a command with {port} that starts a"
    " broker, as in 'mosquitto -p {port}'. HOST:PORT,1884=HOST:PORT, or {1884} in a command, is"
    " another listener for the clients of port 1884 of the recording."
)
"""The form of a broker's address, in words."""
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


def sending_options(function: F) -> F:
    """Add the options of how recorded clients are played to a broker."""
    for option in (
        click.option("--yes-to", metavar="HOST",
                     help="Allow the broker of this host, if it is not on this machine."),
        click.option("--record", type=FOLDER, metavar="DIR",
                     help="Write what passes as a capture into this folder, without secrets."),
        click.option("--logins", type=PATH, metavar="FILE",
                     help='Logins as JSON, by client id or user name: {"till": {"username": "u",'
                     ' "password": "p"}}.'),
        click.option("--speed", default="1", show_default=True, metavar="N|max", callback=_speed,
                     help="Factor of the recorded speed, or as fast as the broker answers."),
    ):  # fmt: skip
        function = option(function)
    return function


rename_option = click.option(
    "--rename", multiple=True, metavar="OLD=NEW",
    help="Recorded topics have other names now; 'plant/#=test/#' for all below one too.",
)  # fmt: skip


@click.command(
    "replay",
    epilog=examples(
        "wireyard replay old.pcapng --to localhost:1884 --record new",
        "wireyard shadow old.pcapng new",
        "wireyard replay lake --to localhost:1884 --rename 'plant/#=test/#'",
        "wireyard replay old.pcapng --to localhost:1884 --speed max --logins logins.json",
        "wireyard replay openmq.pcapng --to mq://localhost:7677",
        "wireyard replay openmq.pcapng --to localhost:1883 --as mqtt",
    ),
)
@click.argument("file", type=PATH)
@click.option("--to", required=True, metavar="BROKER", help=BROKER)
@click.option(
    "--as",
    "protocol",
    type=click.Choice(["mqtt", "jmq"]),
    help="Play the clients of the other protocol, as clients of this one.",
)
@rename_option
@sending_options
@decode_as_option
@keylog_option
def command(
    file: str,
    to: str,
    protocol: str | None,
    rename: tuple[str, ...],
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    **how: Any,
) -> int:
    """Have the clients of a recording do the same again, with another broker.

    They connect, subscribe, publish, acknowledge and end as they did, at the times at which they
    did, and not before the broker has sent what came before. What a client withheld is withheld.
    Packets that cannot be sent, such as those of a client that is refused, are noted, with exit
    status 1.

    They are those of MQTT, or of JMQ if there are no others or the address begins with mq://. With
    --as mqtt, the JMQ clients do it as clients of MQTT 5.0, for those who leave Open MQ, with --as
    jmq the other way; at the end is a list of what has no counterpart.
    """
    from wireyard.replay.renaming import Renaming

    script = read(file, to, decode_as, keylog, Renaming(rename), protocol)
    played = send(script, to, **how)
    if script.lost:
        exits.say("did not survive:")
    for what, count in script.lost.most_common():
        exits.say(f"{count:>9,} {what}")
    is_whole = not (played.unsent or played.silent or script.notes)
    return exits.DONE if is_whole else exits.DATA_LOST


def read(
    file: str,
    to: str,
    decode_as: Sequence[str],
    keylog: Sequence[str],
    renaming: Renaming,
    protocol: str | None = None,
) -> Script:
    """Read what the clients of a capture or a lake did; note what cannot be replayed.

    They are those of MQTT if it has any, but those of JMQ for a broker ``mq://``, or to be played
    as another `protocol`.
    """
    script = _read(file, to, decode_as, keylog, renaming, protocol)
    exits.notes_on(file, script.notes)
    return script


def _read(
    file: str,
    to: str,
    decode_as: Sequence[str],
    keylog: Sequence[str],
    renaming: Renaming,
    protocol: str | None,
) -> Script:
    from wireyard.answers.tables import is_lake, open_tables
    from wireyard.captures.inputs import open_input
    from wireyard.replay.jmq import read_jmq_script
    from wireyard.replay.migration import read_migration
    from wireyard.replay.script import read_lake_script, read_script

    is_jmq = protocol is None and to.startswith(("mq://", "mqs://"))
    is_folder = os.path.isdir(file) and not is_lake(file)
    with ExitStack() as stack:
        if not (is_jmq or protocol == "mqtt" or is_folder or is_lake(file)):
            source = open_input(file, decode_as=decode_as, keylog=keylog)
            stack.callback(source.close)
            formats = {format.name for format, _ in source.readables}
            if protocol or not source.captured or "jmq" not in formats or "mqtt" in formats:
                return _as(protocol, read_script(source, renaming))
            is_jmq = True
        tables = stack.enter_context(
            open_tables([file], decode_as=decode_as, keylog=keylog, rotated=is_folder)
        )
        if protocol == "mqtt":
            script = read_migration(tables, file, renaming)
        elif is_jmq or not (protocol or tables.rows("SELECT 1 FROM packets_mqtt LIMIT 1")):
            script = read_jmq_script(tables, file, renaming)
        else:
            script = _as(protocol, read_lake_script(tables, file, renaming))
        script.notes += tables.notes
    return script


def _as(protocol: str | None, script: Script) -> Script:
    """Return what clients of MQTT did, perhaps as clients of JMQ."""
    from wireyard.replay.emigration import emigrated

    return script if protocol is None else emigrated(script)


def send(
    script: Script,
    to: str,
    *,
    speed: float | None,
    logins: str | None,
    record: str | None,
    yes_to: str | None,
    say: Callable[[str], None] = exits.say,
) -> Played:
    """Play a script to a broker, and say what is done.

    A `UsageError` is raised if the broker is on another machine, and `yes_to` does not name it.
    """
    from wireyard.replay.brokers import running
    from wireyard.replay.player import run

    known = {} if logins is None else _read_logins(logins)
    with running(to, "mqtt" if script.talks is None else "mq") as listeners:
        about = _about(script, listeners[None])
        for address in listeners.values():
            check_host(address, yes_to, about)
        for client in sorted(_without_password(script, known)):
            exits.note(f"{client}: its password is masked in the recording, and --logins has none")
        say(about)
        (played,) = run([script], listeners, exits.note, speed=speed, logins=known, record=record)
    say(_summary(played))
    for client, count in sorted(played.unsent.items()):
        exits.note(f"{client}: {count:,} of its packets could not be sent")
    for client in sorted(played.silent):
        exits.note(f"{client}: the broker sent it nothing")
    return played


def check_host(address: Address, yes_to: str | None, about: str) -> None:
    """Refuse a broker on another machine with a `UsageError`, unless `yes_to` names its host."""
    if not _is_own(address.host) and yes_to != address.host:
        raise UsageError(f"{address.host} is not this machine; --yes-to {address.host} {about}")


def _is_own(host: str) -> bool:
    """Return whether a host is this machine for certain."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _about(script: Script, address: Address) -> str:
    return (
        f"replays {len(script.connections):,} connections of {len(script.clients):,} clients and"
        f" {script.messages:,} messages, recorded in {script.seconds:,.1f} s, to {address}"
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
    from wireyard.replay.script import Login

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
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path}: is no JSON of the form {form}") from None
    if not all(isinstance(value, str) for login in logins.values() for value in login):
        raise UsageError(f"{path}: a user name or a password is no text; the form is {form}")
    return logins
