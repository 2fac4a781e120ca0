"""``wireyard broker``, ``sub`` and ``pub``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import wireyard
from tests.cli.results import Run, one_line
from wireyard.broker.access import read_users
from wireyard.broker.thread import BrokerThread
from wireyard.endpoints import Message

SECONDS = 30


def test_a_broker_is_ready_and_ends_cleanly(tmp_path: Path, run: Run) -> None:
    command = [sys.executable, "-m", "wireyard", "broker", "-p", "0", "--record", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.fullmatch(r"listens on (mqtt://127\.0\.0\.1:\d+)\n", ready)
        assert found, ready
        assert (
            run("pub", "-h", found[1], "-t", "a/b", "-m", "x", "-q", 1, "-i", "me").exit_code == 0
        )
        process.send_signal(signal.SIGTERM)
        _, notes = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    lines = notes.splitlines()
    assert lines[0].startswith("wireyard: records to ")
    assert [line.partition("): ")[2] for line in lines[1:]] == [
        "connected, MQTT 5.0",
        "disconnected",
    ]
    (capture,) = tmp_path.glob("*.pcapng")
    kinds = wireyard.read(str(capture))["packet_type_name"].to_pylist()
    assert sorted(kinds) == ["CONNACK", "CONNECT", "DISCONNECT", "PUBACK", "PUBLISH"]


@pytest.mark.slow
def test_its_record_is_read_while_it_is_written(tmp_path: Path, run: Run) -> None:
    """By ``run --follow`` and, where it is installed, by tshark."""
    record, lake = tmp_path / "record", tmp_path / "lake"
    words = ["run", str(record), "--follow", "--engine", "process", "--lake", str(lake)]
    quiet = subprocess.DEVNULL
    with (
        wireyard.broker(record=record) as broker,
        subprocess.Popen(
            [sys.executable, "-m", "wireyard", *words], stdout=quiet, stderr=quiet
        ) as following,
    ):
        try:
            sent = ("pub", "-h", broker.url, "-t", "a/b", "-m", "x", "-q", "1")
            assert run(*sent).exit_code == 0
            end = time.monotonic() + SECONDS
            while "a/b" not in run("sql", lake, "SELECT destination FROM messages").stdout:
                assert time.monotonic() < end and following.poll() is None
                time.sleep(0.5)
        finally:
            following.send_signal(signal.SIGINT)
        if (tshark := shutil.which("tshark")) is not None:
            (capture,) = record.iterdir()
            fields = ["-d", f"tcp.port=={broker.port},mqtt", "-T", "fields", "-e", "mqtt.topic"]
            found = subprocess.run(
                [tshark, "-r", str(capture), *fields], capture_output=True, text=True, check=True
            )
            assert "a/b" in found.stdout.split()


def test_a_store_that_cannot_grow_ends_the_broker(tmp_path: Path, run: Run) -> None:
    """It acknowledges nothing that it cannot write."""
    words = f"ulimit -f 200; exec '{sys.executable}' -m wireyard broker -p 0 --store broker.db"
    with subprocess.Popen(
        ["sh", "-c", words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        result = run("pub", "-h", url, "-t", "t", "-m", "x" * 200_000, "-q", 1, "-r", "-i", "me")
        _, notes = process.communicate(timeout=SECONDS)
    assert result.exit_code == 3 and process.returncode == 4
    assert "wireyard: broker.db: cannot be written: " in notes and "Traceback" not in notes


def watched(broker: BrokerThread, run: Run, *words: object) -> str:
    """Return what ``sub`` prints about three messages."""
    server = broker.server

    def publish() -> None:
        end = time.monotonic() + SECONDS
        while not (
            (session := server.core.router.sessions.get("watcher")) and session.subscriptions
        ):
            assert time.monotonic() < end
            time.sleep(0.005)
        server.loop.call_soon_threadsafe(pass_on)

    def pass_on() -> None:
        server.core.router.publish(Message("plant/2", b"\x1b[31mred\n", 1), None)
        server.core.router.publish(Message("plant/3", b"\xff\x00"), None)
        server.wake()

    where = ("-h", broker.url)
    run("pub", *where, "-t", "plant/1", "-m", "42", "-r")
    publisher = threading.Thread(target=publish)
    publisher.start()
    result = run("sub", *where, "-i", "watcher", "-t", "plant/#", "-q", 1, "-C", 3, *words)
    publisher.join()
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_sub_shows_messages_for_people(run: Run) -> None:
    with wireyard.broker() as broker:
        lines = watched(broker, run, "--out", "text").splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d\.\d{6}  ", "", line) for line in lines] == [
        "plant/1  0r  42",
        "plant/2  1   0x1b5b33316d7265640a",
        "plant/3  0   0xff00",
    ]


def test_sub_prints_json_for_programs(run: Run) -> None:
    with wireyard.broker() as broker:
        rows = [json.loads(line) for line in watched(broker, run).splitlines()]
    assert [(row["topic"], row["qos"], row["retain"], row["payload"]) for row in rows] == [
        ("plant/1", 0, True, "42"),
        ("plant/2", 1, False, "0x1b5b33316d7265640a"),
        ("plant/3", 0, False, "0xff00"),
    ]


def test_pub_sends_files_and_lines_and_sub_leaves_out_what_was_there(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "payload").write_bytes(b"\xff\n")
    with wireyard.broker() as broker:
        where = ("-h", broker.url)
        assert run("pub", *where, "-t", "a/file", "-r", "-f", tmp_path / "payload").exit_code == 0
        by_line = [sys.executable, "-m", "wireyard", "pub", *where, "-t", "a/line", "-r", "-l"]
        subprocess.run(by_line, input=b"1\n2\r\n", check=True, timeout=SECONDS)
        seen = run("sub", *where, "-t", "a/#", "-v", "-C", 2).stdout.splitlines()
        assert sorted(json.loads(line)["payload"] for line in seen) == ["0xff0a", "2"]
        result = run("sub", *where, "-t", "a/#", "-R", "-W", 0.5)
        assert (result.exit_code, result.stdout) == (0, "")
        with subprocess.Popen(by_line, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(b"3\n")
            process.stdin.flush()
            assert '"3"' in run("sub", *where, "-t", "a/line", "-C", 2, "-W", SECONDS).stdout
            process.terminate()  # while it waits for the next line
            assert process.wait(timeout=SECONDS) == 143


def test_pub_and_sub_of_a_jmq_broker(run: Run) -> None:
    with wireyard.broker(jmq=0) as broker:
        where = ["-p", broker.jmq_port]
        for text in ("a", "b"):
            assert run("pub", "-q", "orders", *where, "-m", text).exit_code == 0
        result = run("sub", "-q", "orders", *where, "-C", 1, "--out", "text")
        assert re.sub(r"^\S+  ", "", result.output) == "orders  P   a\n"
        row = json.loads(run("sub", "-h", broker.jmq_url, "-q", "orders", "-C", 1).output)
        assert (row["topic"], row["flags"], row["payload"]) == ("orders", "QPAC", "b")


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["pub", "-h", "mqtt://127.0.0.1:1", "-t", "a"], 3, "127.0.0.1:1"),
        (["pub", "-h", "http://x", "-t", "a"], 2, "mqtt://HOST:PORT"),
        (["sub"], 2, "-t, or from a queue, -q QUEUE"),
        (["sub", "-t", "a", "-q", "orders"], 2, "-t, or from a queue, -q QUEUE"),
        (["sub", "-h", "mq://x", "-t", "a", "-t", "b"], 2, "one -t"),
        (["sub", "-t", "a", "-q", "3"], 2, "3 is no quality of service"),
        (["pub", "-q", "orders", "-p", "1"], 3, "localhost:1"),
        (["pub", "-t", "a", "-m", "x", "-l"], 2, "text, -m, or a file, -f, or lines"),
        (["pub", "-t", "a", "-f", "nowhere"], 3, "nowhere: there is no such file"),
        (["pub", "-h", "{url}", "-t", "a/#"], 2, "'a/#' is no topic"),
        (["sub", "-h", "{url}", "-t", "a#"], 3, "Topic Filter invalid"),
        (["broker", "--add-user", "ann"], 2, "--users"),
        (["broker", "--users", "nowhere"], 3, "nowhere: No such file"),
        (["broker", "--key", "k"], 2, "--cert"),
        (["broker", "--cert", "nowhere"], 3, "No such file"),
        (["broker", "--bind", "192.0.2.1", "-p", "0"], 3, "192.0.2.1"),
        (["broker", "-p", "0", "--record", "/dev/null/x"], 3, "/dev/null"),
        (["broker", "-p", "0", "--store", "/dev/null/x"], 3, "/dev/null/x: Not a directory"),
        (["broker", "-p", "0", "--store", __file__], 3, "file is not a database"),
        (["broker", "--memory", "--store", "s"], 2, "--memory and --store exclude each other"),
    ],
)
def test_mistakes_are_one_line(run: Run, words: list[str], status: int, line: str) -> None:
    with wireyard.broker() as broker:
        result = run(*(word.format(url=broker.url) for word in words))
    assert result.exit_code == status
    assert line in one_line(result)


def test_users_are_added_and_replaced(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "users"
    for name, password in (("ann", "one"), ("bob", "two"), ("ann", "three")):
        words = ("broker", "--users", path, "--add-user", name)
        assert run(*words, stdin=f"{password}\n{password}\n").exit_code == 0
    users = read_users(str(path))
    assert list(users) == ["bob", "ann"]
    assert users["ann"].matches(b"three") and not users["ann"].matches(b"one")
    assert os.stat(path).st_mode & 0o777 == 0o600
