"""The one Spark session and the one S3 server of all tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wireyard.spark import session
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local session as ours are: two threads, tasks tried again."""
    settings = {
        "spark.sql.shuffle.partitions": "2",
        # Java would compile code for each shape of query: a sixth of the tests' processor time.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    found = session("local[2]", **settings)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Have an S3 server on loopback for a while; return the log of its requests.

    It is a process, for clients that hold Python's lock.
    """
    pytest.importorskip("moto.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    log = tmp_path_factory.mktemp("s3") / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=file) as server,
        pytest.MonkeyPatch.context() as patched,
    ):
        try:
            patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            patched.setenv("AWS_ACCESS_KEY_ID", "testing")
            patched.setenv("AWS_SECRET_ACCESS_KEY", "testing")
            patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
            until = time.monotonic() + 180
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                assert time.monotonic() < until and server.poll() is None
                time.sleep(0.1)
            system, _ = filesystem("s3://bucket?allow_bucket_creation=true")
            system.create_dir("bucket")
            yield log
        finally:
            server.kill()
