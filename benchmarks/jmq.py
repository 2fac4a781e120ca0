"""Benchmark: JMQ packets to columns, against Java, memcpy and the scalar decoder."""

from __future__ import annotations

from benchmarks.packets import ROOT, Subject, best_seconds, measure
from wireyard.formats.jmq.layout import COLUMNS

__all__ = ["best_seconds", "main", "recorded"]

TEXTS = ("packet_type_name", "source_ip_text", "flags", "sys_message_id")


def recorded() -> bytes:
    """Return the recorded streams of the examples as one."""
    parts = sorted((ROOT / "examples" / "traffic").glob("*.jmq"))
    return b"".join(part.read_bytes() for part in parts)


SUBJECT = Subject(
    format="jmq",
    java_cases={
        "same_columns": "Java, the same columns",
        "all_text_ids": "Java, values and text ids",
        "all": "Java, values",
        "header_items": "Java, header and items",
    },
    header=[c.name for c in COLUMNS if c.name not in (*TEXTS, "properties", "body")],
    header_name="header and items",
    java_header="header_items",
    recorded=recorded,
)
"""Our columns have ids, addresses, flags and property values as text, like the first Java case."""


def main() -> None:
    """Measure and print one table."""
    measure(SUBJECT)


if __name__ == "__main__":
    main()
