"""The frames between the members of a ring, with one table of layouts for reading and writing.

A frame is its length (4 bytes, which do not count), its type (1 byte) and its fields, big-endian,
without padding. The last field of some frames is a list of members or the bytes of a packet, up to
the end of the frame. Every connection begins with a Hello.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wireyard.errors import LimitExceeded, Malformed, Truncated

__all__ = [
    "FORMS",
    "MAGIC",
    "MAX_PLACES",
    "Accept",
    "Accepted",
    "Ballot",
    "Beat",
    "ChangeFrame",
    "Commit",
    "Frame",
    "FrameReader",
    "Held",
    "Hello",
    "Install",
    "Member",
    "Order",
    "PacketFrame",
    "Prepare",
    "Promise",
    "Refuse",
    "Submit",
    "Tail",
    "encode",
]

MAGIC: Final = b"WYR1"
"""The first bytes of a Hello; the digit is the version of the frames."""
MAX_PLACES: Final = 64
"""The most addresses of a ring, because every member has a connection to every other."""
_SPEC = "docs/layers/rmp.md, over TCP"
_LENGTH: Final = Struct(">I")
_MEMBER: Final = Struct(">BQ")


class Member(NamedTuple):
    """One run of a process: the index of its address in the ring's list, and a random number."""

    place: int
    incarnation: int


class Ballot(NamedTuple):
    """An attempt to change the view; a greater one supersedes a lesser one."""

    round: int
    place: int
    """The place of the proposer."""


class Hello(NamedTuple):
    """The first frame on a connection, which identifies its sender."""

    magic: bytes
    digest: int
    """Digest of the ring's addresses and settings, which are the same at all members."""
    place: int
    incarnation: int


class Beat(NamedTuple):
    """A heartbeat with the sender's state."""

    sent: int
    """Time in microseconds of the sender's clock."""
    echo: int
    """`sent` of the receiver's last beat; 0 if the sender grants it no lease."""
    ring: int
    view: int
    """Number of the sender's view; 0 before its first."""
    within: bool
    """Whether the receiver is a member of that view."""
    held: int
    """The number of packets of the view that the sender holds."""


class Submit(NamedTuple):
    """A packet, from its sender to the sequencer."""

    view: int
    serial: int
    """The number of the packet among the sender's packets."""
    data: bytes


class Order(NamedTuple):
    """A packet with its number in the order, from the sequencer to every member."""

    view: int
    number: int
    """The number of the packet in the view, from 1."""
    source: int
    """The place of the packet's sender."""
    serial: int
    data: bytes


class Held(NamedTuple):
    """An acknowledgement to the sequencer: the sender holds all packets up to a number."""

    view: int
    number: int


class Commit(NamedTuple):
    """From the sequencer: all members hold all packets up to a number."""

    view: int
    number: int


class Prepare(NamedTuple):
    """The begin of a ballot: a request to the voters to hold no more packets of the view."""

    view: int
    round: int
    place: int
    members: tuple[Member, ...]
    """The voters: all members of the view that the proposer does not suspect."""


class Promise(NamedTuple):
    """The answer to Prepare: the packets that the voter holds, and its earlier acceptance."""

    view: int
    round: int
    place: int
    held: int
    accepted_round: int
    """0 if it has accepted nothing."""
    accepted_place: int
    cut: int
    members: tuple[Member, ...]


class Refuse(NamedTuple):
    """The refusal of a voter that has promised a greater ballot, with that ballot."""

    view: int
    round: int
    place: int


class Accept(NamedTuple):
    """The proposal of a ballot: the next view's members, and the last packet of this view."""

    view: int
    round: int
    place: int
    cut: int
    members: tuple[Member, ...]


class Accepted(NamedTuple):
    """The answer to Accept."""

    view: int
    round: int
    place: int


class Install(NamedTuple):
    """A view that was decided."""

    ring: int
    view: int
    cut: int
    """Last packet of the previous view."""
    members: tuple[Member, ...]


PacketFrame = Submit | Order | Held | Commit
ChangeFrame = Prepare | Promise | Refuse | Accept | Accepted
Frame = Hello | Beat | PacketFrame | ChangeFrame | Install


