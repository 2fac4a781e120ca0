"""RMP: packets of the Reliable Multicast Protocol's messaging layer, each of several messages."""

from wireyard.formats.base import (
    Body,
    Columnar,
    Contexts,
    Dialect,
    Evidence,
    Format,
    Framing,
    Several,
)
from wireyard.formats.plain_values import text_of
from wireyard.formats.rmp.annotate import annotate
from wireyard.formats.rmp.context import MessageContext
from wireyard.formats.rmp.framing import (
    find_header,
    frame_size,
    last_context,
    next_context,
)
from wireyard.formats.rmp.joining import join_rows
from wireyard.formats.rmp.layout import COLUMNS, DERIVED, MAX_PACKET_BYTES, PREFIX_BYTES
from wireyard.formats.rmp.packet import (
    decode,
    decode_whole,
    encode,
    packet_of,
    read_row,
    row_context,
)

__all__ = ["FORMAT"]


FORMAT = Format(
    name="rmp",
    title="packets of the RMP messaging layer",
    columns=COLUMNS,
    framing=Framing(
        header_bytes=PREFIX_BYTES,
        max_packet_bytes=MAX_PACKET_BYTES,
        frame_size=frame_size,
        find_header=find_header,
    ),
    columnar=Columnar("wireyard.formats.rmp.columns"),
    body=Body("data", {"text": text_of("data")}),
    decode=decode,
    encode=encode,
    read_row=read_row,
    packet_of=packet_of,
    derived=DERIVED,
    annotate=annotate,
    contexts=Contexts(next_context, last_context, of_row=row_context),
    evidence=Evidence(in_datagrams=True),
    several=Several(join_rows, decode_whole),
    dialects={
        "list-order": Dialect(
            MessageContext(list_order=True, framed=False).context,
            "the length comes before the reply-to field",
        ),
        "framed": Dialect(
            MessageContext(list_order=False, framed=True).context,
            "each packet comes after its length, 2 bytes",
        ),
        "framed-list-order": Dialect(
            MessageContext(list_order=True, framed=True).context,
            "each packet after its length, and in it the length before the reply-to field",
        ),
    },
)
