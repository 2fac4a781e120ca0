"""Captures as the field takes them: what is said of a worse one, against the whole.

``python -m tests.degraded CAPTURE...`` damages captures in many ways and prints a table: by kind of
damage, the captures of which something contradicts the whole, and the share of verdicts that are
still reached. A capture that shows less may leave more undecided; what it concludes has to be true.
"""

from __future__ import annotations

import argparse
import gzip
import random
import struct
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from click.testing import CliRunner

from wireyard.answers.tables import open_tables
from wireyard.answers.why import Finding, find_symptoms
from wireyard.cli import main as wireyard

Row = Mapping[str, Any]

OPEN: Final = frozenset(
    {"undecided", "in_flight", "queued", "unaccepted", "unreleased", "left", "in_transaction"}
    | {"waiting", "held", None}
)
"""Verdicts that more of the capture may change."""
_SAID_LESS: Final = {"duplicate", "lost_ack"}
"""Verdicts of which a capture may show less: `delivered`."""
_OF_THE_CAPTURE: Final = {"capture_gap"}
"""Symptoms of the capture itself."""
_SNAPLENS: Final = (68, 96, 128)
_LOSSES: Final = (0.01, 0.05, 0.2)
_OFFSETS_NS: Final = (1_000_000, 50_000_000, 1_000_000_000)
_JITTER_NS: Final = 50_000
_RECORD_HEADER: Final = 16
_LINK_BYTES: Final = {0: 4, 1: 14, 101: 0, 113: 16, 276: 20}
"""Bytes before the IP header, by the link type of a capture."""
_QUERIES: Final = {
    "deliveries": (
        "SELECT sent_frame, delivered_frame, acknowledged_frame, consumer_client_id, verdict,"
        " sent_ns, delivered_ns, acknowledged_ns FROM deliveries"
    ),
    "violations": "SELECT rule, frame FROM violations",
    "sessions": (
        "SELECT opened_frame, client, client_id, ended_by, end_code, status, keep_alive"
        " FROM sessions"
    ),
    "conversations": (
        "SELECT requested_frame, replied_frame, if(kind = 'jms', request_key, NULL) AS request,"
        " if(kind = 'jms', reply_key, NULL) AS reply FROM conversations"
    ),
    "transactions": "SELECT begun_frame, outcome FROM transactions",
}