class Tail(Enum):
    """The kind of the last field of a frame."""

    NONE = "of a fixed size"
    PACKET = "a packet"
    MEMBERS = "members, 9 bytes each"


class _Form(NamedTuple):
    frame: Callable[..., Frame]
    fixed: Struct
    tail: Tail


FORMS: Final = MappingProxyType(
    {
        1: _Form(Hello, Struct(">4sQBQ"), Tail.NONE),
        2: _Form(Beat, Struct(">QQQI?Q"), Tail.NONE),
        3: _Form(Submit, Struct(">IQ"), Tail.PACKET),
        4: _Form(Order, Struct(">IQBQ"), Tail.PACKET),
        5: _Form(Held, Struct(">IQ"), Tail.NONE),
        6: _Form(Commit, Struct(">IQ"), Tail.NONE),
        7: _Form(Prepare, Struct(">IIB"), Tail.MEMBERS),
        8: _Form(Promise, Struct(">IIBQIBQ"), Tail.MEMBERS),
        9: _Form(Refuse, Struct(">IIB"), Tail.NONE),
        10: _Form(Accept, Struct(">IIBQ"), Tail.MEMBERS),
        11: _Form(Accepted, Struct(">IIB"), Tail.NONE),
        12: _Form(Install, Struct(">QIQ"), Tail.MEMBERS),
    }
)
"""The layouts of frames by type."""
_TYPES: Final[dict[object, tuple[int, _Form]]] = {
    form.frame: (kind, form) for kind, form in FORMS.items()
}
_HEAD_BYTES: Final = 1 + max(form.fixed.size for form in FORMS.values())
_MEMBERS_BYTES: Final = MAX_PLACES * _MEMBER.size


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    kind, form = _TYPES[type(frame)]
    if form.tail is Tail.NONE:
        body = form.fixed.pack(*frame)
    else:
        fields: tuple[Any, ...] = frame
        *fixed, tail = fields
        if form.tail is Tail.MEMBERS:
            tail = b"".join(_MEMBER.pack(*member) for member in tail)
        body = form.fixed.pack(*fixed) + tail
    return b"%b%c%b" % (_LENGTH.pack(1 + len(body)), kind, body)


class FrameReader:
    """An incremental decoder of the frames of one connection.

    A frame with a greater length than that of a packet of `max_packet_bytes` is an error.
    """

    def __init__(self, max_packet_bytes: int) -> None:
        self._max_bytes = _HEAD_BYTES + max(max_packet_bytes, _MEMBERS_BYTES)
        self._buffer = bytearray()

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Add bytes and yield the frames that are complete.

        A DecodeError is raised if the bytes are no frames; nothing after them can be read.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._buffer, start)
                if not 0 < size <= self._max_bytes:
                    problem = f"is {size}, 1 to {self._max_bytes} is possible"
                    raise LimitExceeded("ring", "frame length", 0, problem, _SPEC)
                stop = start + _LENGTH.size + size
                if stop > len(self._buffer):
                    return
                body = bytes(memoryview(self._buffer)[start + _LENGTH.size : stop])
                start = stop
                yield _decode(body)
        finally:
            del self._buffer[:start]


def _decode(body: bytes) -> Frame:
    form = FORMS.get(body[0])
    if form is None:
        raise Malformed("ring", "frame type", 4, f"is {body[0]}, which no frame has", _SPEC)
    name = str(getattr(form.frame, "__name__", form.frame))
    size = len(body) - 1
    if size < form.fixed.size:
        raise Truncated("ring", name, 5, form.fixed.size, size, _SPEC)
    fields: tuple[Any, ...] = form.fixed.unpack_from(body, 1)
    rest = body[1 + form.fixed.size :]
    if form.tail is Tail.PACKET:
        return form.frame(*fields, rest)
    if form.tail is Tail.MEMBERS:
        if len(rest) % _MEMBER.size or len(rest) > _MEMBERS_BYTES:
            raise Malformed("ring", f"{name} members", 5, f"have {len(rest)} bytes", _SPEC)
        members = tuple(Member(*values) for values in _MEMBER.iter_unpack(rest))
        return form.frame(*fields, members)
    if rest:
        raise Malformed("ring", name, 5, f"has {len(rest)} bytes too many", _SPEC)
    return form.frame(*fields)
