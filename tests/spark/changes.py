"""Runs over small files that change in any way, and what is to hold after each."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from tests.captures.make import BEGAN_NS, Packet, one_way_frames, pcap
from tests.formats.mqtt.make import connack, connect, publish
from tests.make import item, items, long_item
from tests.spark import lakes
from tests.spark.lakes import Silent
from wireyard.lake import read_lake
from wireyard.lake.parts import write_table
from wireyard.lake.writer import Lake
from wireyard.pipeline import replacing
from wireyard.pipeline.growing import following, growth
from wireyard.pipeline.growing.following import Progress, follow_lake
from wireyard.pipeline.growing.input import OPEN_STATE
from wireyard.pipeline.inputs import watching
from wireyard.pipeline.inputs.finding import (
    InputOptions,
    identity_of,
    is_unchanged,
    list_inputs,
)
from wireyard.pipeline.job import drop_from_lake, fill_lake, repair_lake
from wireyard.pipeline.replacing import OPEN_PREFIX, OPEN_STATES, Draft

__all__ = ["SETTLED_S", "Quiet", "check_runs"]

SETTLED_S: Final = 0.1


class Quiet:
    """A listener that hears nothing."""

    def note(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


_DELIVERED: Final = items(item(11, (1).to_bytes(4, "big")), long_item(9, 7), item(1, "orders"))
_NAMES: Final = ("a.mqtt", "b.mqtt", "c.jmq", "d.jmq", "e.pcap", "f.pcap")
_HOURS_NS: Final = 2 * 60 * 60 * 10**9
_PAYLOADS: Final = (b"x", b'{"a":1}', b'"\\ud800"', b"[" * 200, b"1e999", b"")


def _mqtt(rng: Random) -> list[bytes]:
    """Return the packets of one direction of an MQTT connection."""
    version = rng.choice((4, 5))
    packets = [
        connect(version, client=rng.choice("abc")) if rng.random() < 0.7 else connack(version)
    ]
    for number in range(rng.randint(1, 6)):
        topic, payload = rng.choice(("a/b", "c")), rng.choice(_PAYLOADS)
        qos = rng.choice((0, 1, 2))
        packet_id = number + 1 if qos else None
        packets.append(publish(version, 0x30 | qos << 1, topic, packet_id, payload))
    return packets


def _jmq(rng: Random) -> list[bytes]:
    """Return the packets of one direction of a JMQ connection, with messages that others share."""
    numbers = rng.sample(range(12), rng.randint(1, 6))
    if rng.random() < 0.5:
        return [lakes.HELLO, *map(lakes.message, numbers)]
    return [lakes.HELLO_REPLY, *(lakes.message(number, items=_DELIVERED) for number in numbers)]


def _capture(rng: Random, now_ns: int) -> list[bytes]:
    """Return the head of a capture and its records, of a few connections of both formats.

    No connection is silent for so long that it is another one where files are read on.
    """
    frames: list[list[bytes]] = []
    for port in rng.sample(range(20_000, 60_000), rng.randint(1, 3)):
        packets, server = rng.choice(((_mqtt, 1883), (_jmq, 7676)))
        pieces = list[tuple[int, bytes]]()
        for piece in packets(rng):
            pieces.append((sum(len(data) for _, data in pieces), piece))
        if len(pieces) > 2 and rng.random() < 0.3:
            del pieces[rng.randrange(1, len(pieces))]  # a lost segment
        frames.append(one_way_frames(pieces, port, server))
    records = list[Packet]()
    while any(frames):
        now_ns += rng.choice((1_000, 10**9, 300 * 10**9))
        records.append(Packet(rng.choice([each for each in frames if each]).pop(0), now_ns))
    whole = pcap(records)
    return [whole[: lakes.HEADER_BYTES], *lakes.records(whole)]


class Runs:
    """Files that change in any way, and the lake of the runs over them."""

    def __init__(self, rng: Random, folder: Path, judged: float) -> None:
        self.rng = rng
        self.judged, self.chance = judged, Random(0)
        """How many of the comparisons are made; the last one always is."""
        self.folder, self.lake = folder / "in", folder / "lake"
        self.folder.mkdir()
        self.names = rng.sample(_NAMES, rng.randint(1, len(_NAMES)))
        self.partition_by = "day" if rng.random() < 0.2 else None
        self.payload = ("#=json",) if rng.random() < 0.5 else ()
        self.options = InputOptions(by_content=rng.random() < 0.2)
        self.rest: dict[str, bytes] = {}
        """By name: the bytes by which a file grows."""
        self.held: dict[str, bytes] = {}
        """By source: the bytes that the lake has rows of."""
        self.has_lost_files = False
        """Whether files of the lake were removed."""
        self.now_ns = BEGAN_NS
        """The time of the next capture."""
        self.log: list[str] = []
        """The changes so far."""

    def parts(self, suffix: str) -> list[bytes]:
        """Return packets of a stream, or the head and the records of a capture."""
        if suffix != ".pcap":
            return (_mqtt if suffix == ".mqtt" else _jmq)(self.rng)
        self.now_ns += _HOURS_NS
        return _capture(self.rng, self.now_ns)

    # --- changes of files ---------------------------------------------------------------------

    def change(self) -> None:
        """Change a file, or the lake."""
        rng, there = self.rng, sorted(self.folder.iterdir())
        kinds: list[Callable[[Path], None]] = [self.come] * 3
        if there:
            kinds += [self.grow] * 4 + [self.shrink, self.damage, self.rename, self.copy, self.go]
        if self.held:
            kinds += [self.drop, self.damage_state, self.change_state, self.damage_lake]
        kind = rng.choice(kinds)
        path = rng.choice(there) if there else self.folder / rng.choice(self.names)
        before = {path.name: path.stat().st_size for path in there}
        kind(path)
        after = {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())}
        self.log.append(f"{kind.__name__}: {before} -> {after}")

    def come(self, _: Path) -> None:
        """Write a file, or another one in its place: with the same inode, or a new one."""
        path = self.folder / self.rng.choice(self.names)
        data = b"".join(self.parts(path.suffix))
        size = self.rng.choice((len(data), self.rng.randint(0, len(data))))
        if self.rng.random() < 0.5:
            path.unlink(missing_ok=True)
        path.write_bytes(data[:size])
        self.rest[path.name] = data[size:]

    def grow(self, path: Path) -> None:
        """Append the next bytes."""
        rest = self.rest.get(path.name, b"")
        if not rest:
            parts = self.parts(path.suffix)
            rest = b"".join(parts[1:] if path.suffix == ".pcap" else parts)
        size = self.rng.choice((len(rest), self.rng.randint(0, len(rest))))
        with path.open("ab") as file:
            file.write(rest[:size])
        self.rest[path.name] = rest[size:]

    def shrink(self, path: Path) -> None:
        """Drop the last bytes."""
        os.truncate(path, self.rng.randint(0, path.stat().st_size))

    def damage(self, path: Path) -> None:
        """Change, insert or remove a byte of a stream.

        In captures this may be a difference that `docs/live.md` lists.
        """
        if path.suffix == ".pcap":
            return
        data = bytearray(path.read_bytes())
        at = self.rng.randint(0, len(data))
        data[at : at + self.rng.randint(0, 1)] = self.rng.randbytes(self.rng.randint(0, 2))
        path.write_bytes(data)

    def rename(self, path: Path) -> None:
        """Give a file another name, maybe that of another file."""
        path.rename(path.with_stem(self.rng.choice("abcdefg")))

    def copy(self, path: Path) -> None:
        """Have a file under two names: linked or copied."""
        other = path.with_stem(self.rng.choice("abcdefg"))
        if other.exists():
            return
        make = self.rng.choice((shutil.copy, os.link))
        make(path, other)

    def go(self, path: Path) -> None:
        """Remove a file; its rows stay."""
        path.unlink()

    # --- changes of the lake ------------------------------------------------------------------

    def drop(self, _: Path) -> None:
        """Drop some inputs, and compare."""
        dropped = self.rng.sample(sorted(self.held), self.rng.randint(1, len(self.held)))
        with self.opened() as lake:
            drop_from_lake(lake, dropped, None)
        present = {source: data for source, data in self.held.items() if source not in dropped}
        self.compare(present)

    def damage_state(self, _: Path) -> None:
        """Change a byte of a state."""
        paths = [*map(Path, read_lake(str(self.lake)).paths(OPEN_STATES))]
        if there := [path for path in paths if path.exists()]:  # `damage_lake` removes some
            _change_byte(self.rng, self.rng.choice(there))

    def change_state(self, _: Path) -> None:
        """Have a state be that of another version."""
        with self.opened() as lake:
            if not (names := lake.files.get(OPEN_STATES)):
                return
            name = self.rng.choice(names)
            try:
                rows = pq.read_table(lake.path(OPEN_STATES, name)).to_pylist()
                row = self.rng.choice([row for row in rows if row["kind"] in ("json", "facts")])
                state = json.loads(row["data"])
            except (pa.ArrowException, OSError, ValueError):
                return  # its bytes were changed before
            if "version" in state.get("reader", {}) and self.rng.random() < 0.5:
                state["reader"]["version"] -= 1
            else:
                del state[self.rng.choice(sorted(state))]
            row["data"] = json.dumps(state).encode()
            lake.make_staging([OPEN_STATES])
            changed = pa.Table.from_pylist(rows, OPEN_STATE)
            new = write_table(lake.staged(OPEN_STATES), changed, OPEN_PREFIX)
            draft = Draft(lake)
            draft.replace_files(OPEN_STATES, {name: [new]})
            lake.commit(draft.change())

    def damage_lake(self, _: Path) -> None:
        """Damage files of tables, repair the lake, and read what was in them again."""
        if any(not _has(source, data) for source, data in self.held.items()):
            return
        held = read_lake(str(self.lake))
        paths = sorted(path for table in held.files for path in held.paths(table))
        for path in map(Path, self.rng.sample(paths, min(len(paths), self.rng.randint(1, 3)))):
            if self.rng.random() < 0.5:
                path.unlink()
                self.has_lost_files = True
            else:
                _change_byte(self.rng, path)
        with Lake.open(str(self.lake), damaged=True) as lake:
            repair_lake(lake, lake.damage(checksums=True))
        self.compare(self.held)
        self.run()

    # --- runs ---------------------------------------------------------------------------------

    def opened(self) -> AbstractContextManager[Lake]:
        """Open the lake."""
        return Lake.open(str(self.lake), partition_by=self.partition_by)

    def run(self) -> None:
        """Read what has changed, and compare."""
        self.log.append("run")
        if not any(self.folder.iterdir()):
            return
        listing = list_inputs([str(self.folder)], self.options)
        with self.opened() as lake:
            given = lake, listing.inputs, None, Silent()
            fill_lake(*given, payload=self.payload)
        self.check()

    def follow(self) -> None:
        """Follow the folder for a moment, while files grow, and compare."""
        self.log.append("follow")
        looks = self.rng.randint(0, 8)

        def stop() -> bool:
            nonlocal looks
            looks -= 1
            if looks >= 0 and (there := sorted(self.folder.iterdir())):
                self.grow(self.rng.choice(there))
            return looks < 0

        with self.opened() as lake:
            given = lake, [str(self.folder)], None, Silent(), Quiet(), stop
            follow_lake(*given, options=self.options, payload=self.payload)
        self.check()

    def check(self) -> None:
        """Compare the lake with that of one run over the files as they are now, or last were."""
        if not any(self.lake.glob("_wireyard/commits/*.json")):
            return  # every file was left out
        lake, contents = read_lake(str(self.lake)), {**self.held}
        known = {identity_of(each.stamp) for each in lake.inputs.values()}
        there = [str(self.folder)] if any(self.folder.iterdir()) else []
        for each in list_inputs(there, self.options).inputs if there else ():
            held = lake.inputs.get(each.path)
            if held is not None and is_unchanged(each.stamp, held.stamp):
                contents[each.path] = Path(each.path).read_bytes()
            else:
                assert identity_of(each.stamp) in known, each.path  # it has another name
        self.compare(contents)

    def compare(self, contents: dict[str, bytes]) -> None:
        """Compare the lake with that of one run over files with these contents."""
        self.held = {source: contents[source] for source in read_lake(str(self.lake)).inputs}
        if self.chance.random() >= self.judged:
            return
        aside = self.folder.rename(self.folder.with_name("aside"))
        self.folder.mkdir()
        for source, data in self.held.items():
            Path(source).write_bytes(data)
        shutil.rmtree(once := self.lake.with_name("once"), ignore_errors=True)
        if self.held:
            lakes.run(once, None, *map(Path, self.held), payload=self.payload)
        found, expected = (
            lakes.all_rows(each) if each.exists() else {} for each in (self.lake, once)
        )
        for table in {**found, **expected}:
            rows, wanted = (Counter(each.get(table, ())) for each in (found, expected))
            assert rows == wanted, (table, [*(rows - wanted)][:2], [*(wanted - rows)][:2])
        if not self.has_lost_files:
            lakes.nothing_left(self.lake)
        shutil.rmtree(self.folder)
        aside.rename(self.folder)


def _has(source: str, data: bytes) -> bool:
    path = Path(source)
    return path.exists() and path.read_bytes() == data


def _change_byte(rng: Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def check_runs(number: int, judged: float = 1.0) -> None:
    """Do some runs between changes of files, and assert what is to hold after them.

    Most of the time goes into making the tables of one run to compare with: `judged` is how many
    of the runs before the last one are compared.
    """
    rng = Random(number)
    with TemporaryDirectory(prefix="soak-") as name, ExitStack() as patches:
        for module, constant, value in (
            (watching, "SETTLED_S", SETTLED_S),
            (following, "_COMMIT_S", 0.0),
            (following, "_POLL_S", 0.001),
            (following, "_EXPIRE_S", 0.0),
            (following, "RETENTION", timedelta(0)),
            (replacing, "_MERGED", rng.choice((2, 3, 16))),
        ):
            patches.enter_context(mock.patch.object(module, constant, value))
        if rng.random() < 0.5:  # facts of all packets are made in the background
            patches.enter_context(mock.patch.object(growth, "take_long", lambda rows: True))
        runs = Runs(rng, Path(name), judged)
        try:
            for left in reversed(range(rng.randint(2, 8))):
                runs.judged = judged if left else 1.0
                for _ in range(rng.randint(1, 3)):
                    runs.change()
                (runs.follow if rng.random() < 0.15 else runs.run)()
        except BaseException:
            print("\n".join(runs.log), flush=True)
            raise
