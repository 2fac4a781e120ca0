"""Inputs of a run: each file once, whatever its names, and files that vanish."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.lakes import HELLO, Silent, message, packets_equal, rows, run
from wireyard.errors import SourceError
from wireyard.lake.writer import Lake
from wireyard.pipeline.decoding import task as bronze
from wireyard.pipeline.inputs import finding as inputs
from wireyard.pipeline.inputs.finding import (
    InputOptions,
    examine_files,
    is_unchanged,
    list_inputs,
)
from wireyard.pipeline.inputs.listing import list_files
from wireyard.pipeline.inputs.options import Options
from wireyard.pipeline.inputs.watching import Watched
from wireyard.pipeline.job import fill_lake
from wireyard.pipeline.report import Report
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def stream(number: int) -> bytes:
    return HELLO + message(number)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    (folder / "one.jmq").write_bytes(stream(1))
    (folder / "below" / "two.jmq").write_bytes(stream(2))
    return folder


def read(lake: Path, *inputs: Path, **how: Any) -> Report:
    """Do one run, in this process."""
    with Lake.open(str(lake)) as opened:
        options = InputOptions(**how)
        found = list_inputs([str(path) for path in inputs], options, inside=str(lake)).inputs
        return fill_lake(opened, found, None, Silent())


def sources(lake: Path) -> list[str]:
    return [Path(source).name for (source,) in rows(lake, "ledger", "source")]


def test_a_link_to_a_folder_that_it_is_in_leads_nowhere(folder: Path) -> None:
    (folder / "below" / "loop").symlink_to(folder)
    (folder / "again").symlink_to(folder / "below")
    found = list_files(Options(paths=(str(folder),), recursive=True))
    assert [Path(file.path).name for file in found] == ["two.jmq", "one.jmq"]
    assert len(list_inputs([str(folder)]).inputs) == 2


def test_links_out_of_a_folder_are_not_followed(folder: Path, tmp_path: Path) -> None:
    far = tmp_path / "far" / "deep"
    far.mkdir(parents=True)
    for name in ("three.jmq", "four.jmq"):
        (far / name).write_bytes(stream(3))
    (folder / "file.jmq").symlink_to(far / "three.jmq")
    (folder / "below" / "tree").symlink_to(far.parent)
    (folder / "inner").symlink_to(folder / "below")
    note = "is a link out of its folder, which is not followed; name it to read it"
    listing = list_inputs([str(folder)])
    assert [Path(each.path).name for each in listing.inputs] == ["two.jmq", "one.jmq"]
    assert sorted(listing.left_out) == [
        f"{folder / name}: {note}" for name in ("below/tree", "file.jmq")
    ]
    named = [str(folder / "file.jmq"), str(folder / "below" / "tree")]
    assert len(list_inputs([*named, str(folder)]).inputs) == 5
    assert len(list_inputs(named).inputs) == 3


def test_a_link_to_a_folder_is_a_folder_to_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    listing = list_inputs([str(tmp_path / "link")])
    assert (len(listing.inputs), listing.left_out) == (2, [])


def test_a_watched_folder_is_not_left_by_its_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.pcap").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(20))
    (folder / "link.pcap").symlink_to(tmp_path / "other.pcap")
    watched = Watched([str(folder)], str(tmp_path / "lake"), rotated=True)
    watched.poll()
    assert sorted(Path(file.path).name for file in watched.changed()) == [
        "link.pcap", "one.jmq", "two.jmq",
    ]  # fmt: skip
    found = examine_files(watched.changed(), InputOptions(), watched.roots)
    assert sorted(Path(each.path).name for each in found.inputs) == ["one.jmq", "two.jmq"]
    assert len(found.left_out) == 1


def test_links_are_the_file_that_they_stand_for(folder: Path, tmp_path: Path) -> None:
    (folder / "soft.jmq").symlink_to(folder / "one.jmq")
    os.link(folder / "one.jmq", folder / "zhard.jmq")
    report = read(tmp_path / "lake", folder)
    assert sources(tmp_path / "lake") == ["two.jmq", "one.jmq"]
    assert sorted(report.notes) == [
        f"{folder / name}: is the same as {folder / 'one.jmq'}"
        for name in ("soft.jmq", "zhard.jmq")
    ]
    packets_equal(tmp_path / "lake", [folder / "one.jmq", folder / "below" / "two.jmq"])


def test_a_file_that_the_lake_has_by_another_name_is_not_read(folder: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    read(lake, folder)
    os.link(folder / "one.jmq", tmp_path / "other.jmq")
    report = read(lake, tmp_path / "other.jmq")
    assert report.notes == [f"{tmp_path / 'other.jmq'}: is the same as {folder / 'one.jmq'}"]
    assert (report.unchanged, report.added) == (0, [])
    # A log that was moved away is read by its new name once the old name is another file.
    (folder / "one.jmq").rename(folder / "one.jmq.1")
    (folder / "one.jmq").write_bytes(stream(3))
    report = read(lake, folder)
    assert report.replaced == 1
    assert sources(lake) == ["two.jmq", "one.jmq", "one.jmq.1"]


def test_another_name_counts_where_the_held_one_has_other_bytes(
    folder: Path, tmp_path: Path
) -> None:
    """A lake that follows may read the other name before what has replaced the held one."""
    lake, one, other = tmp_path / "lake", folder / "one.jmq", tmp_path / "other.jmq"
    read(lake, folder)
    os.link(one, other)
    one.unlink()
    one.write_bytes(stream(3))
    assert [each.source for each in read(lake, other).added] == [str(other)]
    assert read(lake, folder).replaced == 1
    assert sources(lake) == ["two.jmq", "one.jmq", "other.jmq"]
    copy = tmp_path / "copy.jmq"
    by_content = tmp_path / "by-content"
    read(by_content, folder, by_content=True)
    shutil.copy(one, copy)
    one.write_bytes(stream(3) + stream(4))
    assert [each.source for each in read(by_content, copy, by_content=True).added] == [str(copy)]


def test_copies_are_known_by_content_if_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    shutil.copy2(folder / "one.jmq", folder / "copy.jmq")
    report = read(tmp_path / "plain", folder)
    assert len(report.added) == 3
    report = read(tmp_path / "lake", folder, by_content=True)
    assert len(report.added) == 2
    assert report.notes == [f"{folder / 'one.jmq'}: is the same as {folder / 'copy.jmq'}"]
    os.utime(folder / "copy.jmq")
    again = read(tmp_path / "lake", folder, by_content=True)
    assert (again.added, again.unchanged) == ([], 2)


def test_files_of_a_rotated_capture_are_joined_once(examples: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(examples / "traffic.pcap", folder)
    (folder / "again.pcap").symlink_to(folder / "traffic.pcap")
    listing = list_inputs([str(folder)], rotated=True)
    assert [len(each.files) for each in listing.inputs] == [1]
    assert len(listing.left_out) == 1


def test_a_capture_that_did_not_change_is_not_opened(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(examples / "traffic.pcap", tmp_path))
    fresh = list_inputs([str(path)]).inputs[0]
    assert "kept" not in fresh.stamp  # another change may have the same time
    monkeypatch.setattr(inputs, "_SETTLED_NS", 0)
    (before,) = list_inputs([str(path)]).inputs
    examine = inputs._examine

    def opened(*given: Any) -> Any:
        raise AssertionError("was opened")

    monkeypatch.setattr(inputs, "_examine", opened)
    (found,) = list_inputs([str(path)], InputOptions(held=[before.stamp])).inputs
    assert found == before
    options = InputOptions(held=[{"files": [before.stamp]}])
    (found,) = list_inputs([str(path)], options, rotated=True).inputs
    assert found.stamp == {"files": [before.stamp]}
    with pytest.raises(AssertionError, match="was opened"):
        list_inputs([str(path)], InputOptions(by_content=True, held=[before.stamp]))

    monkeypatch.setattr(inputs, "_examine", examine)
    content, times = path.read_bytes(), path.stat()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (found,) = list_inputs([str(path)], InputOptions(held=[before.stamp])).inputs
    assert not is_unchanged(found.stamp, before.stamp)


@pytest.mark.parametrize("skip", [False, True])
def test_a_file_that_vanishes_before_it_is_examine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    listed = list_files

    def vanish(options: Options) -> Any:
        found = listed(options)
        (folder / "one.jmq").unlink()
        return found

    monkeypatch.setattr("wireyard.pipeline.inputs.finding.list_files", vanish)
    if not skip:
        with pytest.raises(SourceError):
            list_inputs([str(folder)])
        return
    listing = list_inputs([str(folder)], InputOptions(skip_missing=True))
    assert [Path(each.path).name for each in listing.inputs] == ["two.jmq"]
    assert listing.left_out == [f"{folder / 'one.jmq'}: is not there any more"]


@pytest.mark.parametrize("split_bytes", [1 << 20, 16 << 10])
@pytest.mark.parametrize("gone", ["one.jmq", "large.jmq", "traffic.pcap"])
def test_a_file_that_vanishes_before_it_is_read(
    folder: Path, examples: Path, tmp_path: Path, gone: str, split_bytes: int
) -> None:
    (folder / "large.jmq").write_bytes(HELLO + b"".join(map(message, range(400))))
    shutil.copy(examples / "traffic.pcap", folder)
    lake = tmp_path / "lake"
    with Lake.open(str(lake)) as opened:
        found = list_inputs([str(folder)]).inputs
        (folder / gone).unlink()
        how: dict[str, Any] = {"split_bytes": split_bytes}
        with pytest.raises(SourceError, match=gone):
            fill_lake(opened, found, None, Silent(), **how)
        report = fill_lake(opened, found, None, Silent(), **how, skip_missing=True)
    assert f"left out: {folder / gone}: is not there any more" in report.notes
    left = {"one.jmq", "large.jmq", "two.jmq", "traffic.pcap"} - {gone}
    assert set(sources(lake)) == left
    bare = {Path(source).name for (source,) in rows(lake, "packets_jmq", "source")}
    assert bare == left


def test_a_file_that_vanishes_while_it_is_read_is_a_failure(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = bronze.BronzeTask.write_batch

    def fail(self: Any, *given: Any) -> None:
        write(self, *given)
        (folder / "one.jmq").unlink(missing_ok=True)
        raise SourceError(f"{folder / 'one.jmq'}: cannot be read")

    monkeypatch.setattr(bronze.BronzeTask, "write_batch", fail)
    with Lake.open(str(tmp_path / "lake")) as opened:
        found = list_inputs([str(folder / "one.jmq")]).inputs
        with pytest.raises(SourceError):
            fill_lake(opened, found, None, Silent(), skip_missing=True)


def test_a_table_of_a_catalog_is_refused_in_one_line(spark: SparkSession, folder: Path) -> None:
    options = f"OPTIONS (path '{folder / 'one.jmq'}', protocol 'jmq')"
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW") as raised:
        spark.sql(f"CREATE TABLE traffic USING wireyard {options}")
    assert "keeps no options" in str(raised.value)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW traffic USING wireyard {options}")
    assert spark.sql("SELECT count(*) FROM traffic").first()[0] == 2  # type: ignore[index]


def test_an_input_is_read_by_executors_though_another_is_gone(
    folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    with Lake.open(str(tmp_path / "lake")) as opened:
        found = list_inputs([str(folder)]).inputs
        (folder / "one.jmq").unlink()
        fill_lake(opened, found, SparkEngine(lambda: spark), Silent(), skip_missing=True)
    assert sources(tmp_path / "lake") == ["two.jmq"]


def test_a_run_on_a_lake_of_before_reads_nothing_anew(
    folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    run(tmp_path / "lake", None, folder)
    # The number of a device may be another after the machine was started again.
    with Lake.open(str(tmp_path / "lake")) as opened:
        found = list_inputs([str(folder)]).inputs
        for each in found:
            each.stamp["file"][0] += 1
            assert is_unchanged(
                {"files": [each.stamp]}, {"files": [{**each.stamp, "file": [0, 0]}]}
            )
        report = fill_lake(opened, found, None, Silent())
    assert (report.unchanged, report.added) == (2, [])
