"""Record a small capture of each symptom of a cluster of two Open MQ brokers.

usage: python -m examples.recording.record_cluster --mq-home DIR [--out examples/symptoms]
           [SYMPTOM...]

As root, on Linux: brokers of a cluster refuse loopback addresses, so each broker and the clients
have a network namespace. A bridge in a fourth one joins them, and dumpcap captures all traffic
there. Otherwise it needs what `record` needs. The clients are those of SymptomTraffic.java: a
consumer at broker `two`, a producer at broker `one`. A function below causes each symptom.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from examples.recording import record
from examples.recording.tap import running

BRIDGE, CLIENTS = "wireyard-bridge", "wireyard-clients"
BROKERS = {"one": "10.78.0.1", "two": "10.78.0.2"}
ADDRESSES = {CLIENTS: "10.78.0.3", **{f"wireyard-{name}": at for name, at in BROKERS.items()}}
JMS_PORT, MAPPER_PORT = 7677, 7676
JOINED_S = 6
"""Time in which started brokers form a cluster."""
SETTLED_S = 2
"""Pause after which the last captured packets are in the file."""
_DEVICE = "wire0"


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True)


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Create the namespaces and the bridge in a context; delete them at its end."""
    made = []
    try:
        for name in (BRIDGE, *ADDRESSES):
            ip("netns", "add", name)
            made.append(name)
        ip("-n", BRIDGE, "link", "add", _DEVICE, "type", "bridge")
        ip("-n", BRIDGE, "link", "set", _DEVICE, "up", "promisc", "on")
        for number, (name, address) in enumerate(ADDRESSES.items()):
            port = f"port{number}"
            ends = (port, "netns", BRIDGE, "type", "veth", "peer", "name", _DEVICE, "netns", name)
            ip("link", "add", *ends)
            ip("-n", BRIDGE, "link", "set", port, "master", _DEVICE, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", _DEVICE)
            ip("-n", name, "link", "set", _DEVICE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            ip("netns", "delete", name)


def inside(name: str) -> tuple[str, ...]:
    """Return the prefix of a command that runs it in a namespace."""
    return "ip", "netns", "exec", name


class Cluster:
    """A running cluster of two brokers."""

    def __init__(self, mq_home: Path, java_home: Path, work: Path) -> None:
        self.mq_home, self.java_home, self.work = mq_home, java_home, work
        self.brokers: dict[str, Process] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Cluster]:
        """Run both brokers in a context, which begins when they are a cluster."""
        async with contextlib.AsyncExitStack() as stack:
            for name in BROKERS:
                broker = await stack.enter_async_context(self._broker(name))
                self.brokers[name] = broker
                # A stopped process would not react to SIGTERM.
                stack.callback(os.killpg, broker.pid, signal.SIGCONT)
            await asyncio.sleep(JOINED_S)
            yield self

    def _broker(self, name: str) -> contextlib.AbstractAsyncContextManager[Process]:
        host = BROKERS[name]
        settings = {
            "portmapper.hostname": host,
            "hostname": host,
            "jms.tcp.port": JMS_PORT,
            "cluster.hostname": host,
            "cluster.brokerlist": ",".join(f"{at}:{MAPPER_PORT}" for at in BROKERS.values()),
        }
        return running(
            *inside(f"wireyard-{name}"),
            self.mq_home / "bin" / "imqbrokerd",
            *("-javahome", self.java_home, "-varhome", self.work / name, "-name", name, "-tty"),
            *("-port", str(MAPPER_PORT)),
            *(f"-Dimq.{key}={value}" for key, value in settings.items()),
            ready=b"B1039",  # "broker ready"
        )

    def freeze(self, name: str) -> None:
        """Stop a broker: its connections stay open, but it neither reads nor writes."""
        os.killpg(self.brokers[name].pid, signal.SIGSTOP)

    async def pause(self, name: str) -> None:
        """Pause the consumers of the queue at a broker, which then keeps its messages."""
        password = self.work / "password"
        password.write_text("imq.imqcmd.password=admin\n")
        await record.run(
            *inside(f"wireyard-{name}"), f"{self.mq_home}/bin/imqcmd", "-javahome",
            str(self.java_home), "pause", "dst", "-t", "q", "-n", "symptoms", "-pst", "CONSUMERS",
            "-u", "admin", "-passfile", str(password), "-f", "-b", f"{BROKERS[name]}:{MAPPER_PORT}",
        )  # fmt: skip


async def healthy(cluster: Cluster) -> None:
    """Change nothing."""


async def not_routed(cluster: Cluster) -> None:
    """Pause the queue at the broker of the producer, which then keeps the messages."""
    await cluster.pause("one")


async def relay_unanswered(cluster: Cluster) -> None:
    """Stop the broker of the consumer, so that it accepts no message from the other one."""
    cluster.freeze("two")


async def lock_unanswered(cluster: Cluster) -> None:
    """Stop the broker from which the other one requests a lock, for a new consumer."""
    cluster.freeze("one")


Scenario = Callable[[Cluster], Awaitable[None]]
SCENARIOS: tuple[Scenario, ...] = (healthy, not_routed, relay_unanswered, lock_unanswered)


async def record_cluster(scenario: Scenario, cluster: Cluster, classes: Path, out: Path) -> None:
    # -P: the classic format, which does not describe the machine.
    dumpcap = (*inside(BRIDGE), "dumpcap", "-P", "-i", _DEVICE, "-f", "tcp", "-w", str(out))
    addresses = (f"mqtcp://{BROKERS[name]}:{JMS_PORT}/jms" for name in ("one", "two"))
    scenario_name = "lock" if scenario is lock_unanswered else "cluster"
    jars = f"{cluster.mq_home}/lib/*:{classes}"
    program = (f"{cluster.java_home}/bin/java", "-Dos.version=0", "-cp", jars, "SymptomTraffic")
    async with contextlib.AsyncExitStack() as capture:
        await capture.enter_async_context(running(*dumpcap, ready=b"File: "))
        async with cluster.running():
            clients = await asyncio.create_subprocess_exec(
                *inside(CLIENTS), *program, scenario_name, *addresses, stdin=PIPE, stdout=PIPE
            )
            assert clients.stdin is not None
            assert clients.stdout is not None
            await clients.stdout.readline()
            await scenario(cluster)
            clients.stdin.write(b"\n")
            await clients.stdout.readline()
            await asyncio.sleep(SETTLED_S)
            # Captured before brokers and clients are stopped.
            await capture.aclose()
            clients.kill()
            await clients.wait()


async def play(names: set[str], mq_home: Path, out: Path) -> None:
    java_home = record.installed_java()
    with tempfile.TemporaryDirectory() as classes:
        source = f"{record.HERE}/SymptomTraffic.java"
        compiler = f"{java_home}/bin/javac"
        await record.run(compiler, "-cp", f"{mq_home}/lib/*", "-d", classes, source)
        for scenario in SCENARIOS:
            name = f"cluster-{scenario.__name__}"
            if not names or name in names:
                with tempfile.TemporaryDirectory() as work, namespaces():
                    cluster = Cluster(mq_home, java_home, Path(work))
                    target = out / f"{name}.pcap"
                    await record_cluster(scenario, cluster, Path(classes), target)
                    target.chmod(0o644)  # dumpcap makes it readable for its user only


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=record.HERE.parent / "symptoms")
    parser.add_argument("symptoms", nargs="*", metavar="SYMPTOM")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(exist_ok=True)
    asyncio.run(play(set(arguments.symptoms), arguments.mq_home.resolve(), out))
    for path in sorted(out.glob("cluster-*.pcap")):
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
