"""GPacket: the broker-broker packet of Sun/Open Message Queue, version 350, and link packets."""

from wireyard.formats.base import Body, Columnar, Evidence, Format, Framing, Inner, Secrets
from wireyard.formats.gpacket.annotate import annotate
from wireyard.formats.gpacket.framing import EXAMINED_BYTES, begins, find_header, frame_size
from wireyard.formats.gpacket.layout import (
    COLUMNS,
    DERIVED,
    LINK,
    LINK_COLUMNS,
    MAX_PACKET_BYTES,
)
from wireyard.formats.gpacket.packet import decode, encode, packet_of, read_row
from wireyard.formats.gpacket.payload import nested_packets, payload_text, payload_value
from wireyard.formats.gpacket.secrets import CARRIED, SECRET_COLUMNS, SECRET_TYPES, redact
from wireyard.formats.properties import SHORT_OBJECTS

__all__ = ["FORMAT"]


FORMAT = Format(
    name="gpacket",
    title="broker-broker packets of Sun/Open Message Queue",
    columns=COLUMNS,
    framing=Framing(
        header_bytes=EXAMINED_BYTES,
        max_packet_bytes=MAX_PACKET_BYTES,
        frame_size=frame_size,
        find_header=find_header,
    ),
    columnar=Columnar("wireyard.formats.gpacket.columns"),
    body=Body("payload", {"text": payload_text, "value": payload_value}),
    decode=decode,
    encode=encode,
    read_row=read_row,
    packet_of=packet_of,
    derived=DERIVED,
    annotate=annotate,
    evidence=Evidence(begins),
    secrets=Secrets(redact, SECRET_TYPES, SECRET_COLUMNS, ("packet_type", "version"), CARRIED),
    inner=Inner(nested_packets, {LINK: LINK_COLUMNS}),
    dialects=SHORT_OBJECTS,
)
