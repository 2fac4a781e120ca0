"""Frames: what one is on the wire, and that nothing else gets through."""

from __future__ import annotations

import pytest

from wireyard.errors import DecodeError, LimitExceeded, Malformed, Truncated
from wireyard_ring.sequencer.frames import (
    FORMS,
    MAGIC,
    MAX_PLACES,
    Accept,
    Accepted,
    Beat,
    Commit,
    Frame,
    FrameReader,
    Held,
    Hello,
    Install,
    Member,
    Order,
    Prepare,
    Promise,
    Refuse,
    Submit,
    encode,
)

MEMBERS = (Member(0, 1 << 63), Member(63, 7))
FRAMES: tuple[Frame, ...] = (
    Hello(MAGIC, 0x0102030405060708, 3, 9),
    Beat(1, 2, 3, 4, True, 5),
    Submit(4, 1, b""),
    Order(4, 1, 63, 8, bytes(100)),
    Held(4, 9),
    Commit(4, 9),
    Prepare(4, 2, 1, MEMBERS),
    Promise(4, 2, 1, 9, 0, 0, 0, ()),
    Refuse(4, 3, 0),
    Accept(4, 2, 1, 9, MEMBERS),
    Accepted(4, 2, 1),
    Install(3, 5, 9, MEMBERS * (MAX_PLACES // 2)),
)


def read(data: bytes) -> list[Frame]:
    return list(FrameReader(100).receive(data))


def test_the_bytes_of_a_frame() -> None:
    assert encode(Held(4, 9)).hex() == "0000000d05000000040000000000000009"
    assert encode(Submit(1, 2, b"hi")).hex() == "0000000f030000000100000000000000026869"
    accept = encode(Accept(1, 2, 3, 4, (Member(5, 6),)))
    assert accept.hex() == ("0000001b0a0000000100000002030000000000000004050000000000000006")


def test_frames_of_every_type_come_back_however_they_are_cut() -> None:
    assert {type(frame) for frame in FRAMES} == {form.frame for form in FORMS.values()}
    stream = b"".join(map(encode, FRAMES))
    assert tuple(read(stream)) == FRAMES
    for size in (1, 3, 7, 64):
        reader = FrameReader(100)
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert tuple(frame for chunk in chunks for frame in reader.receive(chunk)) == FRAMES


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_that_ends_early_is_no_frame(frame: Frame) -> None:
    body = encode(frame)[4:]
    fixed = next(form.fixed.size for form in FORMS.values() if form.frame is type(frame))
    for size in range(1, 1 + fixed):
        with pytest.raises(Truncated, match=type(frame).__name__):
            read(size.to_bytes(4, "big") + body[:size])


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", LimitExceeded, "'frame length' is 1195725856, 1 to"),
        (bytes(8), LimitExceeded, "'frame length' is 0"),
        (b"\0\0\0\x01\0", Malformed, "'frame type' is 0"),
        (b"\0\0\0\x01\x0d", Malformed, "'frame type' is 13"),
        (b"\0\0\0\x0e" + encode(Held(4, 9))[4:] + b"x", Malformed, "'Held' has 1 bytes too many"),
        (b"\0\0\0\x0b" + encode(Prepare(4, 2, 1, ()))[4:] + b"x", Malformed, "have 1 bytes"),
    ],
)
def test_what_is_no_frame_is_one_error(data: bytes, error: type[DecodeError], text: str) -> None:
    with pytest.raises(error, match="ring: ") as found:
        read(data)
    assert text in str(found.value)


def test_a_frame_too_long_is_refused_before_it_has_come() -> None:
    longest = len(encode(Install(3, 5, 9, MEMBERS * (MAX_PLACES // 2)))) - 4
    reader = FrameReader(100)
    assert list(reader.receive((longest + 12).to_bytes(4, "big"))) == []
    with pytest.raises(LimitExceeded, match="frame length"):
        read((longest + 40).to_bytes(4, "big"))
