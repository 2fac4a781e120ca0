"""Values of declared types as JSON: what tasks pass on besides tables.

Files between tasks are in the folder of the lake, where others may write. So they have data only,
and the reader, not the file, decides the types of what it makes: a value is read as the type that
its reader expects, and anything else is an error. Types are None, numbers, texts, bytes, tuples,
sequences, sets, mappings, named tuples, dataclasses, unions of these, arrays of integers, and Arrow
tables. A list stays a list; any other sequence becomes a tuple.

Dataclasses without an equality of their own are the same object wherever they are referred to, as
records of layers are compared by identity. They are written once, and referred to by number.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa


def to_json(value: Any, kind: Any) -> str:
    """Return a value of a type as JSON."""
    objects = _Objects([])
    written = _form(kind).written(value, objects)
    return json.dumps([written, objects.texts], separators=(",", ":"), default=_number)


def from_json(text: str, kind: Any) -> Any:
    """Return the value of a type from its JSON; raise `ValueError` if it is no such value."""
    try:
        written, objects = json.loads(text)
        return _form(kind).read(written, _Objects(objects))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"it is no value of {kind}: {error}") from None


def first_parameter(function: Callable[..., Any]) -> Any:
    """Return the type of the first parameter of a function."""
    while isinstance(function, partial):
        function = function.func
    return next(iter(get_type_hints(function).values()))


def _number(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    if not isinstance(value, np.generic):
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return value.item()


class _Objects:
    """Objects that are written once, by number."""

    def __init__(self, texts: list[Any]) -> None:
        self.texts = texts
        self._numbers: dict[int, int] = {}
        self._made: dict[int, Any] = {}

    def number(self, value: Any, write: Callable[[], Any]) -> int:
        """Return the number of an object, and write it if it is new."""
        number = self._numbers.get(id(value))
        if number is None:
            written = write()  # which may number objects within it
            number = self._numbers[id(value)] = len(self.texts)
            self.texts.append(written)
        return number

    def object(self, number: int, kind: type, read: Callable[[Any], Any]) -> Any:
        """Return the object of a number, which is made when it is first referred to."""
        if number not in self._made:
            if type(number) is not int or number < 0:
                raise ValueError("an object without a number")
            self._made[number] = read(self.texts[number])
        made = self._made[number]
        if type(made) is not kind:
            raise ValueError(f"object {number} is no {kind.__name__}")
        return made


_Convert = Callable[[Any, _Objects], Any]


class _Form(NamedTuple):
    """The conversions of a type.

    `written` is `_same` for a value that JSON represents as it is.
    """

    written: _Convert
    read: _Convert
    scalars: frozenset[type] = frozenset()
    """The types of JSON that it may have, if they are the only ones."""


def _same(value: Any, _: _Objects) -> Any:
    return value


_SCALARS: Final[Mapping[Any, frozenset[type]]] = {
    NoneType: frozenset({NoneType}),
    str: frozenset({str}),
    # Columns have flags as numbers of 0 and 1, and numbers without a fraction.
    bool: frozenset({bool, int}),
    int: frozenset({int, bool}),
    float: frozenset({float, int}),
}


@cache
def _form(kind: Any) -> _Form:
    """Return the form of a type; raise `TypeError` if it has none."""
    if kind in _SCALARS:
        return _scalar(_SCALARS[kind])
    origin, of = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return _union(of)
    if origin is bytes:
        return _Form(lambda value, _: b64encode(value).decode(), lambda value, _: b64decode(value))
    if origin is np.ndarray:
        return _Form(_array_written, _array_read)
    if origin is pa.Table:
        return _Form(_table_written, _table_read)
    if hasattr(origin, "_fields"):
        return _struct(origin._make, get_type_hints(origin).values())
    if is_dataclass(origin):
        return _dataclass(origin)
    if origin is tuple and of[1:] != (...,):
        return _struct(tuple, of)
    if origin is Counter:
        return _mapping(Counter, of[0], int)
    if origin in (dict, Mapping):
        return _mapping(dict, of[0], of[1])
    if origin in (set, frozenset):
        return _several(origin, of[0])
    if origin in (list, tuple, Sequence, Iterable):
        return _several(list if origin is list else tuple, of[0])
    raise TypeError(f"{kind} has no form in JSON")


def _scalar(types: frozenset[type]) -> _Form:
    def read(value: Any, _: _Objects) -> Any:
        if type(value) not in types:
            raise ValueError(f"{value!r} is of another type")
        return value

    return _Form(_same, read, types)


def _union(kinds: Sequence[Any]) -> _Form:
    """Return the form of a union: one or none is as it is, others have the number of their type."""
    members = [kind for kind in kinds if kind is not NoneType]
    if all(kind in _SCALARS for kind in members):
        return _scalar(frozenset().union(*(_SCALARS[kind] for kind in kinds)))
    forms = list(map(_form, members))
    places = {get_origin(kind) or kind: place for place, kind in enumerate(members)}
    by_place = dict(enumerate(forms))

    def written(value: Any, objects: _Objects) -> Any:
        if value is None or len(forms) == 1:
            return value if value is None else forms[0].written(value, objects)
        place = places[type(value)]
        return place, forms[place].written(value, objects)

    def read(value: Any, objects: _Objects) -> Any:
        if value is None and NoneType in kinds:
            return None
        if len(forms) == 1:
            return forms[0].read(value, objects)
        place, one = _list(value)
        return by_place[place].read(one, objects)

    is_same = len(forms) == 1 and forms[0].written is _same
    return _Form(_same if is_same else written, read)


def _several(make: Callable[[Iterable[Any]], Any], kind: Any) -> _Form:
    """Return the form of a list, a tuple of any length or a set: a list."""
    one = _form(kind)
    is_set = make in (set, frozenset)

    def written(values: Any, objects: _Objects) -> Any:
        return [one.written(value, objects) for value in values]

    def read(values: Any, objects: _Objects) -> Any:
        return make(one.read(value, objects) for value in _list(values))

    return _Form(_same if one.written is _same and not is_set else written, read)


def _mapping(make: Callable[[Any], Any], key: Any, value: Any) -> _Form:
    """Return the form of a mapping: a list of pairs."""
    pairs = _several(list, tuple[key, value])

    def written(mapping: Any, objects: _Objects) -> Any:
        return pairs.written(list(mapping.items()), objects)

    def read(values: Any, objects: _Objects) -> Any:
        return make(dict(pairs.read(values, objects)))

    return _Form(written, read)


def _struct(make: Callable[[Iterable[Any]], Any], kinds: Iterable[Any]) -> _Form:
    """Return the form of a tuple with a type for each value: a list."""
    forms = list(map(_form, kinds))
    is_plain = all(form.scalars for form in forms)
    checked = set[tuple[type, ...]]()
    """Types that were found right before: most tuples have the types of another one."""

    def written(values: Any, objects: _Objects) -> Any:
        pairs = zip(forms, values, strict=True)
        return [form.written(value, objects) for form, value in pairs]

    def read(values: Any, objects: _Objects) -> Any:
        types = tuple(map(type, _list(values)))
        if types in checked:
            return make(values)
        pairs = zip(forms, values, strict=True)
        made = make([form.read(value, objects) for form, value in pairs])
        if is_plain:
            checked.add(types)
        return made

    return _Form(_same if all(form.written is _same for form in forms) else written, read)


def _dataclass(kind: Any) -> _Form:
    """Return the form of a dataclass: a list of its values, or a number if it has no equality."""
    names = [field.name for field in fields(kind)]
    hints = get_type_hints(kind)
    values = _struct(
        lambda found: kind(**dict(zip(names, found, strict=True))), [hints[name] for name in names]
    )

    def written(value: Any, objects: _Objects) -> Any:
        return values.written([getattr(value, name) for name in names], objects)

    def written_once(value: Any, objects: _Objects) -> Any:
        return objects.number(value, partial(written, value, objects))

    def read_once(number: Any, objects: _Objects) -> Any:
        return objects.object(number, kind, lambda found: values.read(found, objects))

    has_equality = kind.__eq__ is not object.__eq__
    return _Form(written, values.read) if has_equality else _Form(written_once, read_once)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("no list")
    return value


def _array_written(values: Any, _: _Objects) -> str:
    return b64encode(np.ascontiguousarray(values, np.int64).tobytes()).decode()


def _array_read(text: Any, _: _Objects) -> Any:
    # Of a bytearray, so that kernels may be given it: they take arrays that can be written.
    return np.frombuffer(bytearray(b64decode(text)), np.int64)


def _table_written(table: pa.Table, _: _Objects) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return b64encode(sink.getvalue()).decode()


def _table_read(text: Any, _: _Objects) -> pa.Table:
    table = pa.ipc.open_stream(b64decode(text)).read_all()
    table.validate(full=True)
    return table
