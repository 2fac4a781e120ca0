"""Conditions: what is typed means what it says, or is refused with the place."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import wireyard
from wireyard import mqtt
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.layers.mqtt.deliveries.topics import matches
from wireyard.streams.conditions import bind, parse
from wireyard.streams.plan import make_plan

MQTT, JMQ = get_format("mqtt"), get_format("jmq")
TABLE = pa.RecordBatch.from_pydict(
    {
        "topic": ["a/b", "c, (d)", None, "and", "x'y", "a/b"],
        "qos": pa.array([0, 1, None, 2, 0, 1], pa.int32()),
        "retain": [True, False, None, False, True, None],
    }
)


def matching(where: Any) -> list[int]:
    mask = bind(parse(where), MQTT, captured=False).mask
    rows = range(TABLE.num_rows)
    if mask is None:
        return [*rows]
    return [row for row, holds in zip(rows, mask(TABLE).to_pylist(), strict=True) if holds]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("topic == a/b", [0, 5]),
        ("  topic==a/b  ", [0, 5]),
        ("topic == c, (d)", [1]),
        ("(topic == c, (d))", [1]),
        ("topic == 'and'", [3]),
        ("topic == and", [3]),
        (r"topic == 'x\'y'", [4]),
        ('topic == "x\'y" or qos == 2', [3, 4]),
        ("topic in a/b, and", [0, 3, 5]),
        ("topic in (a/b, 'c, (d)') AND NOT qos == 0", [1, 5]),
        ("NOT topic in a/b", [1, 3, 4]),
        ("topic != a/b", [1, 3, 4]),
        ("qos == 0 OR qos == 1 AND topic == a/b", [0, 4, 5]),
        ("(qos == 0 OR qos == 1) AND topic == a/b", [0, 5]),
        ("not (qos == 0 or retain == TRUE)", [1, 3]),
        ("NOT NOT qos >= 0x1", [1, 3, 5]),
        ("((((qos < 1))))", [0, 4]),
        ("retain == true", [0, 4]),
        ("destination == a/b", [0, 5]),
    ],
)
def test_texts_mean_what_they_say(text: str, rows: list[int]) -> None:
    assert matching(text) == rows


TOPICS = ["plant", "plant/1", "plant/1/state", "plants", "/1", "$SYS/1", "$SYS", "", None, "a+/#b"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("topic == plant/#", ["plant", "plant/1", "plant/1/state"]),
        ("topic == plant/+", ["plant/1"]),
        ("topic == plant/+/#", ["plant/1", "plant/1/state"]),
        ("topic == +/1", ["plant/1", "/1"]),
        ("topic == +/+/state", ["plant/1/state"]),
        ("topic == $SYS/#", ["$SYS/1", "$SYS"]),
        ("topic == +", ["plant", "plants", ""]),
        ("topic != #", ["$SYS/1", "$SYS"]),
        ("topic == a+/#b", ["a+/#b"]),
        ("topic contains lant/1", ["plant/1", "plant/1/state"]),
        ("topic contains +/#", ["a+/#b"]),
        ("topic ~ ^plant.*[1e]$", ["plant/1", "plant/1/state"]),
        ("NOT topic CONTAINS plant", ["/1", "$SYS/1", "$SYS", "", "a+/#b"]),
        ("topic~s$ or topic contains 'S/'", ["plants", "$SYS/1"]),
    ],
)
def test_topics_are_found_by_filter_part_and_pattern(text: str, found: list[str]) -> None:
    rows = pa.RecordBatch.from_pydict({"topic": TOPICS})
    mask = bind(parse(text), MQTT, captured=False).mask
    assert mask is not None
    assert [
        name for name, holds in zip(TOPICS, mask(rows).to_pylist(), strict=True) if holds
    ] == found


@pytest.mark.parametrize(
    "filter", ["#", "+", "+/#", "a/#", "a/+", "+/b/#", "a/b", "/+", "$x/#", "+/"]
)
def test_filters_match_as_subscriptions_do(filter: str) -> None:
    names = [
        "/".join(levels)
        for size in (1, 2, 3)
        for levels in product(["a", "b", "$x", ""], repeat=size)
    ]
    rows = pa.RecordBatch.from_pydict({"topic": names})
    mask = bind(parse([("topic", "==", filter)]), MQTT, captured=False).mask
    assert mask is not None
    assert mask(rows).to_pylist() == [matches(filter, name) for name in names]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-21T20:22:47.285508001Z", 1_795_292_567_285_508_001),
        ("2026-11-21 20:22:47.5", 1_795_292_567_500_000_000),
        ("2026-11-21T20:22Z", 1_795_292_520_000_000_000),
        ("2026-11-21", 1_795_219_200_000_000_000),
        ("1969-12-31T23:59:59.75Z", -250_000_000),
        ("17", 17),
    ],
)
def test_times_are_written_as_they_are_printed(text: str, ns: int) -> None:
    rows = pa.RecordBatch.from_pydict({"captured_ns": [ns - 1, ns, ns + 1, None]})
    mask = bind(parse(f"captured_ns == {text}"), MQTT, captured=True).mask
    assert mask is not None and mask(rows).to_pylist() == [False, True, False, None]


@pytest.mark.parametrize("text", ["yesterday", "2026-11-21T20:22:47+01:00", "20:22", "2026-13-01"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="captured_ns is a time, such as 2026-"):
        bind(parse(f"captured_ns > {text}"), MQTT, captured=True)


def test_several_have_to_hold_all() -> None:
    assert matching(["topic == a/b OR topic == and", ("qos", ">", 0), "qos < 2"]) == [5]
    assert matching(()) == [0, 1, 2, 3, 4, 5]


def kleene(tree: Any, row: dict[str, Any]) -> bool | None:
    """Judge a tree of tuples by three values."""
    if tree[0] == "not":
        inner = kleene(tree[1], row)
        return None if inner is None else not inner
    if tree[0] in ("and", "or"):
        parts = [kleene(part, row) for part in tree[1:]]
        decides = tree[0] == "or"
        return decides if decides in parts else None if None in parts else not decides
    name, sign, value = tree
    if row[name] is None:
        return None
    if sign == "in":
        return row[name] in value
    judge: Callable[[Any, Any], bool] = getattr(
        operator, {"==": "eq", "!=": "ne", "<": "lt", ">=": "ge"}[sign]
    )
    return judge(row[name], value)


def some_tree(rng: Random, depth: int) -> tuple[Any, str]:
    kind = rng.random()
    if depth and kind < 0.2:
        tree, text = some_tree(rng, depth - 1)
        return ("not", tree), f"NOT ({text})" if tree[0] in ("and", "or") else f"not {text}"
    if depth and kind < 0.7:
        word = rng.choice(["and", "or"])
        parts = [some_tree(rng, depth - 1) for _ in range(rng.randrange(2, 4))]
        texts = [f"({text})" if tree[0] in ("and", "or") else text for tree, text in parts]
        return (word, *(tree for tree, _ in parts)), f" {word.upper()} ".join(texts)
    if rng.random() < 0.5:
        value = rng.choice(["a/b", "and", "c, (d)", "x'y"])
        quoted = '"' + value + '"'
        if rng.random() < 0.3:
            return ("topic", "in", [value, "b"]), f"topic in ({quoted}, b)"
        sign = rng.choice(["==", "!="])
        return ("topic", sign, value), f"topic {sign} {quoted}"
    sign, number = rng.choice(["==", "!=", "<", ">="]), rng.randrange(3)
    return ("qos", sign, number), f"qos {sign} {number}"


@pytest.mark.parametrize("seed", range(60))
def test_any_tree_is_judged_as_sql_does(seed: int) -> None:
    tree, text = some_tree(Random(seed), 4)
    rows = TABLE.to_pylist()
    assert matching(text) == [at for at, row in enumerate(rows) if kleene(tree, row) is True]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 1),
        ("topic", 1),
        ("topic == a AND", 15),
        ("(topic == a", 1),
        ("topic == a)", 11),
        ("topic == a AND OR qos == 1", 16),
        ("topic = a", 7),
        ("qos == 1 and qos=2", 17),
        ("topic ~ '('", 1),
        ("qos ~ 1", 1),
        ("qos == 1 and retain contains u", 14),
        (f"topic ~ {'a' * 1001}", 1),
        ("qos == 1 and (qos == 2 or )", 27),
        ("topic == 'a' b", 14),
        ("topic in (a, b", 15),
        ("qos == 1 OR qos == much", 13),
        ("qos == 99999999999999999999", 1),
        ("payload == x", 1),
        ("topic == a AND tpoic == b", 16),
        ("(" * 70 + "qos == 1" + ")" * 70, 65),
        (" OR ".join(["qos == 1"] * 1001), 12001),
    ],
)
def test_what_is_wrong_is_pointed_at(text: str, place: int) -> None:
    with pytest.raises(UsageError) as found:
        bind(parse(text), MQTT, captured=False, lenient=True)
    assert f", character {place}: " in str(found.value)


def test_a_text_of_many_comparisons_is_read() -> None:
    assert matching(" OR ".join(["qos == 1"] * 1000)) == [1, 5]


def test_a_format_without_the_column_matches_nothing() -> None:
    found = bind(parse("client_id == c AND topic == t"), JMQ, captured=False, lenient=True)
    assert [one.name for one in found.columns] == ["destination"]
    assert found.missing == ("client_id",) and not found.never
    assert bind(parse("NOT client_id == c"), JMQ, captured=False, lenient=True).never
    with pytest.raises(UsageError, match="jmq has no column 'client_id'"):
        make_plan(JMQ, where="client_id == c")
    with pytest.raises(UsageError, match="no format has a column 'tpoic'; there is 'topic'"):
        make_plan(JMQ, where="tpoic == c", lenient=True)


def test_python_takes_texts() -> None:
    packets = [mqtt.Publish(topic=f"t/{at}", payload=b"x" * at) for at in range(5)]
    data = b"".join(map(wireyard.encode, [mqtt.Connect(client_id="c"), *packets]))
    where = "destination in t/1, t/3 OR NOT payload_size < 4"
    table = wireyard.read(data, columns=["topic"], where=where)
    assert table["topic"].to_pylist() == ["t/1", "t/3", "t/4"]
    table = wireyard.read(data, columns=["topic"], where=[where, ("payload_size", ">", 1)])
    assert table["topic"].to_pylist() == ["t/3", "t/4"]
