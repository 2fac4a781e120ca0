"""Damage to what is stored beside data: commits of lakes, states of growing inputs, key logs.

Each check makes one case from its number and asserts what its reader promises; ``python -m
tests.fuzz`` searches with them, as with the packets of formats.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.captures.test_live import Fed, network, plan_of
from wireyard.captures.inputs import open_input
from wireyard.captures.live.state import (
    StateError,
    pack_state,
    unpack_state,
)
from wireyard.errors import UsageError
from wireyard.formats import get_format, labels
from wireyard.lake.ledgers import LedgerSum
from wireyard.lake.records import (
    Commit,
    DataFile,
    Input,
    OtherVersion,
    RemovedFile,
    commit_of,
    record_of,
)
from wireyard.pipeline.growing.input import OPEN_STATE, read_state
from wireyard.streams.framer import Framer
from wireyard.streams.scan import scan_streams

__all__ = ["STORED"]

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, -1, 0, 1, 2, 255, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 1 << 70, 0.5, 1e300,
    float("inf"), float("nan"), "", "x", "mqtt", "../x", "/", "a/../../b", "\ud800", "\0",
    "x" * 300, "1" * 32, [], {}, [1], [[]], [[1, 2]], {"a": 1}, {"\0array": 0},
    {"\0array": 1 << 40},
)  # fmt: skip
_NUMBERS: Final = (
    -1, 0, 1, 2, 3, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 62, -(1 << 62), (1 << 63) - 1,
)  # fmt: skip


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a value in a tree: what holds it, and its key there."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def damage_tree(tree: Any, rng: Random) -> None:
    """Change, remove, repeat or nest values somewhere in a JSON value."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return
        holder, key = rng.choice(places)
        other, other_key = rng.choice(places)
        how = rng.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1:
            holder[key] = deepcopy(other[other_key])
        elif how == 2 and isinstance(holder, dict):
            holder[rng.choice(("x", "../x", "crc32", "files"))] = deepcopy(holder[key])
        elif how == 3 and isinstance(holder, list):
            holder.append(deepcopy(holder[key]))
        elif how == 4 and type(holder[key]) is int:
            holder[key] += rng.choice((-1, 1, 7, -(1 << 40), 1 << 40))
        else:
            holder[key] = deepcopy(rng.choice(_VALUES))


