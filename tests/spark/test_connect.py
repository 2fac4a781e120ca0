"""Spark Connect: found by the server, read by its workers, written by them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.rows import GOOD, STREAM

CLIENT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()

def failure(work):
    try:
        work()
    except Exception as error:
        line = next(line for line in str(error).splitlines() if "wireyard.errors." in line)
        return line[line.index("wireyard.errors."):]  # without what Spark was doing

folder = sys.argv[1]
packets = spark.read.format("wireyard").option("protocol", "jmq")
found = packets.option("maxPartitionBytes", "4000").load(folder + "/in")
print(found.count(), found.where("status = 'ok'").count())
ok = packets.schema("packet_type int, body binary").load(folder + "/in/small.jmq")
write = ok.write.format("wireyard").option("protocol", "jmq").mode("append")
write.save(folder + "/out")
print(packets.load(folder + "/out").count())
print(failure(lambda: packets.load("in").count()))
print(failure(lambda: write.save("out")))
# One task a file: of several the first to fail would be any.
strict = packets.option("mode", "FAILFAST").option("maxPartitionBytes", "100000000")
print(failure(lambda: strict.load(folder + "/in").count()))
spark.stop()
"""


@pytest.mark.spark
def test_connect(tmp_path: Path) -> None:
    # A process of its own, for one with a classic session can have none of these; and a port of
    # its own, which Spark picks only where a variable says that it is tested.
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "all.jmq").write_bytes(STREAM)
    (tmp_path / "in" / "small.jmq").write_bytes(GOOD[0] + GOOD[1])
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows, written, reading, writing, failing = ran.stdout.splitlines()
    assert rows == f"{len(GOOD) + 5} {len(GOOD) + 2}"
    assert written == "2"
    relative = "is relative, which means nothing in Spark Connect"
    assert reading == f"wireyard.errors.UsageError: in: {relative}"
    assert writing == f"wireyard.errors.UsageError: out: {relative}"
    assert failing.startswith("wireyard.errors.WireError: jmq: 'destination' needs 60000 bytes")
    assert f"in {tmp_path}/in/all.jmq, offset " in failing
