"""No file that a run writes has a secret, and states are readable by their owner only."""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow.parquet as pq

from tests.marked import capture, leaks, mark, variants
from tests.spark.lakes import run

OPEN = "_open"


def _leaks_of(lake: Path) -> list[tuple[Path, bytes]]:
    """Return the parts of marks in the files of a lake, of Parquet in its values too."""
    found = []
    for path in sorted(each for each in lake.rglob("*") if each.is_file()):
        found += [(path, part) for part in leaks(path.read_bytes())]
        if path.suffix == ".parquet":
            found += [(path, part) for part in leaks(str(pq.ParquetFile(path).read().to_pylist()))]
            found += [(path, part) for part in leaks(str(pq.read_metadata(path).metadata))]
    return found


def test_a_lake(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    (folder / "marked.pcap").write_bytes(capture(variants(cuts=False)))
    inside = (each for each in variants(cuts=False) if each.place.format == "mqtt")
    (folder / "inside.pcap").write_bytes(capture(inside, websocket=True))
    for format in ("mqtt", "jmq", "gpacket"):
        streams = (each.data for each in variants(cuts=False) if each.place.format == format)
        (folder / f"bare.{format}").write_bytes(b"".join(streams))
    run(lake, None, folder)
    tables = {path.parent.name for path in lake.rglob("*.parquet")}
    assert {"packets_mqtt", "packets_jmq", "packets_gpacket", "quarantine"} <= tables
    found = [each for each in _leaks_of(lake) if OPEN not in each[0].parts]
    assert not found, found[:3]


def test_states_are_private_and_deleted(tmp_path: Path) -> None:
    """The state of an unfinished CONNECT: mode 600, and gone when a newer one replaces it."""
    path, lake = tmp_path / "grows.mqtt", tmp_path / "lake"
    whole = next(each.data for each in variants(cuts=False))
    states: list[Path] = []
    for size in (len(whole) - 9, len(whole) - 5, len(whole)):
        path.write_bytes(whole[:size])
        run(lake, None, path)
        states = [each for each in lake.rglob("*") if each.parent.name == OPEN]
        assert sum(each.suffix == ".parquet" for each in states) <= 1
        for each in states:
            if each.suffix == ".parquet":
                assert stat.S_IMODE(each.stat().st_mode) == 0o600
            assert stat.S_IMODE(each.parent.stat().st_mode) == 0o700
    assert states
    assert mark(0) in whole
    assert not _leaks_of(lake)
