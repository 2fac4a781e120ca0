"""Payloads of batches and rows, opened by rules, as columns of their own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from wireyard.errors import UsageError
from wireyard.formats.base import Format, Row
from wireyard.layout import Column
from wireyard.payloads.decoders import PayloadError
from wireyard.payloads.rules import Rule

__all__ = ["OPENED", "PAYLOADS", "ROW_COLUMNS", "PayloadColumns", "PayloadTable"]

OPENED = (
    Column("payload_decoder", "string", "the decoder whose rule is for the message; null if none"),
    Column("payload_error", "string", "why that could not decode it; null if it could"),
    Column("payload_json", "string", "what it carries, as JSON; null where a column has it typed"),
)
"""The columns that rows have besides where there are rules."""

ROW_COLUMNS = (OPENED[0], OPENED[1], Column("payload_value", "json", "what it carries"))
"""The same of rows that are shown one by one, where the value keeps its structure."""

PAYLOADS = pa.schema(
    [
        ("source", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("captured_ns", pa.int64()),
        ("frame", pa.int64()),
        ("destination", pa.string()),
        ("decoder", pa.string()),
        ("error", pa.string()),
        ("value", pa.string()),
    ]
)
"""The table ``payloads``, a row a packet that there is a rule for. The first columns are those of
its message; `value` is what the payload carries as JSON, null where `error` says why not."""

_SEPARATORS = {"mqtt": "/"}
_MOST_DESTINATIONS = 100_000
"""Whose rules are kept: a capture may have ever new topics."""


class PayloadColumns:
    """Opens the payloads of one format; decoders with a schema have a column of their own.

    That is called ``payload_NAME`` and typed; what those without give is JSON text. The bytes stay
    where they were.
    """

    def __init__(self, format: Format, rules: Sequence[Rule]) -> None:
        own = [column.name for column in format.columns]
        self._body = format.body
        self._destination = next((one for one in ("topic", "destination") if one in own), None)
        self._separator = _SEPARATORS.get(format.name, ".")
        self._rules = rules if self._destination is not None else ()
        self._by_properties = "properties" in own and any(rule.properties for rule in self._rules)
        self._choices: dict[str, list[Rule]] = {}
        taken = {*own, *(column.name for column in OPENED)}
        self._typed: dict[str, tuple[str, pa.DataType]] = {}
        for decoder in dict.fromkeys(rule.decoder.name for rule in self._rules):
            kinds = {rule.decoder.type for rule in self._rules if rule.decoder.name == decoder}
            if len(kinds) > 1:
                raise UsageError(f"payload rules name two schemas '{decoder}'; rows hold one")
            (kind,) = kinds
            if kind is not None:
                column = f"payload_{_word(decoder)}"
                while column in taken:
                    column += "_"
                taken.add(column)
                self._typed[decoder] = column, kind
        self.fields = [
            *(pa.field(column.name, pa.string()) for column in OPENED),
            *(pa.field(name, kind) for name, kind in self._typed.values()),
        ]
        """The columns that `extend` adds."""

    @property
    def needed(self) -> list[str]:
        """The columns that `extend` reads."""
        if self._destination is None:
            return []
        return [self._destination, self._body, *(["properties"] if self._by_properties else [])]

    def open(self, row: Row) -> Row:
        """Return what a row as the scalar reader has it gets: decoder, error, value."""
        found: Row = {"payload_decoder": None, "payload_error": None, "payload_value": None}
        data = row.get(self._body)
        rule = None if data is None else self._rule(row.get(self._destination or ""), row)
        if rule is None or data is None:
            return found
        found["payload_decoder"] = rule.decoder.name
        try:
            value = rule.decoder.decode(data, row[self._destination or ""])
            found["payload_value"] = jsonable(value)
        except PayloadError as error:
            found["payload_error"] = str(error)
        return found

    def extend(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the payloads of its rows opened."""
        columns: dict[str, list[Any]] = defaultdict(lambda: [None] * batch.num_rows)
        if self._rules:
            names = [name for name in self.needed if name != self._body]
            for at, row in enumerate(batch.select(names).to_pylist()):
                rule = self._rule(row[self._destination or ""], row)
                data = None if rule is None else batch[self._body][at].as_py()
                if rule is None or data is None:
                    continue
                columns["payload_decoder"][at] = rule.decoder.name
                try:
                    self._put(columns, at, rule, rule.decoder.decode(data, row[names[0]]))
                except PayloadError as error:
                    columns["payload_error"][at] = str(error)
        for field in self.fields:
            batch = batch.append_column(field, pa.array(columns[field.name], field.type))
        return batch

    def _put(self, columns: Mapping[str, list[Any]], at: int, rule: Rule, value: Any) -> None:
        if rule.decoder.name not in self._typed:
            columns["payload_json"][at] = json_text(value)
            return
        name, kind = self._typed[rule.decoder.name]
        try:
            value = _shaped(value, kind)
            pa.scalar(value, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PayloadError(f"does not fit its type: {error}"[:200]) from None
        columns[name][at] = value

    def _rule(self, destination: str | None, row: Mapping[str, Any]) -> Rule | None:
        """Return the first rule for a message."""
        if not destination:
            return None
        some = self._choices.get(destination)
        if some is None:
            some = [one for one in self._rules if one.matches(destination, self._separator)]
            if len(self._choices) < _MOST_DESTINATIONS:
                self._choices[destination] = some
        for rule in some:
            if not rule.properties or rule.has_properties(_texts(row.get("properties"))):
                return rule
        return None


class PayloadTable:
    """Opens the payloads of one format, for the table ``payloads``.

    Every value is JSON there, also of decoders with a schema: the rules of one run may have other
    schemas than those of the next, and a table has one.
    """

    def __init__(self, format: Format, rules: Sequence[Rule]) -> None:
        plain = [replace(rule, decoder=replace(rule.decoder, type=None)) for rule in rules]
        self._columns = PayloadColumns(format, plain)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the packets of a batch that there are rules for."""
        if not self._columns.needed:
            return pa.RecordBatch.from_pylist([], PAYLOADS)
        opened = self._columns.extend(batch)
        opened = opened.filter(opened["payload_decoder"].is_valid())
        columns = {
            **{name: opened[name] for name in PAYLOADS.names[:5]},
            "destination": opened[self._columns.needed[0]],
            "decoder": opened["payload_decoder"],
            "error": opened["payload_error"],
            "value": opened["payload_json"],
        }
        arrays = [columns[field.name].cast(field.type) for field in PAYLOADS]
        return pa.RecordBatch.from_arrays(arrays, schema=PAYLOADS)


def _shaped(value: Any, kind: pa.DataType) -> Any:
    """Return plain values as Arrow takes them for a type: maps as pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _shaped(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_shaped(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _shaped(value.get(field.name), field.type) for field in kind}
    return value


def json_text(value: Any) -> str:
    """Return plain values as JSON text; bytes are hexadecimal, and what no number is is text."""
    return json.dumps(jsonable(value), ensure_ascii=False, separators=(",", ":"))


def jsonable(value: Any) -> Any:
    """Return plain values as JSON has them."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: jsonable(item) for name, item in value.items()}
    return [jsonable(item) for item in value] if isinstance(value, list) else value


def _texts(properties: Any) -> dict[str, list[str]]:
    """Return properties as texts by name, in whichever form rows and columns have them."""
    found: dict[str, list[str]] = defaultdict(list)
    entries = properties.items() if isinstance(properties, dict) else properties
    for entry in entries or ():
        if isinstance(entry, dict):  # MQTT
            found[entry["name"]].append(str(entry["value"]))
            pair = entry["value"]
            if isinstance(pair, str) and entry["name"] == "user_property":
                pair = json.loads(pair)
            if isinstance(pair, list | tuple) and len(pair) == 2:
                found[pair[0]].append(pair[1])
        else:
            name, value = entry
            value = value["value"] if isinstance(value, dict) else value[1]
            found[name].append(str(value).lower() if isinstance(value, bool) else str(value))
    return found


def _word(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name).lower()