class Capture:
    """A classic capture file, frame by frame."""

    def __init__(self, data: bytes) -> None:
        self.header, self.frames, at = data[:24], list[bytes](), 24
        order = "<" if data[0] in (0xD4, 0x4D) else ">"
        self._times, self._size = f"{order}II", f"{order}I"
        self._unit_ns = 1 if 0x4D in (data[0], data[3]) else 1000
        (link,) = struct.unpack(f"{order}I", data[20:24])
        self._ip_at = _RECORD_HEADER + _LINK_BYTES[link & 0xFFFF]
        while at < len(data):
            stop = at + _RECORD_HEADER + int(struct.unpack_from(self._size, data, at + 8)[0])
            self.frames.append(data[at:stop])
            at = stop

    @classmethod
    def read(cls, path: Path) -> Capture:
        data = path.read_bytes()
        return cls(gzip.decompress(data) if path.suffix == ".gz" else data)

    def time_ns(self, number: int) -> int:
        seconds, units = struct.unpack_from(self._times, self.frames[number])
        return int(seconds) * 1_000_000_000 + int(units) * self._unit_ns

    def at(self, number: int, time_ns: int) -> bytes:
        """Return a frame with another time."""
        seconds, rest_ns = divmod(time_ns, 1_000_000_000)
        return struct.pack(self._times, seconds, rest_ns // self._unit_ns) + self.frames[number][8:]

    def cut(self, number: int, size: int) -> bytes:
        """Return the first bytes of a frame, as with a snaplen."""
        frame = self.frames[number]
        kept = min(len(frame) - _RECORD_HEADER, size)
        return frame[:8] + struct.pack(self._size, kept) + frame[12 : _RECORD_HEADER + kept]

    def way(self, number: int) -> tuple[bytes, bytes]:
        """Return the endpoints of a frame, source and target; that of a fragment is no endpoint."""
        packet = self.frames[number][self._ip_at :]
        if packet[0] >> 4 == 6:
            return packet[8:24] + packet[40:42], packet[24:40] + packet[42:44]
        ports = 4 * (packet[0] & 15)
        return packet[12:16] + packet[ports : ports + 2], packet[16:20] + packet[
            ports + 2 : ports + 4
        ]


class Damaged(NamedTuple):
    """A worse capture: the kind of damage, its frames, and which of the whole each is."""

    kind: str
    frames: Sequence[bytes]
    numbers: Sequence[int]
    header: bytes = b""
    """That of the file, where it differs: a slice says that it is one."""


def damage(capture: Capture, seed: int) -> Iterator[Damaged]:
    """Yield a capture with each kind of damage once, by the numbers of a seed."""
    dice, every = random.Random(seed), range(len(capture.frames))

    def only(kind: str, numbers: Iterable[int]) -> Damaged:
        kept = list(numbers)
        return Damaged(kind, [capture.frames[number] for number in kept], kept)

    ways = [capture.way(number) for number in every]
    lost = dice.choice(ways)
    yield only("one direction of one connection", (at for at in every if ways[at] != lost))
    ((broker, _),) = Counter(target for _, target in ways).most_common(1)
    yield only("only to clients", (at for at in every if ways[at][1] != broker))
    yield only("only to the broker", (at for at in every if ways[at][0] != broker))
    for share in _LOSSES:
        yield only(f"{share:.0%} of the frames lost", (at for at in every if dice.random() > share))
    for size in _SNAPLENS:
        yield Damaged(f"snaplen {size}", [capture.cut(at, size) for at in every], every)
    for offset_ns in _OFFSETS_NS:
        times = sorted((capture.time_ns(at) + of, at) for at in every for of in (0, offset_ns))
        kind = f"two taps, clocks {offset_ns // 1_000_000} ms apart, merged"
        yield Damaged(kind, [capture.at(at, ns) for ns, at in times], [at for _, at in times])
    moved = [(capture.time_ns(at) + dice.randint(-_JITTER_NS, _JITTER_NS), at) for at in every]
    for kind, times in (("times off by 50 us", moved), ("the same, sorted", sorted(moved))):
        yield Damaged(kind, [capture.at(at, ns) for ns, at in times], [at for _, at in times])


def slices(
    path: Path, capture: Capture, whole: Said, most: int, keylog: Sequence[str]
) -> Iterator[Damaged]:
    """Yield slices of a capture, as ``wireyard slice`` makes them, by some topics and clients."""
    dice, out = random.Random(most), path.with_name("slice")
    keys = [word for name in keylog for word in ("--keylog", name)]
    for kind, option, names in (
        ("slice of a topic", "--where", [f"topic == {name!r}" for name in whole.destinations]),
        ("slice of a client", "--client", whole.clients),
    ):
        for name in dice.sample(names, min(most, len(names))):
            out.unlink(missing_ok=True)
            CliRunner().invoke(wireyard, ["slice", str(path), option, name, "-w", str(out), *keys])
            if not out.exists():
                continue
            places = defaultdict(list)
            for number, frame in enumerate(capture.frames):
                places[frame].append(number)
            part = Capture(out.read_bytes())
            numbers = [places[frame].pop(0) for frame in part.frames]
            yield Damaged(kind, part.frames, numbers, part.header)


class Said:
    """What wireyard says of a capture, with the numbers of frames that the whole gives them."""

    def __init__(self, path: Path, numbers: Sequence[int], keylog: Sequence[str] = ()) -> None:
        with open_tables([str(path)], keylog=keylog) as tables:
            found = {name: tables.rows(query) for name, query in _QUERIES.items()}
            topics = tables.rows("SELECT DISTINCT destination AS name FROM messages ORDER BY ALL")
            self.findings = find_symptoms(tables, None, shown_as="CAPTURE")
        self.rows = {
            name: [_renumbered(row, numbers) for row in rows] for name, rows in found.items()
        }
        self.destinations = [row["name"] for row in topics if row["name"]]
        self.clients = sorted({row["client_id"] for row in self.rows["sessions"]} - {None, ""})

    def by(self, table: str, column: str) -> dict[Any, list[Row]]:
        """Return the rows of a table by the values of a column."""
        found = defaultdict(list)
        for row in self.rows[table]:
            found[row[column]].append(row)
        return found


def _renumbered(row: Row, numbers: Sequence[int]) -> Row:
    frames = {name: row[name] for name in row if name.endswith("frame")}
    places = {
        name: frame if frame is None else numbers[frame - 1] for name, frame in frames.items()
    }
    return {**row, **places}


def contradictions(part: Said, whole: Said, most_ns: int = 0) -> Iterator[str]:
    """Yield what is said of a part of a capture and is not so in the whole.

    Parameters
    ----------
    most_ns
        How far durations may differ.
    """
    copies, sent = whole.by("deliveries", "delivered_frame"), whole.by("deliveries", "sent_frame")
    for row in part.rows["deliveries"]:
        if row["delivered_frame"] is None:
            yield from _undelivered(row, sent[row["sent_frame"]])
        elif row["delivered_frame"] in copies:
            yield from _delivered(row, copies[row["delivered_frame"]], most_ns)
    broken = {(row["rule"], row["frame"]) for row in whole.rows["violations"]}
    for row in part.rows["violations"]:
        if (row["rule"], row["frame"]) not in broken:
            yield f"violation of {row['rule']} in frame {row['frame']}"
    logins = whole.by("sessions", "opened_frame")
    for row in part.rows["sessions"]:
        for name in ("client_id", "ended_by", "end_code", "status", "keep_alive"):
            known = {None, "", "open", *(true[name] for true in logins[row["opened_frame"]])}
            if row["opened_frame"] is not None and row[name] not in known:
                yield f"session with {name} {row[name]!r}: {row}"
    for request, reply in (("requested_frame", "replied_frame"), ("request", "reply")):
        asked = whole.by("conversations", request)
        for row in part.rows["conversations"]:
            # A JMS message has an id: the frame that shows it may be another one.
            is_by_frame = row["request"] is None
            if row[request] is None or is_by_frame != (request == "requested_frame"):
                continue
            if row[reply] not in {None, *(true[reply] for true in asked[row[request]])}:
                yield f"reply {row[reply]} to {row[request]}"
    begun = whole.by("transactions", "begun_frame")
    for row in part.rows["transactions"]:
        outcomes = {
            "open",
            "prepared",
            None,
            *(one["outcome"] for one in begun[row["begun_frame"]]),
        }
        if row["begun_frame"] is not None and row["outcome"] not in outcomes:
            yield f"transaction {row['outcome']}: {row}"
    for one in part.findings:
        if one.symptom not in _OF_THE_CAPTURE and not _is_found(one, whole):
            yield f"finding {one.symptom} of {one.client or one.destination}: {one.text}"


def _is_found(one: Finding, whole: Said) -> bool:
    """Return whether the whole has a finding too, of this client or destination.

    A part may not show the client id of a connection, nor the cause that ended it.
    """
    own = [row for row in whole.rows["sessions"] if one.client in (row["client_id"], row["client"])]
    if one.symptom == "dropped" and any(row["ended_by"] == "dropped" for row in own):
        return True
    names = {one.client, *(row["client_id"] for row in own)}
    return any(
        one.symptom == other.symptom
        and (other.client in names if one.client else one.destination == other.destination)
        for other in whole.findings
    )


def _undelivered(row: Row, true: Sequence[Row]) -> Iterator[str]:
    clients = {None, row["consumer_client_id"]}
    fits = [
        one
        for one in true
        if row["consumer_client_id"] is None or one["consumer_client_id"] in clients
    ]
    if row["verdict"] not in OPEN | {one["verdict"] for one in fits}:
        yield f"{row['verdict']}, not {sorted({str(one['verdict']) for one in fits})}: {row}"


def _delivered(row: Row, true: Sequence[Row], most_ns: int) -> Iterator[str]:
    verdicts = {one["verdict"] for one in true}
    if verdicts & _SAID_LESS:
        verdicts |= {"delivered"}
    if row["verdict"] not in OPEN | verdicts:
        yield f"{row['verdict']}, not {sorted(verdicts)}: {row}"
    for name in ("sent_frame", "acknowledged_frame", "consumer_client_id"):
        if row[name] not in {None, *(one[name] for one in true)}:
            yield f"{name} {row[name]}, not {[one[name] for one in true]}: {row}"
    for first, last in (("sent_ns", "delivered_ns"), ("delivered_ns", "acknowledged_ns")):
        (took, *others) = (
            None if None in (one[first], one[last]) else one[last] - one[first]
            for one in (row, *true)
        )
        known = [other for other in others if other is not None]
        if took is not None and known and min(abs(took - other) for other in known) > most_ns:
            yield f"{took} ns from {first} to {last}, not {known}: {row}"


def kept_verdicts(part: Said, whole: Said) -> tuple[int, int]:
    """Return the number of verdicts of the whole, and of those that the part reaches too."""

    def reached(said: Said) -> Counter[Any]:
        return Counter(
            (row["sent_frame"], row["delivered_frame"], row["verdict"])
            for row in said.rows["deliveries"]
            if row["verdict"] not in OPEN
        )

    both = reached(part) & reached(whole)
    return reached(whole).total(), both.total()


def judge(
    path: Path, seed: int, most_slices: int = 1, keylog: Sequence[str] = ()
) -> Iterator[tuple[str, list[str], int, int]]:
    """Yield for each damage its kind, the contradictions, and the counts of `kept_verdicts`."""
    capture = Capture.read(path)
    with tempfile.TemporaryDirectory() as folder:
        worse = Path(folder, "capture.pcap")
        worse.write_bytes(capture.header + b"".join(capture.frames))
        whole = Said(worse, range(len(capture.frames)), keylog)
        cut = slices(worse, capture, whole, most_slices, keylog)
        for kind, frames, numbers, header in [*damage(capture, seed), *cut]:
            worse.write_bytes((header or capture.header) + b"".join(frames))
            part = Said(worse, numbers, keylog)
            most_ns = 4 * _JITTER_NS if "times" in kind or "sorted" in kind else 0
            yield kind, [*contradictions(part, whole, most_ns)], *kept_verdicts(part, whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="that of the first round")
    parser.add_argument("--slices", type=int, default=1, help="topics and clients to slice by")
    parser.add_argument("--keylog", action="append", default=[], help="secrets of TLS connections")
    parser.add_argument(
        "--show", type=int, default=3, help="contradictions to show of each capture"
    )
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in options.captures:
        for seed in range(options.seed, options.seed + options.rounds):
            for kind, wrong, of, kept in judge(path, seed, options.slices, options.keylog):
                counts[kind].update(captures=1, wrong=int(bool(wrong)), of=of, kept=kept)
                for text in wrong[: options.show]:
                    print(f"{path.name}, seed {seed}, {kind}: {text}", flush=True)
    print("| damage | captures | contradictions in | verdicts reached |\n|---|---|---|---|")
    for kind, count in counts.items():
        share = f"{count['kept'] / count['of']:.1%}" if count["of"] else ""
        print(f"| {kind} | {count['captures']} | {count['wrong']} | {share} |")


if __name__ == "__main__":
    main()
