"""A protocol with facts, as somebody would add one: the streams that send PINGREQ packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.mqtt.layout import PINGREQ
from wireyard.layers.facts import DerivedFiles, Facts, PacketFile
from wireyard.layers.symptoms import Symptom
from wireyard.layers.tables import fact_table
from wireyard.layout import Column

PINGS: Final = (
    Column("pings", "int64", "PINGREQ packets of the stream"),
    Column("frame", "int64", "frame of the first"),
    Column("source", "string", "the source"),
    Column("stream", "string", "the stream"),
    Column("offset", "int64", "where the first packet is", unit="bytes"),
)
_COUNTED: Final = """
SELECT NULL AS destination, stream AS client, pings AS count, source, frame, stream, "offset"
FROM pings WHERE frame IS NOT NULL
"""


def derive(files: Sequence[PacketFile], _: pa.Table, sources: Collection[str]) -> DerivedFiles:
    columns = ("source", "stream", "offset", "frame", "packet_type")
    packets = pa.concat_tables(
        table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))
        for file in files
        for table in file.batches(columns)
    )
    wanted = pc.is_in(packets["source"], pa.array(list(sources)))
    pings = packets.filter(pc.and_(wanted, pc.equal(packets["packet_type"], PINGREQ)))
    counted = pings.group_by(["source", "stream"]).aggregate(
        [("offset", "count"), ("offset", "min"), ("frame", "min")]
    )
    counted = counted.rename_columns(["source", "stream", "pings", "offset", "frame"])
    rows = counted.to_pylist()
    return DerivedFiles(iter([("pings", fact_table("pings", rows))]), Counter())


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


FACTS: Final = Facts(
    protocol="toy",
    formats=("mqtt",),
    derive=derive,
    shares_messages=False,
    verdicts=MappingProxyType({}),
    symptoms=(
        Symptom("pinged", "odd", "it sent {count} pings", "wireyard flows {input}", _COUNTED),
    ),
    tables={"pings": PINGS},
)
