"""Decoders with a schema, and the Arrow types of their values: Protobuf, Avro, Sparkplug B."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from wireyard.errors import SourceError, UsageError
from wireyard.payloads.decoders import Decoder, PayloadError, need_library
from wireyard.streams.source import open_source, reading

_MAX_SCHEMA_BYTES: Final = 16 << 20
_MOST_FIELDS: Final = 2000
"""Most fields of a type, nested ones included; a recursive schema would have no end."""
_CONFLUENT_HEAD: Final = 5
"""Bytes before a value: a zero, and the schema's id."""


def decoder_of(name: str, rest: str) -> Decoder:
    """Return the decoder called `name` for a schema, which `rest` specifies.

    A UsageError is raised if the library is not installed or the schema cannot be used, a
    SourceError if the schema's file cannot be read.
    """
    if name == "sparkplug":
        return _sparkplug()
    if not rest:
        wanted = "FILE#MESSAGE" if name == "protobuf" else "FILE"
        raise UsageError(f"payload decoder {name} needs a schema: {name}:{wanted}")
    return _protobuf(rest) if name == "protobuf" else _avro(name, rest)


def _load(path: str) -> bytes:
    name, file, _ = open_source(path)
    with file, reading(name):
        data = bytearray()
        while len(data) <= _MAX_SCHEMA_BYTES and (more := file.read(_MAX_SCHEMA_BYTES + 1)):
            data += more
    if len(data) > _MAX_SCHEMA_BYTES:
        raise SourceError(f"{path}: is too large for a schema")
    return bytes(data)


# --- protobuf -------------------------------------------------------------------------------


