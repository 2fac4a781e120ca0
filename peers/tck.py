"""The tests of Jakarta Messaging for a broker, by the stock client, without a container.

python -m peers.tck CHECKOUT [URL]

CHECKOUT is a clone of github.com/jakartaee/platform-tck; without URL a broker of ours is run. It
prints the tests that failed, and how many passed. Tests of containers, those of `ee` and `ee20`,
are not run. It takes some ten minutes, most of them waiting.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory

import wireyard
from peers import openmq
from wireyard.broker.access import Access, hash_password, read_users
from wireyard.broker.settings import Settings

SOURCES = "tcks/apis/messaging/messaging-outside-container/src/main/java"
PORT = Path(__file__).with_name("TckObjects.java")
ARTIFACTS = (
    "jakarta.tck:common:11.0.0-RC4", "jakarta.ejb:jakarta.ejb-api:4.0.1",
    "jakarta.inject:jakarta.inject-api:2.0.1", "jakarta.servlet:jakarta.servlet-api:6.0.0",
    "jakarta.annotation:jakarta.annotation-api:2.1.1",
    "jakarta.transaction:jakarta.transaction-api:2.0.1",
    "org.junit.platform:junit-platform-console-standalone:1.11.4",
)  # fmt: skip
TESTS = r"com\.sun\.ts\.tests\.jms\.core.*"
TIMEOUT_MS = 5000


def class_path(checkout: Path) -> list[str]:
    """Return the tests, compiled if necessary, and what they need."""
    folder = openmq.BUILD / "tck"
    needed = [f"{openmq.jars('tck', *ARTIFACTS, with_theirs=False)}{os.sep}*"]
    needed += [str(openmq.fetch() / "lib" / jar) for jar in (*openmq.JARS, "imqjmx.jar")]
    if not folder.is_dir():
        with TemporaryDirectory(dir=openmq.BUILD) as name:
            port, made = Path(name, "SunRIJMSObjects.java"), Path(name, "classes")
            port.write_bytes(PORT.read_bytes())
            sources = (checkout / SOURCES).rglob("*.java")
            files = [
                str(path) for path in (port, *sources) if path.name != port.name or path == port
            ]
            options = ["-nowarn", "-proc:none", "-cp", os.pathsep.join(needed), "-d", str(made)]
            subprocess.run([openmq.jdk_tool("javac"), *options, *files], check=True)
            made.rename(folder)
    return [str(folder), *needed]


def run(path: list[str], url: str, reports: str) -> dict[str, bool]:
    """Run the tests; return whether each has passed."""
    named = {
        "broker": url, "platform.mode": "standalone", "vehicle": "standalone",
        "user": "guest", "password": "guest", "jms_timeout": TIMEOUT_MS,
    }  # fmt: skip
    java = [openmq.jdk_tool("java"), *(f"-D{name}={value}" for name, value in named.items())]
    console = [
        "-cp",
        os.pathsep.join(path),
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
    ]
    wanted = ["--scan-classpath", path[0], "-n", TESTS, f"--reports-dir={reports}"]
    quiet = subprocess.DEVNULL
    subprocess.run([*java, *console, *wanted], check=False, stdout=quiet, stderr=quiet)
    found = ElementTree.parse(Path(reports, "TEST-junit-jupiter.xml")).iter("testcase")
    return {
        f"{one.get('classname')}.{one.get('name')}": one.find("error") is one.find("failure")
        for one in found
    }


def main(checkout: str, url: str | None = None) -> None:
    """Run the tests with a broker, and print what failed."""
    path = class_path(Path(checkout))
    with TemporaryDirectory() as reports:
        if url is None:
            users = Path(reports, "users")
            users.write_text(hash_password("guest", b"guest") + "\n")
            settings = Settings(access=Access(read_users(str(users))))
            with wireyard.broker(settings, jmq=0) as broker:
                found = run(path, f"{broker.jmq_url}/jms", reports)
        else:
            found = run(path, url, reports)
    print(*sorted(name for name, passed in found.items() if not passed), sep="\n")
    print(f"{sum(found.values())} of {len(found)} tests passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
