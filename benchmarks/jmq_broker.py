"""Our broker beside Open MQ: messages a second, and processor time of the broker a message.

Messages of 200 bytes by the stock client, DUPS_OK: of one producer, non-persistent, and of twenty,
persistent, where both brokers sync the disk before they reply. The client takes most of the
processor, so the time of the broker says more than the rate, but where the disk decides it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from peers import openmq

RUNS, ROUNDS = 3, 3
CASES = {"non-persistent": (50_000, 1, "false"), "persistent": (5_000, 20, "true")}
"""Messages, producers, and whether they are persistent."""
SOURCE = Path(openmq.__file__).with_name("Load.java")
SECONDS = 60.0


def cpu_s(pid: int) -> float:
    """Return the processor time that a process and its children have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks + sum(cpu_s(int(one)) for one in children)


def wait_for(path: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + SECONDS
    while not (found := re.search(pattern, path.read_text())):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the broker did not start: {path.read_text()[-500:]}")
        time.sleep(0.1)
    return found[1]


@contextmanager
def started(name: str, command: list[str], ready: str, folder: Path) -> Iterator[tuple[int, str]]:
    """Run a broker; yield its process id and its port."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process.pid, wait_for(log, ready, process)
        finally:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            for child in children.read_text().split():
                os.kill(int(child), 15)
            process.terminate()
            process.wait(SECONDS)


def main() -> None:
    home = openmq.fetch()
    java_home = Path(openmq.jdk_tool("java")).resolve().parent.parent
    client = openmq.java(SOURCE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs = [
            str(home / "bin" / "imqbrokerd"), "-javahome", str(java_home), "-varhome", name,
            "-name", "load", "-port", "7686", "-tty", "-vmargs", "-Xms1g -Xmx1g",
            "-Dimq.portmapper.hostname=127.0.0.1", "-Dimq.hostname=127.0.0.1",
            "-Dimq.persist.file.sync.enabled=true",
        ]  # fmt: skip
        ours = [sys.executable, "-m", "wireyard", "broker", "--port", "0", "--jmq", "0"]
        ours += ["--store", str(folder / "broker.db")]
        with (
            started("openmq", theirs, r"(B1039)", folder) as (their_pid, _),
            started("wireyard", ours, r"mq://127\.0\.0\.1:(\d+)", folder) as (our_pid, port),
        ):
            brokers = {"openmq": (their_pid, "7686"), "wireyard": (our_pid, port)}
            for case, (messages, *more) in CASES.items():
                rates: dict[str, list[int]] = {one: [] for one in brokers}
                costs: dict[str, list[float]] = {one: [] for one in brokers}
                for turn in range(ROUNDS + 1):
                    for one, (pid, at) in brokers.items():
                        before = cpu_s(pid)
                        words = [f"mq://127.0.0.1:{at}/jms", "load", str(messages), str(RUNS)]
                        done = subprocess.run(
                            [*client, *words, *map(str, more)], capture_output=True, check=True
                        )
                        if turn:  # the first turn compiles their code
                            rates[one] += map(int, done.stdout.split())
                            costs[one].append((cpu_s(pid) - before) / (messages * RUNS) * 1e6)
                print(case)
                for one in brokers:
                    spread = f"{min(costs[one]):.1f} to {max(costs[one]):.1f}"
                    print(f"  {one:10} {median(rates[one]):9,.0f} messages/s", end="")
                    print(f"  {median(costs[one]):6.1f} us of the broker a message ({spread})")
                ratio = median(costs["wireyard"]) / median(costs["openmq"])
                print(f"  wireyard takes {ratio:.2f} of the processor time", flush=True)


if __name__ == "__main__":
    main()
