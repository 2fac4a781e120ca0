"""Values between tasks: what is written is read, as the type that the reader expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.layers.mqtt.test_steps import at, client, subscribed
from wireyard.arrays import Ints
from wireyard.captures.records import Context, Interface
from wireyard.layers.mqtt.deliveries.columns import Topics
from wireyard.layers.mqtt.packets import KnownStream
from wireyard.layers.mqtt.records import Attempt, ConnectionRecord, Message, Will
from wireyard.layers.mqtt.tracked import Clients
from wireyard.layers.stages import Key, Order
from wireyard.pipeline import replacing
from wireyard.pipeline.decoding import task as bronze
from wireyard.pipeline.decoding.indexing import HeaderPiece
from wireyard.pipeline.decoding.task import AnyPiece, Piece
from wireyard.pipeline.facts import mqtt as mqtt_facts
from wireyard.pipeline.facts import rmp as rmp_facts
from wireyard.pipeline.facts import stage, tasks
from wireyard.pipeline.facts.tasks import derive_groups
from wireyard.pipeline.inputs.captures import CapturePart
from wireyard.pipeline.typed_json import first_parameter, from_json, to_json


class Pair(NamedTuple):
    name: str
    number: int | None = None


@dataclass(frozen=True)
class Whole:
    pair: Pair
    data: bytes = b""
    names: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Leaf:
    name: str


@dataclass(slots=True, eq=False)
class Node:
    leaves: list[Leaf]


def again(value: Any, kind: Any) -> Any:
    return from_json(to_json(value, kind), kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, str | None),
        ("a\udc80\0\u2028", str),
        (1 << 80, int),
        (1.5, float),
        (b"\0\xff", bytes),
        ((1, "a", b"x", None), Key),
        ((1, "a"), Order),
        ([Pair("a"), Pair("b", 2)], list[Pair]),
        ((Pair("a"),), Sequence[Pair]),
        ((Pair("a"),), Iterable[Pair]),
        ((), tuple[Pair, ...]),
        (Whole(Pair("a", 1), b"x", frozenset({"y"})), Whole),
        ({("a", 1): [Whole(Pair("b"))]}, Mapping[tuple[str, int], list[Whole]]),
        (Counter({"a": 2}), Counter[str]),
        ({("a", 1)}, set[tuple[str, int]]),
        ([Pair("a"), Whole(Pair("b")), None], list[Pair | Whole | None]),
        ((3, (Piece("s", "f", 0, 1, 2, True, 3),)), first_parameter(bronze.write_task)),
        (
            CapturePart("s", ("f",), None, (), (), 0, 2, 9, False, (("p", 1),), (("h", 1, "f"),)),
            AnyPiece,
        ),
        (HeaderPiece("s", 0, 9, 2, Context(True, (Interface(1, 2, 3),), 16), False, 7), AnyPiece),
        (HeaderPiece("s", 0, 9, 2, None, False, 7), AnyPiece),
    ],
)  # fmt: skip
def test_what_is_written_is_read(value: Any, kind: Any) -> None:
    found = again(value, kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "kind",
    [
        Clients, Topics, Will, KnownStream, dict[str, int], mqtt_facts._Connections,
        mqtt_facts._Known, mqtt_facts._Rest, mqtt_facts._Streams, mqtt_facts._Wills,
        first_parameter(derive_groups), first_parameter(stage._delay), stage._Parts,
        first_parameter(partial(tasks._split)), tasks.Counted,
        first_parameter(replacing._split_file), rmp_facts._Records,
    ],
)  # fmt: skip
def test_all_that_is_passed_on_has_a_form(kind: Any) -> None:
    to_json([], list[kind])


def test_arrays_can_be_written_to() -> None:
    for array in (np.arange(3) * (1 << 60), np.arange(0), np.arange(6, dtype=np.int32)[::2]):
        found = again(array, Ints)
        assert (found.tolist(), found.dtype) == (array.tolist(), np.int64)
        found += 1
    table = pa.table({"x": ["a", None]})
    name, found = again(("a", table), tuple[str, pa.Table])
    assert name == "a"
    assert found.equals(table)


def test_numbers_of_arrays_are_numbers() -> None:
    assert again([Pair("a", np.int64(7))], list[Pair]) == [Pair("a", 7)]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="object has no form in JSON"):
        to_json([object()], list[str])


def test_the_same_object_is_the_same_again() -> None:
    leaf = Leaf("leaf")
    node, leaves = again((Node([leaf, Leaf("leaf"), leaf]), [leaf]), tuple[Node, list[Leaf]])
    first, other, last = node.leaves
    assert first is last is leaves[0] is not other
    assert [each.name for each in node.leaves] == ["leaf"] * 3


def test_records_of_layers_are_as_they_were() -> None:
    connection = ConnectionRecord(
        client("c"), at(1), True, None, False, 9, accepted=at(2), served_as=("c", "$share/g/t")
    )
    message = Message(
        "publish", at(1), client("c"), "t", b"x", 1, True, b"x", 9, 5, "r", b"d", True, at(2), None,
        7, [at(3), at(4)], 2,
    )  # fmt: skip
    attempt = Attempt(at(1), client("c"), "t", b"x", 2, True, True, at(5), is_extra=True)
    for one in (connection, message, attempt, subscribed("c", "t", 1, 2)):
        found = again(one, type(one))
        assert type(found) is type(one)
        for each in fields(one):
            value = getattr(found, each.name)
            assert value == getattr(one, each.name)
            assert type(value) is type(getattr(one, each.name))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", str),
        ("[1,[]]", str),
        ("[null,[]]", str),
        ("[true,[]]", str),
        ('["x"]', str),
        ('["x",[]]', int),
        ('["x",[]]', bytes),
        ('[{},[]]', list[str]),
        ('[["x",[]],[]]', Pair),
        ('[["x"],[]]', Pair),
        ('[["x",1,2],[]]', Pair),
        ('[[7,"x"],[]]', Pair | Whole),
        ('[["Whole","x"],[]]', Pair | Whole),
        ("[0,[]]", Node),
        ("[-1,[[]]]", Node),
        ('["0",[]]', Node),
        ("[0,[[[0]]]]", Node),  # of another type
        ("[0,[[[1]],[7]]]", Node),
        ('["AAA=",[]]', Ints),
        ('["AAAA",[]]', pa.Table),
        ("[" * 100_000, list[str]),
        ('[[[["x",1],2]],[]]', dict[str, int]),
        ('[[["x"]],[]]', dict[str, int]),
    ],
)  # fmt: skip
def test_anything_else_is_an_error(text: str, kind: Any) -> None:
    with pytest.raises(ValueError, match="it is no value of"):
        from_json(text, kind)


def test_types_without_a_form() -> None:
    for kind in (Any, object, list[Any], Pair | Any, type):
        with pytest.raises(TypeError):
            to_json("x", kind)
