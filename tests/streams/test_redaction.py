"""Whole batches are redacted as their rows are one by one."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

import wireyard
from wireyard import mqtt
from wireyard.formats import get_format
from wireyard.schema import array_of
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


def _one_by_one(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """Return a batch with each row redacted by itself, and the rows that are others then."""
    rows = batch.to_pylist()
    shown = [FORMAT.redact(row) for row in rows]
    changed = [at for at, row in enumerate(rows) if shown[at] != row]
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
            shown, rows = redactor.redact(batch)
            assert rows.tolist() == changed
            assert shown.equals(expected)
            found += len(changed)
    assert (found > 20) == (columns is None or "packet_type" in columns)
