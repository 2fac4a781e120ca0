"""JMQ: the client-broker packet of Sun/Open Message Queue, versions 103, 200 and 301."""

from wireyard.formats.base import Body, Columnar, Dialect, Evidence, Format, Framing, Head, Secrets
from wireyard.formats.jmq.annotate import annotate
from wireyard.formats.jmq.body import body_text, body_value
from wireyard.formats.jmq.framing import begins, find_header, frame_size
from wireyard.formats.jmq.layout import (
    COLUMNS,
    DERIVED,
    HEADER_BYTES,
    MAX_PACKET_BYTES,
    PREFIX_BYTES,
)
from wireyard.formats.jmq.packet import decode, encode, packet_of, read_row
from wireyard.formats.jmq.reading import STAMPS
from wireyard.formats.jmq.secrets import SECRET_COLUMNS, SECRET_TYPES, redact
from wireyard.formats.properties import SHORT_OBJECTS

__all__ = ["FORMAT"]

FORMAT = Format(
    name="jmq",
    title="client-broker packets of Sun/Open Message Queue",
    columns=COLUMNS,
    framing=Framing(
        header_bytes=PREFIX_BYTES,
        max_packet_bytes=MAX_PACKET_BYTES,
        frame_size=frame_size,
        find_header=find_header,
        head=Head(lambda data, at: data[at + 6] << 8 | data[at + 7], 8, HEADER_BYTES),
    ),
    columnar=Columnar("wireyard.formats.jmq.columns"),
    body=Body("body", {"text": body_text, "value": body_value}),
    decode=decode,
    encode=encode,
    read_row=read_row,
    packet_of=packet_of,
    derived=DERIVED,
    annotate=annotate,
    evidence=Evidence(begins),
    secrets=Secrets(redact, SECRET_TYPES, SECRET_COLUMNS),
    dialects={**SHORT_OBJECTS, "timestamps": Dialect(STAMPS, "time stamps may follow the body")},
)
