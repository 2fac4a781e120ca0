"""``wireyard tap``."""

from __future__ import annotations

import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from wireyard.cli import exits
from wireyard.cli.broker import server_context
from wireyard.cli.options import FOLDER, PATH, examples
from wireyard.errors import SourceError, UsageError
from wireyard.text import printable

if TYPE_CHECKING:
    from wireyard.broker.recording import Address
    from wireyard.tap.faults import Action
    from wireyard.tap.proxy import Tap
    from wireyard.tap.screen import Screen

_CLEAR = "\x1b[H\x1b[J"
_SECONDS_A_SCREEN = 1.0
_NOTES_SHOWN = 4
_ACTIONS: Sequence[Action] = ("cut", "delay", "drop", "duplicate")
_ADDRESS = "[HOST:]PORT, mqtt://HOST:PORT, or mqtts://HOST:PORT for TLS"


@click.command(
    "tap",
    epilog=examples(
        "wireyard tap 1884 localhost:1883 --record recordings",
        "wireyard tap 1884 mqtts://broker.example:8883 --cafile ca.pem --live",
        "wireyard tap 7677 localhost:7676 --record recordings",
        "wireyard tap 1884 1883 --cut 'before PUBACK to till, nth 3'",
        "wireyard tap 1884 1883 --delay 'PUBLISH to till on plant/#, 200 ms'",
    ),
)
@click.argument("listen", metavar="LISTEN")
@click.argument("upstream", metavar="UPSTREAM")
@click.option("--record", type=FOLDER, metavar="DIR",
              help="Write what passes as captures into this folder, without secrets.")  # fmt: skip
@click.option("--rotate-mb", type=click.IntRange(min=0), default=100, show_default=True,
              metavar="N", help="Size of a capture, then the next begins; 0: any.")  # fmt: skip
@click.option("--rotate-minutes", type=click.IntRange(min=0), default=0, show_default=True,
              metavar="N", help="Time of a capture, then the next begins; 0: any.")  # fmt: skip
@click.option("--cert", type=PATH, metavar="FILE",
              help="Certificate that clients are shown, for TLS.")  # fmt: skip
@click.option("--key", type=PATH, metavar="FILE", help="Key of the certificate.")
@click.option("--cafile", type=PATH, metavar="FILE",
              help="Authorities to verify the broker's certificate with.")  # fmt: skip
@click.option("--live", is_flag=True, help="Show connections, rates, and what is stuck.")
@click.option("--cut", multiple=True, metavar="RULE",
              help="Reset both sides at a packet: '[before|after] TYPE [from|to CLIENT]"
              " [on TOPIC][, nth N|, every N]'.")  # fmt: skip
@click.option("--delay", multiple=True, metavar="RULE",
              help="Hold a packet, and what follows it: the same with ', 200 ms'.")  # fmt: skip
@click.option("--drop", multiple=True, metavar="RULE", help="Do not pass a packet on.")
@click.option("--duplicate", multiple=True, metavar="RULE", help="Pass a packet on twice.")
@click.option("--max-connections", type=click.IntRange(min=1), default=10_000, show_default=True,
              metavar="N", help="Most connections of clients at a time.")  # fmt: skip
def command(
    listen: str,
    upstream: str,
    record: str | None,
    rotate_mb: int,
    rotate_minutes: int,
    cert: str | None,
    key: str | None,
    cafile: str | None,
    live: bool,
    max_connections: int,
    **rules: Sequence[str],
) -> int:
    """Pass MQTT or JMQ through unchanged, to record it, to watch it, or to test clients.

    LISTEN is a port, on this machine alone unless an address is before it. UPSTREAM is the broker:
    HOST:PORT, or mqtts://HOST:PORT for TLS. Clients of Open MQ connect to the port mapper through
    it, and then to the services.
    """
    from wireyard.broker.foreground import serve
    from wireyard.broker.recording import record_into, shown_address
    from wireyard.tap.faults import parse_rule
    from wireyard.tap.proxy import Tap

    parsed = [parse_rule(action, text) for action in _ACTIONS for text in rules[action]]
    own, _ = _address(listen)
    broker, is_tls = _address(upstream)
    if cafile is not None and not is_tls:
        raise UsageError(f"--cafile needs a broker with TLS, as in mqtts://{shown_address(broker)}")
    screen = _Live(f"{shown_address(own)} > {shown_address(broker)}") if live else None
    say = exits.note if screen is None else screen.notes.append
    begin = partial(
        record_into, Path(record), "tap", _clock(), say, rotate_mb * 1_000_000, rotate_minutes * 60
    ) if record is not None else None  # fmt: skip
    tap = Tap(
        own,
        broker,
        say,
        tls=server_context(cert, key),
        upstream_tls=_client_context(cafile) if is_tls else None,
        record=None if begin is None else lambda later: begin(later=later),
        rules=parsed,
        observer=None if screen is None else screen.screen,
        max_connections=max_connections,
    )

    def ready(tap: Tap) -> None:
        if screen is None:
            exits.say(f"listens on {shown_address(tap.address)} for {shown_address(broker)}")
        else:
            screen.begin(tap)

    serve(tap, ready)
    return exits.DONE


def _address(text: str) -> tuple[Address, bool]:
    """Return an address, and whether it is one of TLS."""
    from wireyard.client.address import parse_address

    if text.isdecimal():
        text = f"127.0.0.1:{text}"
    port = text.rpartition(":")[2].rstrip("/")
    if not (port.isdecimal() and len(port) <= 5 and int(port) <= 0xFFFF):
        raise UsageError(f"'{text}' is no address of the form {_ADDRESS}")
    if int(port) == 0:  # any that is free, which no broker's address is
        return (parse_address(f"{text.rpartition(':')[0]}:1").host, 0), False
    address = parse_address(text)
    return (address.host, address.port), address.tls is not None


def _client_context(cafile: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cafile)
    except ssl.SSLError as error:
        raise SourceError(f"{cafile}: no certificates ({error.reason})") from None
    except OSError as error:
        raise SourceError(f"{cafile}: {error.strerror}") from None


def _clock() -> Callable[[], int]:
    """Return a clock of nanoseconds since 1970 that never jumps."""
    epoch = time.time_ns() - time.monotonic_ns()
    return lambda: epoch + time.monotonic_ns()


class _Live:
    """The screen of a proxy, drawn each second."""

    def __init__(self, title: str) -> None:
        from wireyard.tap.screen import Screen

        self.screen: Screen = Screen()
        self.notes: deque[str] = deque(maxlen=_NOTES_SHOWN)
        self._title = title

    def begin(self, tap: Tap) -> None:
        """Draw from now on."""
        from wireyard.tap.screen import every

        self.screen.connections = lambda: [*tap.connections]
        every(_SECONDS_A_SCREEN, self._draw)

    def _draw(self) -> None:
        columns, rows = get_terminal_size()
        notes = [printable(note)[:columns] for note in self.notes]
        lines = self.screen.lines(self._title, columns, rows - len(notes) - 1)
        with suppress(BlockingIOError):
            sys.stdout.write(_CLEAR + "\n".join([*lines, *notes]))
            sys.stdout.flush()