def damage_bytes(data: bytes, rng: Random) -> bytes:
    """Flip, insert, repeat or cut bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(5)
        if how == 0:
            del changed[at:]
        elif how == 1:
            changed[at:at] = changed[at : at + rng.randrange(1, 200)]
        elif how == 2:
            changed[at:at] = rng.choice((b"\n", b"\r\n", b"\0", b" ", b"\xff", b"#", b"0" * 70))
        elif at < len(changed):
            changed[at] ^= 1 << rng.randrange(8) if how == 3 else rng.randrange(1, 256)
    return bytes(changed)


# --- commits of lakes -----------------------------------------------------------------------


@cache
def _record() -> bytes:
    run, at = "0123456789abcdef" * 2, datetime(2026, 11, 21, 20, tzinfo=UTC)
    files = [DataFile(f"day=2026-11-2{day}/{run}-{day}.parquet", run, 9, 999, 7) for day in (1, 2)]
    of_file = {"size": 9, "modified_ns": 5, "edges_crc32": 3, "file": [1, 2]}
    ledger = {"mqtt": LedgerSum(*range(len(LedgerSum._fields)))}
    tables = {"packets_mqtt": files, "_open": [DataFile("o.parquet", run, 1, 20, 30)]}
    inputs = [
        Input("/in/a.pcap", None, of_file | {"growing": 9, "kept": [1, True, False]}, ledger,
              {"packets_mqtt": [files[0].name], "_open": ["o.parquet"]}),
        Input("s3://shop/b", "mqtt/5.0", {"files": [of_file, {"content_sha256": "ab"}]}, {},
              {"packets_mqtt": [each.name for each in files]}),
    ]  # fmt: skip
    gone = [RemovedFile("packets_mqtt", DataFile("gone.parquet", run, 3, 30, 4), at)]
    by_source = {each.source: each for each in inputs}
    return record_of(Commit(7, run, at, tables, by_source, gone, "parquet", "day"))


def check_commit(number: int) -> Counter[str]:
    """Assert that a record is read as it was written, or refused, whatever is in it."""
    rng, record = Random(number), _record()
    sealed = rng.random() < 0.8
    if sealed:
        # As its writer would seal it, who may be anyone.
        members = json.loads(record)
        del members["crc32"]
        damage_tree(members, rng)
        text = json.dumps(members, separators=(",", ":")).encode()
        if rng.random() < 0.05:
            text = text.replace(b"[", b"[" * 100_000, 1)
        record = b'%b,"crc32":%d}' % (text[:-1], zlib.crc32(text[:-1]))
    else:
        record = damage_bytes(record, rng)
    try:
        commit = commit_of(record)
    except (OtherVersion, ValueError, OverflowError, RecursionError):
        return Counter(["commit refused"])
    assert sealed or record == _record()
    # Version 5 has no checksum; written again it is of version 6.
    assert commit_of(record_of(commit)) == commit
    for table, files in commit.tables.items():
        assert table.isidentifier() and table.isascii()
        for file in files:
            assert file.run.isalnum() and ".." not in file.name and file.name.count("/") <= 1
    return Counter(["commit read"])


# --- states of growing inputs ---------------------------------------------------------------


def _damage_arrays(arrays: list[np.ndarray[Any, Any]], rng: Random) -> None:
    for _ in range(rng.choice((0, 1, 1, 3)) if arrays else 0):
        place = rng.randrange(len(arrays))
        array = arrays[place] = arrays[place].copy()
        if rng.random() < 0.7 and array.size:
            for _ in range(rng.choice((1, 1, 3, array.size))):
                value = rng.choice(_NUMBERS) if rng.random() < 0.7 else rng.randrange(100)
                array.reshape(-1)[rng.randrange(array.size)] = np.int64(value).astype(array.dtype)
        else:
            arrays[place] = rng.choice(
                (array[: len(array) // 2], array.reshape(-1), np.concatenate([array, array]),
                 array[:0], array.astype(rng.choice(("uint8", "int32", "int64"))))
            )  # fmt: skip


def check_state(number: int) -> Counter[str]:
    """Assert that a damaged state is refused, or its capture can be read on to its end."""
    rng = Random(number)
    data = network(30, rng) if rng.random() < 0.5 else (EXAMPLES / "traffic.pcap").read_bytes()
    fed = Fed.begin()
    fed.feed(data[: rng.randrange(2000, len(data))])
    state = fed.growing.state()
    assert state is not None
    text, arrays = pack_state(state)
    tree = json.loads(text)
    if rng.random() < 0.6:
        damage_tree(tree, rng)
    _damage_arrays(arrays, rng)
    other = Fed.begin()
    try:
        other.growing.restore(_stored(json.dumps(tree), arrays, rng))
    except StateError:
        return Counter(["state refused"])
    other.feed(data[other.growing.file.offset :])
    other.end()
    return Counter(["state continued"])


def _stored(text: str, arrays: Sequence[np.ndarray[Any, Any]], rng: Random) -> dict[str, Any]:
    """Return a state as a reader of its table does, the rows of which may be damaged too."""
    if rng.random() < 0.5:
        return unpack_state(text, arrays)
    rows: list[list[Any]] = [["a", "json", [len(text)], text.encode()]]
    rows += [["a", str(each.dtype), list(each.shape), each.tobytes()] for each in arrays]
    if rng.random() < 0.2:
        row = rng.choice(rows)
        row[rng.randrange(4)] = None
    if rng.random() < 0.2:
        row = rng.choice(rows)
        row[1], row[2] = rng.choice(("float64", "json", "facts", "int8")), [rng.choice(_NUMBERS)]
    columns = [
        pa.array([row[place] for row in rows], each.type) for place, each in enumerate(OPEN_STATE)
    ]
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(pa.table(columns, schema=OPEN_STATE), file.name)
        return read_state(file.name, "a").tree


def _frames(framer: Framer, data: bytes, *, at_end: bool) -> None:
    """Read frames to the end of a stream; data before the framer's position is discarded."""
    while (frame := framer.next_frame(data[framer.position :], at_end)) is not None:
        assert frame.start <= frame.stop
        if frame.stop >= len(data):
            break


