"""What the text of Jakarta Messaging promises, asked of our broker through the stock client.

The cases are in ``peers/Cases.java``. ``cases.txt`` has what the text says of each, and where it
leaves a choice, what Open MQ 6.5.0 does. Open MQ itself differs from it in four selectors that are
none (``JMSRedelivered`` is no name that a selector may have, and ``LIKE``, ``IN ()`` and ``NULL =``
are no SQL), says of a temporary queue that is gone that it is forbidden, and lets a producer send
to all topics of a wildcard.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import wireyard
from peers import openmq
from wireyard.broker.access import Access, hash_password, read_users
from wireyard.broker.settings import Settings

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SECONDS = 240.0


def test_what_the_text_of_the_api_promises(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(hash_password("guest", b"guest") + "\n")
    settings = Settings(access=Access(read_users(str(users))))
    source = Path(openmq.__file__).with_name("Cases.java")
    try:
        command = openmq.java(source, "-Xshare:auto", "-XX:TieredStopAtLevel=1")
    except openmq.Unavailable as missing:
        pytest.skip(str(missing))
    with wireyard.broker(settings, jmq=0) as broker:
        done = subprocess.run(
            [*command, f"{broker.jmq_url}/jms"],
            capture_output=True, check=False, timeout=SECONDS,
        )  # fmt: skip
    expected = Path(__file__).with_name("cases.txt").read_text(encoding="utf-8")
    assert done.stdout.decode("utf-8").splitlines() == expected.splitlines()
