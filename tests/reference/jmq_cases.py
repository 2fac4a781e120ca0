"""Packets that all implementations of the facts of JMQ are compared on, and their goldens.

The cases are recordings, recordings without some of their frames, and batches of random
conversations, also with lower limits. Their goldens are digests of the rows that a scalar
implementation derived from them, before its place was taken by the model (``jmq.py``).

python -m tests.reference.jmq_cases   # writes the goldens; needs ../shared
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import pyarrow as pa
import pytest

import wireyard
from tests.layers.jmq.conversation import conversations
from tests.layers.jmq.judge import Tables, packet_tables
from tests.layers.jmq.recorded import ended
from tests.layers.jmq.test_lost import write_without
from tests.layers.mqtt.test_beginnings import frames_of
from tests.reference.goldens import Digests, digests, write_goldens
from wireyard.layers.jmq import columns
from wireyard.layers.jmq.tracking import Ends

__all__ = ["FORMATS", "Case", "case_of", "golden_of", "limit_of", "names"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FORMATS: Final = "jmq", "gpacket"
BATCHES: Final = 16
"""Batches of random conversations."""
_RANDOM, _WITHOUT, _WITH = "conversations/", " without frames", " with "
_CONVERSATIONS: Final = 40
_LOST: Final = 12
"""Frames that a recording is read without."""
_RECORDED: Final = (
    "examples/traffic.pcap", "examples/encrypted/jms.pcapng",
    "examples/symptoms/jms-*.pcap", "examples/symptoms/cluster-*.pcap",
)  # fmt: skip
_TOGETHER: Final = "examples/traffic/*.jmq", "examples/points/*.pcap", "streams/real/*-*.*"
"""Files that are read together."""
_SHARED: Final = (
    "captures/openmq/*.pcap", "cases/jms/*.pcap", "cases/jms-consumer-killed.pcap",
    "cases/seeds/i1.pcap", "cases/seeds/jmqs.pcap", "cases/seeds/rs_enc.pcap",
)  # fmt: skip
_LIMITS: Final = (
    "rules.MAX_WAITING 2", "rules.MAX_HELD 2", "rules.MAX_CONSUMERS 2", "rules.MAX_PAUSED 1",
    "rules.MAX_TRANSACTIONS 1", "rules.MAX_REMEMBERED 2", "hops.MAX_SIGHTINGS 3",
)  # fmt: skip
_CUT: Final = "examples/traffic.pcap", "examples/symptoms/cluster-healthy.pcap"


class Case(NamedTuple):
    """Packets of each format, and the streams whose end is known."""

    tables: Tables
    ended: Ends


def names(shared: Path) -> list[str]:
    """Return the names of all cases."""
    recorded = [name for pattern in _RECORDED for name in _matching(ROOT, pattern)]
    of_shared = [name for pattern in _SHARED for name in _matching(shared, pattern)]
    captures = (name for name in of_shared if name.startswith("captures/") and "bulk" not in name)
    cut = [f"{name}{_WITHOUT}" for name in (*_CUT, *captures)]
    batches = [f"{_RANDOM}{number}" for number in range(BATCHES)]
    limited = [f"{_RANDOM}{seed}{_WITH}{limit}" for limit in _LIMITS for seed in (3, 4)]
    return [*recorded, *_TOGETHER, *of_shared, *cut, *batches, *limited]


def _matching(folder: Path, pattern: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in sorted(folder.glob(pattern))]


def case_of(name: str, shared: Path | None) -> Case | None:
    """Return a case by its name; None if it is a recording in a folder that is not there."""
    if name.startswith(_RANDOM):
        seed = name.removeprefix(_RANDOM).partition(_WITH)[0]
        rows, ends = conversations(int(seed), _CONVERSATIONS)
        return Case(packet_tables(rows), ends)
    folder = ROOT if name.startswith("examples/") else shared
    if folder is None:
        return None
    paths = sorted(folder.glob(name.removesuffix(_WITHOUT)))
    if not name.endswith(_WITHOUT):
        return _read(paths)
    (path,) = paths
    with TemporaryDirectory() as temporary:
        frames = range(len(frames_of(path)[1]))
        lost = set(random.Random(path.name).sample(frames, _LOST))
        return _read([write_without(lost, path, Path(temporary) / path.name)])


def _read(paths: list[Path]) -> Case:
    tables = {}
    for format in FORMATS:
        bare = [path for path in paths if not _is_other(path, format)]
        parts = [wireyard.read(str(path), format) for path in bare]
        filled = [part for part in parts if part.num_rows]
        if filled:
            tables[format] = pa.concat_tables(filled).unify_dictionaries()
    captures = (path for path in paths if path.suffix.startswith(".pcap"))
    return Case(tables, {stream: end for path in captures for stream, end in ended(path).items()})


def _is_other(path: Path, format: str) -> bool:
    """Return whether a file is a bare stream of another format."""
    return path.suffix[1:] in FORMATS and path.suffix[1:] != format


def golden_of(name: str, case: Case) -> Digests:
    """Return the digests of the tables that the columns derive, with the limit of the case."""
    with pytest.MonkeyPatch.context() as patch:
        if limit := limit_of(name):
            patch.setattr(*limit)
        made = columns.derive_columns(case.tables, case.ended)
    tables = {table: rows.to_pylist() for table, rows in made.tables.items()}
    return digests(tables | {"dropped": [made.dropped] if made.dropped else []})


def limit_of(name: str) -> tuple[str, int] | None:
    """Return the limit of a case, and its value; None where limits are as always."""
    _, _, limit = name.partition(_WITH)
    if not limit:
        return None
    path, _, most = limit.partition(" ")
    return f"wireyard.layers.jmq.{path}", int(most)


def main() -> None:
    """Write the goldens of all cases."""
    shared = ROOT.parent / "shared"
    found = {}
    for name in names(shared):
        case = case_of(name, shared)
        assert case is not None, name
        found[name] = golden_of(name, case)
    write_goldens("jmq", found)


if __name__ == "__main__":
    main()
