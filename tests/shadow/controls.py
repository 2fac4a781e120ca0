"""Control runs: recordings of a broker against replays to that broker, which must not differ.

``python -m tests.shadow.controls [NAME ...]`` replays each recording of mosquitto and Open MQ
beside the checkout three times to its own broker, those of Open MQ to ours too, and prints the
number of rows by class. A name is the beginning of ``openmq/acks`` or ``wireyard/acks``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from click.testing import CliRunner

from peers import openmq
from tests.conftest import ROOT
from wireyard.answers import open_tables
from wireyard.broker.access import hash_password
from wireyard.cli import main as wireyard
from wireyard.shadow import Difference, differences

RECORDINGS: Final = ROOT.parent / "shared/captures"
_TIMES: Final = 3
_START_MOSQUITTO: Final = """
set -e
folder=$(mktemp -d)
trap 'kill $broker; wait; rm -r "$folder"' TERM
cd "$folder"
cat > broker.conf <<CONF
per_listener_settings true
user root
persistence true
persistence_location ./
listener $1 127.0.0.1
allow_anonymous true
listener $2 127.0.0.1
allow_anonymous false
password_file passwords
acl_file acl
CONF
printf 'user alice\\ntopic readwrite open/#\\n' > acl
mosquitto_passwd -b -c passwords alice "correct horse"
mosquitto -c broker.conf & broker=$!
wait
"""
"""A broker as the recordings had it, on two ports."""
_START_OPEN_MQ: Final = """
folder=$(mktemp -d)
trap 'kill $(pgrep -P $broker) $broker; wait; rm -r "$folder"' TERM
"$1/bin/imqbrokerd" -javahome "$2" -varhome "$folder" -name wy -port $3 -tty \\
  -Dimq.portmapper.hostname=127.0.0.1 -Dimq.hostname=127.0.0.1 & broker=$!
wait
"""


def commands(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield brokers: a name, the folder of the recordings for it, and a command that starts it."""
    for name, script in (("mosquitto", _START_MOSQUITTO), ("openmq", _START_OPEN_MQ)):
        (folder / name).write_text(script)
    start = f"sh {shlex.quote(str(folder))}"
    home = shlex.join([str(openmq.fetch()), os.environ["JAVA_HOME"]])
    yield "mosquitto", "mosquitto", f"{start}/mosquitto {{port}} {{1884}}"
    yield "openmq", "openmq", f"{start}/openmq {home} {{port}}"
    (folder / "users").write_text(hash_password("guest", b"guest"))
    own = f"{shlex.quote(sys.executable)} -m wireyard broker --port 0 --users {folder}/users"
    yield "wireyard", "openmq", f"sh -c 'exec {own} --jmq $0' {{port}}"


def run(recording: Path, broker: str) -> tuple[str, list[Difference]]:
    """Replay a recording to a broker; return what is said, and what differs."""
    with TemporaryDirectory() as folder:
        line = ["replay", str(recording), "--to", broker, "--record", folder]
        done = CliRunner().invoke(wireyard, line)
        with open_tables([str(recording)]) as a, open_tables([folder]) as b:
            return done.stderr, differences(a, b)


def main() -> int:
    """Run all recordings, or those whose names begin as one that is named."""
    os.environ["PATH"] += ":/usr/sbin"
    assert shutil.which("mosquitto"), "mosquitto is not installed"
    names, verbose = [each for each in sys.argv[1:] if each != "-v"], "-v" in sys.argv
    failed = 0
    with TemporaryDirectory() as folder:
        for broker, recordings, command in commands(Path(folder)):
            for path in sorted((RECORDINGS / recordings).glob("*.pcap*")):
                name = f"{broker}/{path.name}"
                if names and not name.startswith(tuple(names)):
                    continue
                for time in range(_TIMES):
                    said, found = run(path, command)
                    rows = dict(Counter(each.difference for each in found))
                    print(f"{name:28} run {time + 1}: {rows or 'no difference'}",
                          flush=True)  # fmt: skip
                    failed += bool(found)
                    if verbose:
                        print(said, *found, sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
