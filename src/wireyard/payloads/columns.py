"""Decoded payloads of batches and rows, as columns of their own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from wireyard.errors import UsageError
from wireyard.formats.base import Format, Row
from wireyard.formats.plain_values import json_value
from wireyard.layout import Column
from wireyard.payloads.decoders import PayloadError, reason_of
from wireyard.payloads.rules import Rule

OPENED = (
    Column("payload_decoder", "string", "the decoder of the message's rule; null without a rule"),
    Column("payload_error", "string", "why the payload could not be decoded; null if it could"),
    Column("payload_json", "string", "the payload as JSON; null if it is in a typed column"),
)
"""The additional columns of rows if there are rules."""

ROW_COLUMNS = (OPENED[0], OPENED[1], Column("payload_value", "json", "the decoded payload"))
"""The additional columns of rows that are shown one by one, where values keep their structure."""

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
"""The table ``payloads``, one row per packet that has a rule. The first columns are those of its
message; `value` is the decoded payload as JSON, null if there is an `error`."""

_SEPARATORS = {"mqtt": "/"}
_MOST_DESTINATIONS = 100_000
"""Most destinations whose rules are cached, because every message may have a new topic."""


class PayloadColumns:
    """Decodes the payloads of one format to columns.

    Each decoder with a schema has a typed column, ``payload_NAME``; the values of the others are
    JSON text. The column of bytes stays unchanged.
    """

    def __init__(self, format: Format, rules: Sequence[Rule]) -> None:
        own = [column.name for column in format.columns]
        self._body = format.body.column
        self._destination = next((name for name in ("topic", "destination") if name in own), None)
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
        """Return the additional columns of a row of the scalar reader: decoder, error, value."""
        added: Row = {"payload_decoder": None, "payload_error": None, "payload_value": None}
        data = row.get(self._body)
        rule = None if data is None else self._rule(row.get(self._destination or ""), row)
        if rule is None or data is None:
            return added
        added["payload_decoder"] = rule.decoder.name
        try:
            value = rule.decoder.decode(data, row[self._destination or ""])
            added["payload_value"] = json_value(value)
        except PayloadError as error:
            added["payload_error"] = str(error)
        return added

    def extend(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the additional columns of decoded payloads."""
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
        except Exception as error:  # Arrow and Python have many for values of another form
            raise PayloadError(f"does not fit its type: {reason_of(error)}") from None
        columns[name][at] = value

    def _rule(self, destination: str | None, row: Mapping[str, Any]) -> Rule | None:
        """Return the first rule that matches a message."""
        if not destination:
            return None
        candidates = self._choices.get(destination)
        if candidates is None:
            candidates = [
                rule for rule in self._rules if rule.matches(destination, self._separator)
            ]
            if len(self._choices) < _MOST_DESTINATIONS:
                self._choices[destination] = candidates
        for rule in candidates:
            if not rule.properties or rule.has_properties(_texts(row.get("properties"))):
                return rule
        return None


class PayloadTable:
    """Decodes the payloads of one format for the table ``payloads``.

    All values are JSON there, those of decoders with a schema too: rules may have other schemas in
    the next run, but a table has one.
    """

    def __init__(self, format: Format, rules: Sequence[Rule]) -> None:
        plain = [replace(rule, decoder=replace(rule.decoder, type=None)) for rule in rules]
        self._columns = PayloadColumns(format, plain)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row for each packet of a batch that has a rule."""
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
    """Return plain values in the form that Arrow expects for a type: maps as pairs."""
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
    """Return plain values as JSON text."""
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"))


def _texts(properties: Any) -> dict[str, list[str]]:
    """Return the properties of a row or of columns as texts by name."""
    texts: dict[str, list[str]] = defaultdict(list)
    entries = properties.items() if isinstance(properties, dict) else properties
    for entry in entries or ():
        if isinstance(entry, dict):  # MQTT
            texts[entry["name"]].append(str(entry["value"]))
            pair = entry["value"]
            if isinstance(pair, str) and entry["name"] == "user_property":
                pair = json.loads(pair)
            if isinstance(pair, list | tuple) and len(pair) == 2:
                texts[pair[0]].append(pair[1])
        else:
            name, value = entry
            value = value["value"] if isinstance(value, dict) else value[1]
            texts[name].append(str(value).lower() if isinstance(value, bool) else str(value))
    return texts


def _word(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name).lower()
