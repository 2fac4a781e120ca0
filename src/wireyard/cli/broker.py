"""``wireyard broker``."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path

import click

from wireyard.cli import exits
from wireyard.cli.options import FOLDER, PATH, examples
from wireyard.cli.output import open_output
from wireyard.errors import SourceError, UsageError

_PORT = 1883
_TLS_PORT = 8883


@click.command(
    "broker",
    epilog=examples(
        "wireyard broker --port 0",
        "wireyard broker --store broker.db",
        "wireyard broker --record recordings",
        "wireyard broker --users users --add-user ann",
        "wireyard broker --bind 0.0.0.0 --users users --cert cert.pem --key key.pem",
    ),
)
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; 0.0.0.0 is every address of this machine.",
)
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 0xFFFF),
    metavar="N",
    help="Port to listen on: 1883, or 8883 with TLS, if not given; 0 is any free one.",
)
@click.option(
    "--jmq",
    type=click.IntRange(0, 0xFFFF),
    metavar="N",
    help="Port for clients of Open MQ too, as a rule 7676; 0 is any free one.",
)
@click.option(
    "--mqipdp", is_flag=True, help="Serve clients of the version of 1999 too, without a login."
)
@click.option(
    "--store",
    type=FOLDER,
    metavar="FILE",
    help="Keep sessions, messages and retained values in this SQLite file, over restarts.",
)
@click.option(
    "--memory", is_flag=True, help="Keep them in memory only: the default without --store."
)
@click.option(
    "--record",
    type=FOLDER,
    metavar="DIR",
    help="Write what passes as a capture into this folder, without passwords.",
)
@click.option(
    "--users", type=PATH, metavar="FILE", help="Users who may log in; nobody has to if not given."
)
@click.option(
    "--add-user", metavar="NAME", help="Ask for a password, write the user to --users, and end."
)
@click.option(
    "--access",
    type=PATH,
    metavar="FILE",
    help="Who may read and write which topics, as mosquitto's acl_file has it.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Web pages that may connect, such as https://app.example, or several; local ones may.",
)
@click.option("--cert", type=PATH, metavar="FILE", help="Certificate, for TLS.")
@click.option("--key", type=PATH, metavar="FILE", help="Key of the certificate.")
@click.option(
    "--max-packet-bytes",
    type=click.IntRange(min=16),
    default=10 << 20,
    show_default=True,
    metavar="N",
    help="Largest packet of a client.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Most connections at a time.",
)
def command(
    bind: str,
    port: int | None,
    jmq: int | None,
    mqipdp: bool,
    store: str | None,
    memory: bool,
    record: str | None,
    users: str | None,
    add_user: str | None,
    access: str | None,
    origins: Sequence[str],
    cert: str | None,
    key: str | None,
    max_packet_bytes: int,
    max_connections: int,
) -> int:
    """Run a broker for MQTT and Open MQ clients, for tests and edge gateways.

    MQTT 3.1, 3.1.1 and 5.0, also over WebSocket on the same port, on this machine alone unless
    --bind says otherwise, until Ctrl-C. It prints its address once it is ready, and a note for each
    notable cause.
    """
    if add_user is not None:
        return _add_user(users, add_user)
    if memory and store is not None:
        raise UsageError("--memory and --store exclude each other")
    from wireyard.broker.access import Access, read_access, read_users
    from wireyard.broker.foreground import serve
    from wireyard.broker.recording import shown_address
    from wireyard.broker.server import Server
    from wireyard.broker.settings import Settings
    from wireyard.endpoints import Limits

    tls = server_context(cert, key)
    reads, writes = (None, None) if access is None else read_access(access)
    known = None if users is None else read_users(users)
    settings = Settings(
        access=Access(known, reads, writes) if users or access else None,
        endpoint=Limits(max_packet_bytes=max_packet_bytes, oldest_version=2 if mqipdp else 3),
        origins=frozenset(origins),
        max_connections=max_connections,
    )
    if port is None:
        port = _PORT if tls is None else _TLS_PORT
    server = Server(
        settings, exits.note, bind=bind, port=port, tls=tls, record=record, store=store, jmq=jmq
    )

    def ready(server: Server) -> None:
        exits.say(
            f"listens on {'mqtt' if tls is None else 'mqtts'}://{shown_address(server.address)}"
        )
        if server.jmq_address is not None:
            exits.say(f"listens on mq://{shown_address(server.jmq_address)}")

    serve(server, ready)
    failed = server.store is not None and server.store.failed is not None
    return exits.CANNOT_WRITE if failed else exits.DONE


def server_context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the context of a server with a certificate, None if there is none.

    A `UsageError` is raised if there is only a key, a `SourceError` if a file cannot be read.
    """
    if cert is None:
        if key is not None:
            raise UsageError("--key needs --cert, the certificate of the key")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        name = cert if key is None else f"{cert}, {key}"
        raise SourceError(f"{name}: no certificate and key ({error.reason or 'no PEM'})") from None
    except OSError as error:
        raise SourceError(f"{error.filename or cert}: {error.strerror}") from None
    return context


def _add_user(users: str | None, name: str) -> int:
    from wireyard.broker.access import hash_password, read_users

    if users is None:
        raise UsageError("--add-user needs --users, the file that the user is written to")
    path = Path(users)
    lines = []
    if path.exists():
        read_users(users)
        lines = path.read_text("utf-8").splitlines()
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    lines = [line for line in lines if line.partition(":")[0] != name]
    lines.append(hash_password(name, os.fsencode(password)))
    with open_output(users, binary=False, private=True) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return exits.DONE
