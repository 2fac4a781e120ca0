"""Record the example store: a real broker that is killed while messages are in every state.

usage: python -m examples.recording.record_store --mq-home DIR [--out examples/store]

DIR is the `mq` folder of the unpacked Maven artifact org.glassfish.mq:mq-distribution:6.5.0:zip, as
`python -m peers.openmq` fetches and prints it; a JDK 17 or newer is needed. The folder fs370 is
kept as the broker left it, except that zeros at the end of a file are removed, up to the next KiB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from examples.recording.record import installed_java
from examples.recording.tap import LOOPBACK, free_ports

HERE = Path(__file__).resolve().parent
STORE = Path("instances/depot/fs370")
"""The store, relative to the broker's variable folder (-varhome)."""
SETTINGS = {
    "message.vrfile.initial_size": "4k",
    "message.max_record_size": "4k",
    "destination.file.size": "8k",
    "interest.file.size": "8k",
    "property.file.size": "8k",
    # The broker checkpoints a log that is nearly full; a smaller one always would be.
    "txnLog.file.size": "1m",
    "txnLog.logNonTransactedMsgAck": "true",
}
"""Small files, because they are kept; a message over 4 KiB gets its own file."""
CUT_BYTES = 1024


class Depot:
    """A broker and the clients of `StoreTraffic.java`, on loopback only.

    Parameters
    ----------
    mq_home, java_home
        The distribution and a JDK.
    work
        The folder for the broker's variable files and for compiled classes.
    """

    def __init__(self, mq_home: Path, java_home: Path, work: Path) -> None:
        self.mq_home, self.java_home, self.work = mq_home, java_home, work
        self.store = work / "var" / STORE
        self.jms_port = 0
        compiler, jars = java_home / "bin/javac", f"{mq_home}/lib/*"
        subprocess.run([compiler, "-cp", jars, "-d", work, HERE / "StoreTraffic.java"], check=True)

    @contextlib.contextmanager
    def broker(self) -> Iterator[Callable[[], None]]:
        """Run the broker; yield a function that kills it, like a loss of power."""
        mapper_port, self.jms_port, admin_port = free_ports(3)
        settings = {
            "portmapper.hostname": LOOPBACK,
            "hostname": LOOPBACK,
            "jms.tcp.port": self.jms_port,
            "admin.tcp.port": admin_port,
            **{f"persist.file.{name}": value for name, value in SETTINGS.items()},
        }
        command = [
            f"{self.mq_home}/bin/imqbrokerd",
            *("-javahome", str(self.java_home), "-varhome", str(self.work / "var")),
            *("-name", "depot", "-tty", "-port", str(mapper_port)),
            *(f"-Dimq.{name}={value}" for name, value in settings.items()),
        ]
        with _running(command, ready=b"B1039") as kill:  # "broker ready"
            yield kill

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """Let the clients fill the store; they stay connected until the end."""
        with _running([*self._java, str(self.jms_port), "fill"], ready=b"ready"):
            yield

    def listed(self, *queues: str) -> list[str]:
        """Return lines of queue name and message id: the messages that a browser shows."""
        command = [*self._java, str(self.jms_port), "list", *queues]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.splitlines()

    def send(self, queue: str, count: int) -> None:
        """Send a message of `count` bytes, which count up from 0 repeatedly."""
        command = [*self._java, str(self.jms_port), "send", queue, str(count)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    @property
    def _java(self) -> list[str]:
        # The client sends the release of its kernel to the broker; this replaces it.
        classes = f"{self.mq_home}/lib/*{os.pathsep}{self.work}"
        return [f"{self.java_home}/bin/java", "-Dos.version=6.1", "-cp", classes, "StoreTraffic"]


@contextlib.contextmanager
def _running(command: list[str], ready: bytes) -> Iterator[Callable[[], None]]:
    """Run a command, until its output has `ready`; yield a function that kills it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # the command may be a script; its children are stopped with it
    )
    assert process.stdout is not None and process.stdin is not None

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    output = []
    try:
        while ready not in (line := process.stdout.readline()):
            output.append(line)
            if not line:
                raise RuntimeError(b"".join(output).decode(errors="replace"))
        yield kill
    finally:
        kill()
        process.stdout.close()
        process.stdin.close()


def keep(store: Path, out: Path) -> None:
    """Copy a store without the zeros at the ends of its files."""
    shutil.rmtree(out, ignore_errors=True)
    for path in sorted(store.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            used = len(data.rstrip(b"\0"))
            kept = out / path.relative_to(store)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data[: -(-used // CUT_BYTES) * CUT_BYTES])
            print(f"{kept.stat().st_size:9,} bytes  {kept.relative_to(out)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE.parent / "store")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        depot = Depot(arguments.mq_home.resolve(), installed_java(), Path(work))
        with depot.broker() as kill, depot.filled():
            kill()
        keep(depot.store, arguments.out / STORE.name)


if __name__ == "__main__":
    main()
