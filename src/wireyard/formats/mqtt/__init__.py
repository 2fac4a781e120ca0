"""MQTT: the page of 1999 (MQIpdp), 3.1, 3.1.1 and 5.0."""

from wireyard.formats.base import (
    Body,
    Columnar,
    Contexts,
    Dialect,
    Evidence,
    Format,
    Framing,
    Head,
    Secrets,
    Texts,
)
from wireyard.formats.mqtt.annotate import annotate
from wireyard.formats.mqtt.framing import (
    HEADER_BYTES,
    begins,
    find_header,
    frame_size,
    next_context,
    opens,
)
from wireyard.formats.mqtt.layout import COLUMNS, DERIVED, MAX_PACKET_BYTES, MSB_FIRST
from wireyard.formats.mqtt.packet import decode, packet_of, read_row, row_context
from wireyard.formats.mqtt.properties import VALUE_KINDS
from wireyard.formats.mqtt.resync import confirm_start, find_context
from wireyard.formats.mqtt.secrets import REDACT_READS, SECRET_COLUMNS, SECRET_TYPES, redact
from wireyard.formats.mqtt.writing import encode
from wireyard.formats.plain_values import text_of

__all__ = ["FORMAT"]


FORMAT = Format(
    name="mqtt",
    title="MQTT 3.1, 3.1.1, 5.0, and the MQIpdp of 1999 before them",
    columns=COLUMNS,
    framing=Framing(
        header_bytes=HEADER_BYTES,
        max_packet_bytes=MAX_PACKET_BYTES,
        frame_size=frame_size,
        find_header=find_header,
        head=Head(lambda data, at: data[at] >> 4, 1, 5),
    ),
    columnar=Columnar("wireyard.formats.mqtt.columns", finds_frames=True),
    body=Body("payload", {"text": text_of("payload"), "value": text_of("payload")}),
    decode=decode,
    encode=encode,
    read_row=read_row,
    packet_of=packet_of,
    derived=DERIVED,
    annotate=annotate,
    texts=Texts(are_plain=True, kinds=VALUE_KINDS),
    contexts=Contexts(next_context, answer=next_context, of_row=row_context),
    evidence=Evidence(begins, opens, confirm_start, find_context, ports=(1883,)),
    secrets=Secrets(redact, SECRET_TYPES, SECRET_COLUMNS, REDACT_READS),
    dialects={
        "3.1": Dialect(3, "a stream without its CONNECT, of MQTT 3.1"),
        "3.1.1": Dialect(4, "a stream without its CONNECT, of MQTT 3.1.1"),
        "5.0": Dialect(5, "a stream without its CONNECT, of MQTT 5.0"),
        "mqipdp": Dialect(2, "MQIpdp of 1999, words little-endian as its page says"),
        "mqipdp-msb": Dialect(
            MSB_FIRST | 2, "MQIpdp of 1999, words big-endian as its later pages say"
        ),
    },
)
