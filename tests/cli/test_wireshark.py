"""Options that tshark has: display filters, fields, and -o for where the output goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.results import Run, one_line, rows_of
from wireyard.cli.decoding.wireshark import FIELDS, condition_of
from wireyard.formats import get_format
from wireyard.formats.rows import pick_columns

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"


@pytest.mark.parametrize(
    ("filter", "where"),
    [
        ("mqtt.topic contains prices", "topic contains prices"),
        ('mqtt.topic contains "a && b.c"', 'topic contains "a && b.c"'),
        ("mqtt.qos eq 1 && !(mqtt.retain == 1)", "qos == 1 AND NOT retain == true"),
        ("mqtt.msgtype == 3 || frame.number < 9", "packet_type == 3 OR frame < 9"),
        ("mqtt.topic matches '^shop/[ao]' and mqtt.qos > 0", "topic ~ ^shop/[ao] AND qos > 0"),
    ],
)  # fmt: skip
def test_a_display_filter_is_the_same_condition(filter: str, where: str, run: Run) -> None:
    words = ["decode", CAPTURE, "--format", "mqtt", "--columns", "frame"]
    wanted = rows_of(run(*words, "--where", where))
    assert rows_of(run(*words, "-Y", filter)) == wanted
    assert wanted or "b.c" in filter


def test_every_field_has_a_column() -> None:
    known = {column.name for column in pick_columns(get_format("mqtt"), None, captured=True)}
    assert {*FIELDS.values()} <= known
    assert condition_of("topic == plant.x AND qos == 1") == "topic == plant.x AND qos == 1"


def test_fields_are_columns_of_text(run: Run) -> None:
    names = ("frame.time_epoch", "mqtt.topic", "mqtt.retain", "mqtt.msg", "length")
    fields = [word for name in names for word in ("-e", name)]
    where = ["-Y", "mqtt.topic == shop/prices/apples", "-c", "1"]
    lines = run("decode", CAPTURE, *where, "-T", "fields", *fields).stdout.splitlines()
    assert lines == ["1795292556.721286000\tshop/prices/apples\t1\t322e343020e282ac\t93"]
    options = ["-E", "header=y", "-E", "separator=,"]
    lines = run("decode", CAPTURE, *where, "-T", "fields", *fields, *options).stdout.splitlines()
    assert lines[0] == ",".join(names) and lines[1].count(",") == 4


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-Y", "mqtt.topik == a"], "is no field that has a column; there is 'mqtt.topic'"),
        (["-T", "fields"], "-T fields and -e FIELD need each other"),
        (["-e", "mqtt.topic"], "-T fields and -e FIELD need each other"),
        (["-T", "fields", "-e", "topic", "-E", "quote=d"], "-E quote: there are header=y and"),
        (["-Y", "mqtt.topic = a"], "= is no operator; == compares"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words: list[str], problem: str, run: Run) -> None:
    result = run("decode", CAPTURE, *words)
    assert result.exit_code == 2 and problem in one_line(result)


def test_o_writes_as_w_does(run: Run, tmp_path: Path) -> None:
    for option in ("-o", "-w"):
        target = tmp_path / f"{option}.csv"
        assert run("decode", CAPTURE, "--format", "mqtt", option, target).exit_code == 0
    assert (tmp_path / "-o.csv").read_bytes() == (tmp_path / "-w.csv").read_bytes()
