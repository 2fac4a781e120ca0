"""``wireyard ring``: messages between processes, over a ring of the RMP messaging layer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from wireyard.cli import exits
from wireyard.cli.options import examples
from wireyard.cli.output import open_output, to_terminal
from wireyard.errors import UsageError
from wireyard.layers.rmp import Delivered, Event, SendRefused, Want
from wireyard_ring import Ring, read_lines, run, transport_named
from wireyard_ring.command import message_row
from wireyard_ring.tcp import ADDRESSES
from wireyard_ring.udp import GROUP, LOOPBACK, PORT

if TYPE_CHECKING:
    from io import BufferedReader

F = TypeVar("F", bound=Callable[..., Any])

_NUMBER = click.IntRange(0, 0xFFFF)
_DEFAULT_RING = f"tcp:{ADDRESSES}"


def _on_a_ring(function: F) -> F:
    """Add the options that select a ring."""
    for option in (
        click.option(
            "--interface",
            default=LOOPBACK,
            show_default=True,
            metavar="ADDRESS",
            help="Address of the network interface for udp; loopback stays on this machine.",
        ),
        click.option(
            "--ring",
            "ring_name",
            default=_DEFAULT_RING,
            show_default=True,
            metavar="RING",
            help="tcp:ADDRESS:PORT[-PORT],..., totally ordered: the addresses of its members, of"
            " which each process takes the first that is free; corosync:NAME, totally ordered,"
            f" where corosync runs; or udp:GROUP:PORT, such as udp:{GROUP}:{PORT}, multicast"
            " without order or repair.",
        ),
    ):
        function = option(function)
    return function


@click.group(
    "ring",
    epilog=examples(
        "wireyard ring listen --answer pong",
        "wireyard ring send 'hello, everybody'",
        "wireyard ring request ping --want 1",
    ),
)
def command() -> None:
    """Send and receive messages over a ring of the RMP messaging layer.

    By default a ring is up to sixteen processes of this machine, connected by TCP, which needs
    nothing installed. All members see one order, and the same members at the same place in it; a
    member that dies is left out within seconds. So it is over corosync. Multicast keeps no order,
    and may lose messages.
    """


@command.command(epilog=examples("wireyard ring send one two", "seq 9 | wireyard ring send"))
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--client", type=_NUMBER, metavar="N", help="Client that sends it.")
@click.option("--domain", type=_NUMBER, metavar="N", help="Domain it is for; all if not given.")
@_on_a_ring
def send(
    messages: Sequence[str], client: int | None, domain: int | None, ring_name: str, interface: str
) -> int:
    """Send messages; without any, each line of standard input is one."""

    async def send_all() -> None:
        async with Ring(transport_named(ring_name, interface)) as ring:
            if messages:
                await ring.send_all(map(os.fsencode, messages), client=client, domain=domain)
                return
            async for lines in read_lines(cast("BufferedReader", sys.stdin.buffer)):
                await ring.send_all(lines, client=client, domain=domain)

    try:
        run(send_all())
    except SendRefused as error:
        raise exits.CannotWrite(str(error)) from None
    return exits.DONE


@command.command(
    epilog=examples("wireyard ring listen --domain 3", "wireyard ring listen --answer pong")
)
@click.option(
    "--client",
    type=click.IntRange(1, 0xFFFF),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of this client in its process.",
)
@click.option(
    "--domain",
    "domains",
    type=_NUMBER,
    multiple=True,
    metavar="N",
    help="Domain to listen to, or several; all if not given.",
)
@click.option("--answer", metavar="TEXT", help="Reply this to every message that asks for it.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--out", type=click.Choice(["text", "jsonl"]), help="Text on a terminal.")
@_on_a_ring
def listen(
    client: int,
    domains: Sequence[int],
    answer: str | None,
    count: int | None,
    out: str | None,
    ring_name: str,
    interface: str,
) -> int:
    """Print the messages of a ring until interrupted."""
    shown = _shown(out)

    async def print_all(target: IO[bytes]) -> None:
        async with Ring(transport_named(ring_name, interface)) as ring:
            ring.register(client, domains or (0,), own=False)
            events = ring.events()
            exits.note(f"{ring_name}: listening as {ring.process_id}")
            left = count
            async for event in events:
                if not isinstance(event, Delivered):
                    _note(event)
                    continue
                target.write(shown(event))
                target.flush()
                if event.reply_requested and answer is not None:
                    await ring.send(os.fsencode(answer), client=client, reply_to=event.message_id)
                left = None if left is None else left - 1
                if left == 0:
                    break

    with open_output(None, binary=False) as target:
        run(print_all(target))
    return exits.DONE


@command.command(
    epilog=examples("wireyard ring request ping", "wireyard ring request who --want all")
)
@click.argument("message")
@click.option(
    "--want",
    default="1",
    show_default=True,
    metavar="N|all|stream",
    help="How many replies: N, one of all members (not over udp), all that come.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for all of them.",
)
@click.option(
    "--stall",
    "stall_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds to wait for another one after each.",
)
@click.option("--domain", type=_NUMBER, metavar="N", help="Domain it is for; all if not given.")
@click.option("--out", type=click.Choice(["text", "jsonl"]), help="Text on a terminal.")
@_on_a_ring
def request(
    message: str,
    want: str,
    timeout_s: float,
    stall_s: float | None,
    domain: int | None,
    out: str | None,
    ring_name: str,
    interface: str,
) -> int:
    """Send a message that asks for replies, and print them; status 1 if some were missing."""
    wanted = _wanted(want)
    shown = _shown(out)

    async def ask(target: IO[bytes]) -> str | None:
        async with Ring(transport_named(ring_name, interface)) as ring:
            replies = ring.request(
                os.fsencode(message),
                want=wanted,
                timeout_s=timeout_s,
                stall_s=stall_s,
                domain=domain,
            )
            async for reply in replies:
                target.write(shown(reply))
                target.flush()
            return replies.reason

    try:
        with open_output(None, binary=False) as target:
            reason = run(ask(target))
    except SendRefused as error:
        raise exits.CannotWrite(str(error)) from None
    if reason in ("enough", "all") or want == "stream":
        return exits.DONE
    exits.note(f"{ring_name}: not all replies came ({reason})")
    return exits.DATA_LOST


def _shown(out: str | None) -> Callable[[Delivered], bytes]:
    """Return the form of messages, text if none is named and the output is a terminal."""
    return _text if (out or ("text" if to_terminal(None) else "jsonl")) == "text" else _json


def _wanted(text: str) -> int | Want:
    if text in list(Want):
        return Want(text)
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise UsageError(f"--want is a number from 1, all or stream, not '{text}'")


def _text(message: Delivered) -> bytes:
    from wireyard.text import printable

    text = message.data.decode(errors="backslashreplace")
    return f"{message.source}  {printable(text)}\n".encode()


def _json(message: Delivered) -> bytes:
    return json.dumps(message_row(message)).encode() + b"\n"


def _note(event: Event) -> None:
    """Print an event that is no message: a view, or a loss."""
    name, fields = type(event).__name__, event._asdict()
    fields.pop("ring", None)
    shown = ", ".join(f"{key} {value}" for key, value in fields.items())
    exits.note(f"{name}: {shown}")