def check_framer(number: int) -> Counter[str]:
    """Assert that the damaged state of a bare stream is refused, or the stream can be read on."""
    rng = Random(number)
    format = get_format(rng.choice(labels()))
    data = rng.randbytes(300)
    framer = Framer(format)
    _frames(framer, data[: rng.randrange(100)], at_end=False)
    tree = json.loads(json.dumps(framer.state()))
    damage_tree(tree, rng)
    other = Framer(format)
    try:
        other.restore(unpack_state(json.dumps(tree), []))
    except (StateError, KeyError, TypeError, ValueError):
        return Counter(["framer refused"])
    _frames(other, data, at_end=True)
    return Counter(["framer continued"])


# --- key logs -------------------------------------------------------------------------------


def _contents(data: bytes, keylog: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the streams of a capture with their bytes but for gaps, and read their rows too."""
    for stream in open_input(data, None, keylog=keylog).streams:
        ledger = sum(
            pc.sum(batch["length"]).as_py()
            for batch in scan_streams([(stream.opened, plan_of(stream.format))])
        )
        captured = stream.opened.captured  # type: ignore[attr-defined]
        assert ledger == captured.size
        pieces = zip(captured.runs.offsets, captured.runs.lengths, strict=True)
        content = (captured.read(at, at + size).tobytes() for at, size in pieces)
        yield captured.name, b"".join(content)


@cache
def _whole(name: str) -> dict[str, bytes]:
    path = EXAMPLES / "encrypted" / name
    keys = path.with_suffix(".keys")
    return dict(_contents(path.read_bytes(), [keys] if keys.exists() else []))


def check_key_log(number: int) -> Counter[str]:
    """Assert that a damaged key log is refused, or opens nothing but what the whole one opens."""
    rng = Random(number)
    name = rng.choice(("mqtt.pcap", "websocket.pcap", "jms.pcapng"))
    path = EXAMPLES / "encrypted" / name
    data = path.read_bytes()
    if name == "jms.pcapng":  # its secrets are in a block of it
        at = data.index(b"CLIENT_") + rng.randrange(400)
        return _compared(data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], [], name)
    with tempfile.NamedTemporaryFile(suffix=".keys") as file:
        lines = path.with_suffix(".keys").read_bytes().splitlines(keepends=True)
        if rng.random() < 0.5:
            words = [line.split() for line in lines]
            for each in rng.sample(words, min(len(words), rng.choice((1, 3, 9)))):
                place = rng.randrange(len(each)) if each else 0
                each[place:] = [*rng.choice(words)[place : place + 1], *each[place + 1 :]]
            lines = [b" ".join(each) + b"\n" for each in words]
            rng.shuffle(lines)
        file.write(damage_bytes(b"".join(lines), rng))
        file.flush()
        try:
            return _compared(data, [Path(file.name)], name)
        except UsageError:
            return Counter(["key log refused"])


def _compared(data: bytes, keylog: Sequence[Path], name: str) -> Counter[str]:
    for stream, content in _contents(data, keylog):
        # Without the secrets of the server it is not known whether early data was accepted.
        assert _whole(name)[stream].endswith(content) or _whole(name)[stream].startswith(content)
    return Counter(["key log read"])


STORED: Final[Mapping[str, Callable[[int], Counter[str]]]] = {
    "commit": check_commit,
    "state": check_state,
    "framer": check_framer,
    "keylog": check_key_log,
}
"""The checks by the name that a search has for them."""