def _protobuf(rest: str) -> Decoder:
    path, sign, message = rest.rpartition("#")
    if not sign:
        raise UsageError(f"payload decoder protobuf:{rest}: name a message, as in FILE#MESSAGE")
    need_library("google.protobuf", "protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(_load(path))
        for file in files.file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(message)
        kind = message_factory.GetMessageClass(descriptor)
    except (SourceError, UsageError):
        raise
    except KeyError:
        known = ", ".join(
            f"{file.package}.{kind.name}".lstrip(".")
            for file in files.file
            for kind in file.message_type
        )
        raise UsageError(f"{path}: has no message {message}; it has {known or 'none'}") from None
    except Exception as error:
        raise UsageError(f"{path}: is no descriptor set of protoc ({error})") from None
    left = [_MOST_FIELDS]
    return Decoder(
        descriptor.name, partial(_parse_message, kind), _message_type(descriptor, (), left)
    )


def _parse_message(kind: Any, data: bytes, destination: str) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception as error:
        raise PayloadError(f"is no {kind.DESCRIPTOR.full_name}: {error}") from None
    return _message_value(message)


def _message_value(message: Any) -> dict[str, Any]:
    return {
        field.name: _field_value(message, field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field_value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        item = inner.fields_by_name["value"]
        return {str(key): _single(item, element) for key, element in value.items()}
    if field.is_repeated:
        return [_single(field, element) for element in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message_value(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def _message_type(descriptor: Any, outer: tuple[str, ...], left: list[int]) -> pa.DataType:
    """Return the Arrow type of a message.

    A UsageError is raised if the message contains itself, or has too many fields.
    """
    if descriptor.full_name in outer:
        raise UsageError(f"protobuf message {descriptor.full_name} holds itself; it has no columns")
    fields = []
    for field in descriptor.fields:
        left[0] -= 1
        if left[0] < 0:
            raise UsageError(f"protobuf message {descriptor.full_name} has too many fields")
        inner = field.message_type
        around = (*outer, descriptor.full_name)
        if inner is not None and inner.GetOptions().map_entry:
            item = _item_type(inner.fields_by_name["value"], around, left)
            kind: pa.DataType = pa.map_(pa.string(), item)
        else:
            kind = _item_type(field, around, left)
            kind = pa.list_(kind) if field.is_repeated else kind
        fields.append(pa.field(field.name, kind))
    return pa.struct(fields)


def _item_type(field: Any, outer: tuple[str, ...], left: list[int]) -> pa.DataType:
    if field.message_type is not None:
        return _message_type(field.message_type, outer, left)
    return {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float64(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }[field.cpp_type]


# --- avro -----------------------------------------------------------------------------------


def _avro(name: str, path: str) -> Decoder:
    fastavro = need_library("fastavro", name)
    try:
        schema = fastavro.parse_schema(json.loads(_load(path)))
        fields = [_MOST_FIELDS]
        kind, _ = _avro_type(schema, {}, (), fields)
    except (SourceError, UsageError) as error:
        raise type(error)(f"{path}: {error}") if isinstance(error, UsageError) else error from None
    except Exception as error:
        raise UsageError(f"{path}: is no Avro schema ({error})") from None
    title = schema.get("name", "avro") if isinstance(schema, dict) else "avro"
    framed = name == "avro-confluent"
    return Decoder(title.rpartition(".")[2], partial(_read_avro, fastavro, schema, framed), kind)


def _read_avro(fastavro: Any, schema: Any, framed: bool, data: bytes, destination: str) -> Any:
    if framed:
        if len(data) < _CONFLUENT_HEAD or data[0]:
            raise PayloadError("does not begin with 0 and the number of a schema")
        data = data[_CONFLUENT_HEAD:]
    file = io.BytesIO(data)
    value = fastavro.schemaless_reader(file, schema, None)
    if file.tell() != len(data):
        raise PayloadError(f"has {len(data) - file.tell()} bytes behind its value")
    return value


_AVRO_TYPES: Final[Mapping[str, tuple[Callable[[], pa.DataType], int]]] = {
    "null": (pa.null, 0),
    "boolean": (pa.bool_, 1),
    "int": (pa.int32, 1),
    "long": (pa.int64, 1),
    "float": (pa.float64, 4),
    "double": (pa.float64, 8),
    "bytes": (pa.binary, 1),
    "string": (pa.string, 1),
}
"""By name: the Arrow type, and the least number of bytes of a value."""


def _avro_type(
    schema: Any, named: dict[str, Any], outer: tuple[str, ...], left: list[int]
) -> tuple[pa.DataType, int]:
    """Return the Arrow type of a schema, and the least number of bytes of its values.

    A UsageError is raised for a schema that contains itself, a list of elements of no bytes (a few
    bytes could be an endless one), or a union of several types.
    """
    left[0] -= 1
    if left[0] < 0:
        raise UsageError("has too many fields")
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            kind, size = _AVRO_TYPES[schema]
            return kind(), size
        if schema in outer:
            raise UsageError(f"{schema} holds itself; it has no columns")
        return _avro_type(named[schema], named, outer, left)
    if isinstance(schema, list):
        kinds = [member for member in schema if member != "null"]
        if len(kinds) != 1:
            raise UsageError("has a union of several kinds, which no column holds")
        return _avro_type(kinds[0], named, outer, left)[0], 1
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _avro_type(kind, named, outer, left)
    if kind in ("record", "error"):
        name = schema["name"]
        named[name] = schema
        members = [
            (field["name"], *_avro_type(field["type"], named, (*outer, name), left))
            for field in schema["fields"]
        ]
        fields = [pa.field(field, member) for field, member, _ in members]
        return pa.struct(fields), sum(size for *_, size in members)
    if kind in ("array", "map"):
        inner = schema["items" if kind == "array" else "values"]
        item, size = _avro_type(inner, named, outer, left)
        if kind == "array" and size == 0:
            raise UsageError("has a list of what takes no bytes")
        return (pa.list_(item) if kind == "array" else pa.map_(pa.string(), item)), 1
    if kind == "enum":
        named[schema["name"]] = schema
        return pa.string(), 1
    if kind == "fixed":
        named[schema["name"]] = schema
        return (pa.string() if "logicalType" in schema else pa.binary()), int(schema["size"])
    if "logicalType" in schema and schema["logicalType"] not in ("",):
        return (
            (pa.string(), 1)
            if schema["logicalType"] in _AS_TEXT
            else _avro_type(kind, named, outer, left)
        )
    return _avro_type(kind, named, outer, left)


_AS_TEXT: Final = (
    *("date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "uuid"),
    *("local-timestamp-millis", "local-timestamp-micros", "decimal"),
)
"""Logical types whose values become text: ISO 8601, or a decimal with all digits."""


# --- Sparkplug B ----------------------------------------------------------------------------

_DATATYPES: Final = (
    *("Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float"),
    *("Double", "Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File"),
    *("Template", "PropertySet", "PropertySetList", "Int8Array", "Int16Array", "Int32Array"),
    *("Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array", "FloatArray"),
    *("DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
)
"""Sparkplug 3.0.0, 6.4.16: data types by number."""
_SIGNED_BITS: Final = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_METRIC_VALUES: Final = (
    *(("int_value", 10), ("long_value", 11), ("float_value", 12), ("double_value", 13)),
    *(("boolean_value", 14), ("string_value", 15), ("bytes_value", 16)),
)
_NESTED: Final = (("metadata", 8), ("properties", 9), ("dataset_value", 17), ("template_value", 18))
"""Metric fields with a structure of their own, which are columns of bytes."""
_METRIC: Final = pa.struct(
    [
        ("name", pa.string()),
        ("alias", pa.decimal128(20, 0)),
        ("timestamp_ms", pa.int64()),
        ("datatype", pa.string()),
        ("is_historical", pa.bool_()),
        ("is_transient", pa.bool_()),
        ("is_null", pa.bool_()),
        ("value", pa.string()),
        ("number", pa.float64()),
        *((name, pa.binary()) for name, _ in _NESTED),
    ]
)
_SPARKPLUG: Final = pa.struct(
    [
        ("timestamp_ms", pa.int64()),
        ("seq", pa.int64()),
        ("uuid", pa.string()),
        ("body", pa.binary()),
        ("metrics", pa.list_(_METRIC)),
    ]
)


def _sparkplug() -> Decoder:
    need_library("google.protobuf", "sparkplug")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package="sparkplug")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(message: Any, name: str, number: int, kind: int, **more: Any) -> None:
        label = more.pop("label", kinds.LABEL_OPTIONAL)
        message.field.add(name=name, number=number, type=kind, label=label, **more)

    metric = file.message_type.add(name="Metric")
    for name, number, kind in (
        ("name", 1, kinds.TYPE_STRING),
        ("alias", 2, kinds.TYPE_UINT64),
        ("timestamp", 3, kinds.TYPE_UINT64),
        ("datatype", 4, kinds.TYPE_UINT32),
        ("is_historical", 5, kinds.TYPE_BOOL),
        ("is_transient", 6, kinds.TYPE_BOOL),
        ("is_null", 7, kinds.TYPE_BOOL),
    ):
        add(metric, name, number, kind)
    value_kinds = (
        *(kinds.TYPE_UINT32, kinds.TYPE_UINT64, kinds.TYPE_FLOAT, kinds.TYPE_DOUBLE),
        *(kinds.TYPE_BOOL, kinds.TYPE_STRING, kinds.TYPE_BYTES),
    )
    for (name, number), kind in zip(_METRIC_VALUES, value_kinds, strict=True):
        add(metric, name, number, kind)
    for name, number in _NESTED:
        add(metric, name, number, kinds.TYPE_BYTES)
    payload = file.message_type.add(name="Payload")
    add(payload, "timestamp", 1, kinds.TYPE_UINT64)
    repeated = {"label": kinds.LABEL_REPEATED, "type_name": ".sparkplug.Metric"}
    add(payload, "metrics", 2, kinds.TYPE_MESSAGE, **repeated)
    add(payload, "seq", 3, kinds.TYPE_UINT64)
    add(payload, "uuid", 4, kinds.TYPE_STRING)
    add(payload, "body", 5, kinds.TYPE_BYTES)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("sparkplug.Payload"))
    return Decoder("sparkplug", partial(_read_sparkplug, kind), _SPARKPLUG)


def _read_sparkplug(kind: Any, data: bytes, destination: str) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception as error:
        raise PayloadError(f"is no Sparkplug B payload: {error}") from None
    names = [name for name in ("seq", "uuid", "body") if message.HasField(name)]
    values = {name: getattr(message, name) for name in names}
    if message.HasField("timestamp"):
        values["timestamp_ms"] = message.timestamp
    return {**values, "metrics": list(_metrics(message))}


def _metrics(message: Any) -> Iterator[dict[str, Any]]:
    for metric in message.metrics:
        values = {
            name: getattr(metric, name)
            for name in ("name", "alias", "is_historical", "is_transient", "is_null")
            if metric.HasField(name)
        }
        values |= {name: getattr(metric, name) for name, _ in _NESTED if metric.HasField(name)}
        if metric.HasField("timestamp"):
            values["timestamp_ms"] = metric.timestamp
        number = metric.datatype
        type_name = _DATATYPES[number] if number < len(_DATATYPES) else str(number)
        if metric.HasField("datatype"):
            values["datatype"] = type_name
        for name, _ in _METRIC_VALUES:
            if metric.HasField(name):
                values["value"], values["number"] = _metric_value(getattr(metric, name), type_name)
        yield values


def _metric_value(value: Any, type_name: str) -> tuple[str, float | None]:
    """Return a metric's value as text, and as a float if it is a number."""
    if isinstance(value, bool):
        return str(value).lower(), None
    if isinstance(value, bytes):
        return value.hex(), None
    if isinstance(value, str):
        return value, None
    bits = _SIGNED_BITS.get(type_name)
    if bits is not None and isinstance(value, int):
        value &= (1 << bits) - 1
        value -= (value >> (bits - 1)) << bits
    return str(value), float(value)
