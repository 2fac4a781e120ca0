"""Files that change in any way between runs: no run fails, and each makes the tables of one run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.captures.make import one_way
from tests.formats.mqtt.make import publish
from tests.spark import lakes
from tests.spark.changes import check_runs
from tests.spark.test_incremental import inputs, mqtt, run
from wireyard.errors import LakeDamaged
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.pipeline import replacing
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.growing.states import Part, states_of
from wireyard.pipeline.growing.tasks import restored
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.pipeline.replacing import OPEN_STATES


@pytest.mark.parametrize("number", range(12))
def test_random_changes(number: int) -> None:
    check_runs(number)


def damage(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("change", ["shorter", "byte", "inode", "state"])
def test_an_input_grows_while_another_is_read_again(tmp_path: Path, change: str) -> None:
    """Both have rows in merged files, which are copied without the rows that are replaced."""
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    paths = [folder / f"{number:02}.mqtt" for number in range(18)]
    growing, other = paths[0], paths[2]
    for path in (growing, other):
        path.write_bytes(mqtt(path.stem)[:-3])
        run(lake, path)
    for path in paths:
        path.write_bytes(mqtt(path.stem))
        run(lake, path)
    held = read_lake(str(lake)).inputs
    of_both = [held[str(path)].files for path in (growing, other)]
    assert {*of_both[0]["packets_mqtt"]} & {*of_both[1]["packets_mqtt"]}
    with growing.open("ab") as file:
        file.write(publish(4, topic="more"))
    if change == "state":
        (state,) = of_both[1][OPEN_STATES]
        damage(Path(read_lake(str(lake)).path(OPEN_STATES, state)))
    elif change == "inode":
        other.rename(tmp_path / "old")
    content = {"shorter": mqtt("2"), "byte": mqtt("02").replace(b"x", b"y")}
    other.write_bytes(content.get(change, mqtt("02") + publish(4, topic="more")))
    run(lake, folder)
    lakes.assert_as_one_run(folder, lake)


@pytest.mark.parametrize("content", ["two", "longer"])
def test_an_input_that_is_deleted_before_it_is_read_again_keeps_its_rows(
    tmp_path: Path, content: str
) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    paths = inputs(folder)
    run(lake, folder)
    before = lakes.all_rows(lake)
    paths[0].write_bytes(mqtt(content))
    found = list_inputs([str(folder)]).inputs
    paths[0].unlink()
    with Lake.open(str(lake)) as opened:
        given = opened, found, None, lakes.Silent()
        report = fill_lake(*given, skip_missing=True)
    assert (report.replaced, len(report.notes)) == (0, 1)
    assert lakes.all_rows(lake) == before


def test_a_file_that_gets_another_name_and_grows_keeps_its_first_name(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    path = folder / "b.mqtt"
    path.write_bytes(mqtt("one"))
    run(lake, folder)
    os.link(path, folder / "a.mqtt")
    with path.open("ab") as file:
        file.write(publish(4, topic="more"))
    run(lake, folder)
    assert {*read_lake(str(lake)).inputs} == {str(path)}
    (folder / "a.mqtt").unlink()
    lakes.assert_as_one_run(folder, lake)


def test_files_of_small_captures_are_not_merged_while_they_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little of them has arrived for a state."""
    monkeypatch.setattr(replacing, "_MERGED", 2)
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    paths = [str(folder / f"{number}.pcap") for number in range(3)]
    whole = one_way([(0, mqtt("one"))])
    for path in paths:
        Path(path).write_bytes(whole[: lakes.HEADER_BYTES])
    with Lake.open(str(lake)) as opened:
        growth = Growth(opened, None)
        for path in paths:
            assert growth.open_input(list_inputs([path]).inputs[0])
        for some in (paths[:2], paths[2:]):
            growth.commit({path: growth.unread_bytes(path) for path in some}, ())
        for path in paths:
            Path(path).write_bytes(whole)
            assert growth.refresh(path, [path])
        growth.commit({path: growth.unread_bytes(path) for path in paths}, paths)
        growth.close()
    lakes.assert_as_one_run(folder, lake)


def test_a_state_with_any_changed_byte_is_not_used(tmp_path: Path) -> None:
    path, lake = tmp_path / "one.mqtt", tmp_path / "lake"
    for size in (-3, None):
        path.write_bytes(mqtt("one")[:size])
        run(lake, path)
    (found,) = list_inputs([str(path)]).inputs
    (state,) = read_lake(str(lake)).paths(OPEN_STATES)
    whole = Path(state).read_bytes()
    with Lake.open(str(lake)) as opened:
        for at in range(-1, len(whole), 5):
            data = bytearray(whole)
            data[at] ^= at >= 0
            Path(state).write_bytes(data)
            states = states_of(opened, found.path)
            growing = restored(
                Part(found.path, found.format, found.files, states), GrowthSettings()
            )
            growing.close()
            assert growing.replaces == (at >= 0)


@pytest.mark.parametrize("table", ["packets_mqtt", "ledger"])
def test_a_damaged_file_that_a_run_rewrites_is_named(tmp_path: Path, table: str) -> None:
    """A copy would have a checksum of its own, which hides the damage."""
    folder, lake = tmp_path / "in", tmp_path / "lake"
    paths = inputs(folder)
    run(lake, folder)
    (path,) = read_lake(str(lake)).paths(table)
    whole = Path(path).read_bytes()
    for at in (len(whole) // 3, len(whole) - 20):
        data = bytearray(whole)
        data[at] ^= 1
        Path(path).write_bytes(data)
        paths[0].write_bytes(mqtt("other"))
        with pytest.raises(LakeDamaged, match="see 'wireyard lake repair'"):
            run(lake, folder)
    Path(path).write_bytes(whole)
    run(lake, folder)
    lakes.assert_as_one_run(folder, lake)
