"""Benchmark: GPackets to columns, against the shipped Java class, memcpy and the scalar decoder."""

from __future__ import annotations

import wireyard
from benchmarks import jmq
from benchmarks.packets import Subject, measure
from wireyard.formats.gpacket.layout import COLUMNS
from wireyard.formats.gpacket.packet import encode
from wireyard.layers.port import to_gpacket

TEXTS = ("packet_type_name", "flags", "header_order")


def recorded() -> bytes:
    """Return the recorded streams of the examples, ported to GPackets."""
    packets = wireyard.packets(jmq.recorded(), "jmq")
    return b"".join(encode(to_gpacket(packet)) for packet in packets)


SUBJECT = Subject(
    format="gpacket",
    java_cases={
        "same_columns": "Java, the same columns",
        "all": "Java, values",
        "header": "Java, header",
    },
    header=[c.name for c in COLUMNS if c.name not in (*TEXTS, "properties", "payload")],
    header_name="header",
    java_header="header",
    recorded=recorded,
)
"""Our columns have flags and property values as text; so has the first Java case."""


def main() -> None:
    """Measure and print one table."""
    measure(SUBJECT)


if __name__ == "__main__":
    main()
