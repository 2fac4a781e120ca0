"""Whole batches are redacted as their rows are one by one."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import wireyard
from tests.formats.gpacket.make import gpacket
from tests.make import packet
from wireyard import mqtt
from wireyard.formats import get_format
from wireyard.schema import array_of
from wireyard.streams import redaction
from wireyard.streams.redaction import Redactor

FORMAT = get_format("mqtt")


def _connect(rng: Random) -> bytes:
    """Return a CONNECT with any of what may be secret in it."""
    version = rng.choice((3, 4, 5))
    properties: dict[str, int | str | bytes] = {}
    if version == 5:
        properties |= rng.choice(({}, {"session_expiry_interval": 5}))
        if rng.random() < 0.4:
            secret = rng.choice((b"", b"secret"))
            properties |= {"authentication_method": "x", "authentication_data": secret}
    user = rng.choice((None, "", "user"))
    password = None if user is None else rng.choice((None, b"", b"secret"))
    return wireyard.encode(
        mqtt.Connect(
            client_id="c",
            version_in_force=version,
            username=user,
            password=password,
            properties=properties,
        )
    )


def _one_by_one(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Return a batch with each row redacted by itself, and the number of rows that it changes."""
    rows = batch.to_pylist()
    shown = [FORMAT.secrets.redact(row) for row in rows]
    changed = sum(shown[at] != row for at, row in enumerate(rows))
    columns = [array_of([row[field.name] for row in shown], field.type) for field in batch.schema]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema), changed


@pytest.mark.parametrize("columns", [None, ["packet_type", "password"], ["password", "topic"]])
def test_rows_are_redacted_as_each_by_itself(columns: list[str] | None) -> None:
    rng = Random(5)
    publish = wireyard.encode(mqtt.Publish(topic="a", payload="x"))
    redactor = Redactor(FORMAT)
    found = 0
    for size in (1, 2, 300, 0, 300):
        stream = b"".join(rng.choice((_connect(rng), publish)) for _ in range(size))
        for whole in wireyard.read(stream, "mqtt", columns).to_batches():
            batch = whole.slice(rng.randrange(len(whole)))
            expected, changed = _one_by_one(batch)
            assert redactor.redact(batch).equals(expected)
            found += changed
    assert (found > 20) == (columns is None or "packet_type" in columns)


def test_the_rule_is_the_same_in_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "secrets.md").read_text()
    rules = re.compile(r"^1\. .*?(?=\n\n)", re.DOTALL | re.MULTILINE)
    assert redaction.__doc__ is not None
    found = [rules.search(text.replace("``", "`")) for text in (redaction.__doc__, page)]
    assert found[0] and found[1] and found[0][0] == found[1][0]
    assert found[0][0].count("\n") > 10


@pytest.mark.parametrize("size", [1, 4, 300])
def test_payloads_of_gpackets_are_redacted_as_each_by_itself(size: int) -> None:
    """What is found in all payloads together, and what is read row by row."""
    rng, format = Random(size), get_format("gpacket")
    login, text = (packet(packet_type=code, body=b"x") for code in (12, 1))
    inner = (login, text, b"none", text + login, login[:7], text[:3], b"", login[3:])
    redactor = Redactor(format)
    for _ in range(20):
        data = b"".join(
            gpacket(packet_type=rng.choice((1, 1, 1, 2, 17, 12)), payload=rng.choice(inner))
            for _ in range(size)
        )
        for whole in wireyard.read(data, "gpacket").to_batches():
            batch = whole.slice(rng.randrange(len(whole)))
            expected = [format.secrets.redact(row) for row in batch.to_pylist()]
            assert redactor.redact(batch).to_pylist() == expected
