"""A broker in a process that is killed and started again, each time a line comes in.

``python -m tests.broker.killed STORE PORT JMQ_PORT`` loads everything once, so that a start is a
fork. With UNSYNCED, a start finds of the store only what was synced: see ``unsynced.c``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from wireyard.broker.foreground import serve
from wireyard.broker.server import Server


def main(store: str, port: str, jmq_port: str) -> None:
    """Run a broker until standard input ends."""
    while True:
        child = os.fork()
        if not child:
            server = Server(say=say, port=int(port), store=store, jmq=int(jmq_port))
            serve(server, lambda server: say(f"listens on {server.address[1]}"))
            os._exit(0)
        line = sys.stdin.readline()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not line:
            return
        if "UNSYNCED" in os.environ:
            drop_unsynced(store)


def say(text: str) -> None:
    """Print a line at once, in one piece."""
    os.write(1, f"{text}\n".encode())


def drop_unsynced(store: str) -> None:
    """Replace the files of a store by what was synced of them."""
    for name in (store, f"{store}-wal", f"{store}-shm"):
        Path(name).unlink(missing_ok=True)
        synced = Path(f"{name}.synced")
        if synced.exists():
            Path(name).write_bytes(synced.read_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
