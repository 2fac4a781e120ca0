"""Each rule of reassembly by itself; `test_torture` has them all at once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.captures.make import (
    ACK,
    BEGAN_NS,
    CLIENT,
    FIN,
    RST,
    SERVER,
    SYN,
    Packet,
    enhanced,
    ethernet,
    interface,
    ipv4,
    packets,
    pcap,
    section,
    simple,
    tcp,
)
from wireyard.captures.connections.stream import Stream
from wireyard.captures.connections.tcp_kernels import AFTERMATH, LATE, SILENCE_NS
from wireyard.captures.read import Capture, read_capture

ISN, OTHER_ISN = 1000, 5000
FAR = AFTERMATH + 100
"""So far ahead a connection may go on, but none that has ended."""


def client(
    position: int, payload: bytes = b"", flags: int = ACK, acknowledged: int = 0, isn: int = ISN
) -> bytes:
    sequence = isn + position + (not flags & SYN)
    number = OTHER_ISN + 1 + acknowledged if flags & ACK else 0
    return ethernet(ipv4(tcp(40000, 1883, sequence, payload, flags, number)))


def server(
    position: int,
    payload: bytes = b"",
    flags: int = ACK,
    acknowledged: int = 0,
    isn: int = OTHER_ISN,
    client_isn: int = ISN,
) -> bytes:
    sequence = isn + position + (not flags & SYN)
    number = client_isn + 1 + acknowledged if flags & ACK else 0
    return ethernet(ipv4(tcp(1883, 40000, sequence, payload, flags, number), 6, SERVER, CLIENT))


HELLO = [client(0, flags=SYN), server(0, flags=SYN | ACK), client(0)]
NAME = "10.0.0.1:40000>10.0.0.2:1883"
BACK = "10.0.0.2:1883>10.0.0.1:40000"


def read(*frames: bytes, overlap: str = "first") -> Capture:
    return read_capture(pcap(packets(frames)), overlap)


def shown(stream: Stream) -> str:
    """Return the bytes of a stream, with an underscore for each that is missing."""
    out = ["_"] * stream.size
    for start, stop in stream.pieces.tolist():
        out[start:stop] = stream.read(start, stop).tobytes().decode()
    return "".join(out)


def streams_of(*frames: bytes, overlap: str = "first") -> dict[str, str]:
    return {stream.name: shown(stream) for stream in read(*frames, overlap=overlap).streams}


def test_both_directions_in_the_order_of_their_connection() -> None:
    capture = read(*HELLO, client(0, b"ask"), server(0, b"answer"), client(3, b"!"))
    assert {stream.name: shown(stream) for stream in capture.streams} == {
        NAME: "ask!",
        BACK: "answer",
    }
    first, second = capture.streams
    assert first.begun and second.begun and first.ended is None
    assert (first.src.port, first.dst.port, first.protocol) == (40000, 1883, "tcp")


@pytest.mark.parametrize("hello", [HELLO[:1], HELLO[1:2], HELLO])
def test_a_syn_or_its_answer_shows_who_opened_a_connection(hello: list[bytes]) -> None:
    data = [client(0, b"ask"), server(0, b"answer")]
    capture = read(*hello, *data)
    assert {stream.name: stream.opened for stream in capture.streams} == {NAME: True, BACK: False}
    assert not any(stream.opened for stream in read(*data).streams)


def test_retransmissions_and_disorder() -> None:
    capture = read(*HELLO, client(3, b"def"), client(0, b"abc"), client(0, b"abc"), client(6, b"g"))
    (stream,) = capture.streams
    assert shown(stream) == "abcdefg"
    assert stream.runs.records.tolist() == [4, 3, 6]
    assert capture.payload_bytes == {
        "tcp": 7,
        "udp": 0,
        "duplicate": 3,
        "keep_alive": 0,
        "reset": 0,
    }


@pytest.mark.parametrize(
    ("overlap", "bytes_", "frames"),
    [("first", "ABcdefGHIJ", [6, 6, 4, 4, 4, 4, 5, 5, 5, 7]),
     ("last", "12345678IJ", [6, 6, 6, 6, 6, 6, 6, 6, 5, 7])],
)  # fmt: skip
def test_overlaps_follow_the_policy(overlap: str, bytes_: str, frames: list[int]) -> None:
    sent = [client(2, b"cdef"), client(4, b"EFGHI"), client(0, b"12345678"), client(9, b"J")]
    if overlap == "first":
        sent[2] = client(0, b"AB345678")
    (stream,) = read(*HELLO, *sent, overlap=overlap).streams
    assert shown(stream) == bytes_
    at = np.arange(10)
    assert stream.completed(at, at + 1)[0].tolist() == frames


def test_sequence_numbers_wrap() -> None:
    isn = (1 << 32) - 4
    sent = [client(at, b"%04d" % at, isn=isn) for at in (0, 4, 12, 8, 4)]
    assert streams_of(client(0, flags=SYN, isn=isn), *sent) == {NAME: "0000000400080012"}


def test_a_stream_of_more_than_four_gigabytes_wraps_on() -> None:
    step = (1 << 30) - 10
    sent = [client(step * number, b"x" * 10) for number in range(1, 10)]
    (stream,) = read(*HELLO, *sent).streams
    assert stream.size == 9 * step + 10
    assert stream.runs.offsets.tolist() == [step * number for number in range(1, 10)]


def test_data_after_its_acknowledgment_is_kept() -> None:
    sent = [server(0, acknowledged=6), client(0, b"abcdef"), server(0, acknowledged=9)]
    assert streams_of(*HELLO, *sent, client(6, b"ghi")) == {NAME: "abcdefghi"}


def test_lost_segments_are_gaps_of_known_length() -> None:
    capture = read(*HELLO, client(2, b"c"), client(7, b"h"), client(12, flags=FIN | ACK))
    (stream,) = capture.streams
    assert shown(stream) == "__c____h____"
    assert stream.gaps.tolist() == [[0, 2], [3, 7], [8, 12]]
    assert stream.ended == "fin"


def test_a_stream_of_which_all_was_lost_is_a_gap() -> None:
    (stream,) = read(*HELLO, client(5, flags=FIN | ACK)).streams
    assert (stream.size, stream.gaps.tolist(), stream.pieces.tolist()) == (5, [[0, 5]], [])
    assert stream.completed(np.empty(0, np.int64), np.empty(0, np.int64))[0].tolist() == []


@pytest.mark.parametrize(
    ("later", "stream"),
    [
        ([server(0, acknowledged=7)], "abc____"),
        ([server(0, acknowledged=7), server(0, acknowledged=7), client(2, b"?")], "abc____"),
        ([server(0, b"yes", acknowledged=5), client(3), client(7, flags=RST)], "abc__"),
        # The number of a FIN that was not captured is none of a byte.
        ([server(0, acknowledged=4)], "abc"),
        ([server(0, flags=FIN | ACK, acknowledged=4)], "abc"),
        ([server(0, flags=FIN | ACK, acknowledged=6)], "abc__"),
        ([client(3, flags=FIN | ACK), server(0, acknowledged=4)], "abc"),
        ([client(5, flags=FIN | ACK), server(0, acknowledged=6)], "abc__"),
        # Only the last number counts, and none that is too far ahead, or of a reset.
        ([server(0, acknowledged=90), server(0, acknowledged=3)], "abc"),
        ([server(0, acknowledged=AFTERMATH + 4)], "abc"),
        ([server(0, acknowledged=-1)], "abc"),
        ([server(0, flags=RST | ACK, acknowledged=9)], "abc"),
    ],
)
def test_bytes_that_were_acknowledged_and_not_captured_are_a_gap_at_the_end(
    later: list[bytes], stream: str
) -> None:
    for hello in (HELLO, []):
        assert streams_of(*hello, client(0, b"abc"), *later)[NAME] == stream


def test_all_bytes_of_a_stream_may_be_acknowledged_and_not_captured() -> None:
    assert streams_of(*HELLO, server(0, acknowledged=4)) == {NAME: "____"}
    # A side without any segment may have been left out on purpose.
    answers = [server(0, flags=SYN | ACK), server(0, b"a", acknowledged=9)]
    assert streams_of(*answers) == {BACK: "a"}
    assert streams_of(server(0, b"a"), server(1, b"b", acknowledged=9)) == {BACK: "ab"}


def test_what_was_truncated_and_acknowledged_is_one_gap() -> None:
    cut = Packet(client(0, b"abcd")[:-2], original=len(client(0, b"abcd")))
    for acknowledged, shows in ((4, "ab__"), (6, "ab____")):
        records = [*map(Packet, HELLO), cut, Packet(server(0, acknowledged=acknowledged))]
        (stream,) = read_capture(pcap(records)).streams
        assert shown(stream) == shows
        assert stream.gaps.tolist() == [[2, len(shows)]]


def test_a_begin_that_is_not_settled_shows_no_end() -> None:
    """The client acknowledges one of two answers, of which the other came last."""
    near = server(0, flags=SYN | ACK, isn=OTHER_ISN - 900)
    frames = [HELLO[0], HELLO[1], near, client(0), client(0, b"ab")]
    assert streams_of(*frames) == {NAME: "ab"}


def test_what_the_snapshot_cut_off_is_a_gap_unless_it_comes_again() -> None:
    cut = [client(at, b"%04d" % at) for at in (0, 4, 8)]
    records = [Packet(one[:-2], original=len(one)) for one in cut]
    again = Packet(client(4, b"0004"))
    (stream,) = read_capture(pcap([Packet(one) for one in HELLO] + records)).streams
    assert shown(stream) == "00__00__00__"
    (stream,) = read_capture(pcap([Packet(one) for one in HELLO] + [*records, again])).streams
    assert shown(stream) == "00__000400__"
    assert stream.runs.records.tolist() == [3, 4, 6, 5]


@pytest.mark.parametrize("padding", [b"", b"?", b"?\0\0\0\0\0", b"\0" * 46])
def test_a_keep_alive_before_the_first_byte_begins_no_connection(padding: bytes) -> None:
    capture = read(*HELLO, client(-1, padding), client(0, b"abc"), client(-1, padding))
    (stream,) = capture.streams
    assert (stream.name, shown(stream)) == (NAME, "abc")
    assert capture.payload_bytes["keep_alive"] == 2 * len(padding)


def test_keep_alive_bytes_are_not_data() -> None:
    sent = [client(-1, b"?"), client(0, b"abc"), client(2, b"?"), client(2), client(3, b"d")]
    for overlap in ("first", "last"):
        capture = read(*HELLO, *sent, overlap=overlap)
        assert [shown(stream) for stream in capture.streams] == ["abcd"]
        assert capture.payload_bytes["keep_alive"] == 2


def test_data_in_a_syn_counts_once() -> None:
    fast = client(0, b"abc", flags=SYN)
    assert streams_of(fast, server(0, flags=SYN | ACK, acknowledged=3), client(3, b"d")) == {
        NAME: "abcd"
    }
    assert streams_of(fast, HELLO[1], client(0, b"abcd")) == {NAME: "abcd"}


def test_one_side_alone() -> None:
    capture = read(client(10, b"middle"), client(20, b"end"))
    (stream,) = capture.streams
    assert shown(stream) == "middle____end" and not stream.begun
    capture = read(server(0, flags=SYN | ACK), server(3, b"answer"))
    (stream,) = capture.streams
    assert shown(stream) == "___answer" and stream.begun


def test_an_answered_syn_shows_where_the_asking_stream_begins() -> None:
    (stream,) = read(HELLO[1], client(2, b"cd")).streams
    assert shown(stream) == "__cd" and stream.begun


def test_the_first_acknowledgment_shows_where_the_answering_stream_begins() -> None:
    opening = [HELLO[0], HELLO[2]]  # without the answer to the SYN
    asked, answered = read(*opening, client(0, b"ask"), server(0, b"answer")).streams
    assert asked.begun and answered.begun and shown(answered) == "answer"
    *_, answered = read(*opening, client(0, b"ask"), server(2, b"swer"), server(0, b"an")).streams
    assert answered.begun and shown(answered) == "answer"
    # All of its bytes are missing: a later segment without any, and what was acknowledged, show it.
    lacking = [client(0, b"ask"), client(3, acknowledged=6), server(6, acknowledged=3)]
    for segments in (lacking, [lacking[2], *lacking[:2]]):
        *_, answered = read(*opening, *segments).streams
        assert answered.begun and shown(answered) == "______"
    *_, answered = read(*opening, server(2, b"swer")).streams
    assert answered.begun and shown(answered) == "__swer"
    # The acknowledgment of a client whose SYN was not captured may be any of its.
    *_, answered = read(HELLO[2], client(0, b"ask"), server(0, b"answer")).streams
    assert not answered.begun
    # Bytes that came before it show that it is not the first.
    *_, answered = read(HELLO[0], server(0, b"answer"), client(0, acknowledged=6)).streams
    assert not answered.begun


def test_the_first_acknowledgment_shows_what_is_missing_of_a_stream_without_its_beginning() -> None:
    ask, last = client(0, b"ask"), server(4, b"er", acknowledged=3)
    _, answered = read(client(0), ask, client(3, acknowledged=4), last).streams
    assert not answered.begun and shown(answered) == "____er"
    # Made captures may have the same number in all packets.
    _, answered = read(client(0), ask, last, client(3)).streams
    assert shown(answered) == "er"
    # All of it is missing.
    _, answered = read(ask, server(0, acknowledged=3), client(3, acknowledged=6)).streams
    assert not answered.begun and shown(answered) == "______"
    # What was acknowledged before the capture began is no part of the stream.
    _, answered = read(client(0, acknowledged=4), ask, last).streams
    assert not answered.begun and shown(answered) == "er"
    # An acknowledgment behind bytes of the stream may be of what was sent before the capture.
    answered, _ = read(last, client(0), ask, client(3, acknowledged=6)).streams
    assert shown(answered) == "er"
    # A keep-alive has the number before the next byte.
    probe = [server(3), client(0, acknowledged=4)]
    answered, _ = read(*probe, ask, last).streams
    assert shown(answered) == "er"
    assert len(read(*probe, ask).streams) == 1
    # A capture of one direction shows nothing of the other.
    assert len(read(client(0), ask, client(3, acknowledged=6)).streams) == 1
    # A number that is too far behind is of another connection.
    far = [client(0, acknowledged=-LATE), client(0, b"ask", acknowledged=4)]
    _, answered = read(*far, last).streams
    assert shown(answered) == "er"


def test_a_syn_after_the_data_shows_where_it_began() -> None:
    (stream,) = read(client(4, b"ef"), client(2, b"cd"), HELLO[0]).streams
    assert shown(stream) == "__cdef" and stream.begun


@pytest.mark.parametrize("ending", ["fin", "rst", None])
def test_ports_used_again_are_another_connection(ending: str | None) -> None:
    ends = {
        "fin": [client(1, flags=FIN | ACK), server(0, flags=FIN | ACK)],
        "rst": [client(1, flags=RST)],
        None: [],
    }
    again = [client(0, flags=SYN, isn=9000), client(0, b"b", isn=9000)]
    third = [client(0, flags=SYN, isn=77), client(0, b"c", isn=77)]
    capture = read(*HELLO, client(0, b"a"), *ends[ending], *again, *third)
    named = {stream.name: shown(stream) for stream in capture.streams}
    assert named == {NAME: "a", f"{NAME}#2": "b", f"{NAME}#3": "c"}
    assert capture.streams[0].ended == ending


def test_the_same_number_after_an_end_is_another_connection() -> None:
    talk = [*HELLO, client(0, b"a"), client(1, flags=RST)]
    again = [HELLO[0], server(0, flags=SYN | ACK, isn=OTHER_ISN - 1), *talk[2:]]
    assert streams_of(*talk, *again) == {NAME: "a", f"{NAME}#2": "a"}
    # A SYN that is only sent again, before or after it is refused, begins nothing.
    refused = server(0, flags=RST | ACK)
    assert streams_of(HELLO[0], HELLO[0], refused, HELLO[0], *HELLO, client(0, b"a")) == {NAME: "a"}


def test_a_connection_whose_syn_was_lost_is_told_by_its_numbers() -> None:
    far = ISN + (1 << 31) - 100
    assert streams_of(*HELLO, client(0, b"a"), client(0, b"b", isn=far)) == {
        NAME: "a",
        f"{NAME}#2": "b",
    }
    # After an end, numbers need not be as far away.
    near = ISN + (1 << 25)
    assert streams_of(*HELLO, client(0, b"a"), client(1, flags=RST), client(0, b"b", isn=near)) == {
        NAME: "a",
        f"{NAME}#2": "b",
    }


def test_late_segments_go_to_the_connection_they_belong_to() -> None:
    isn = ISN + (1 << 31) - 100
    sent = [
        *HELLO,
        client(0, b"ab"),
        server(0, b"AB", acknowledged=2),
        client(0, flags=SYN, isn=isn),
        client(2, b"cd"),
        server(2, b"CD", acknowledged=2),
        server(0, flags=SYN | ACK, isn=70_000, client_isn=isn),
        client(0, b"new", isn=isn),
        client(4, b"ef"),
    ]
    assert streams_of(*sent) == {NAME: "abcdef", BACK: "ABCD", f"{NAME}#2": "new"}


def test_a_stray_acknowledgment_begins_nothing() -> None:
    far = ISN + (1 << 31)
    assert streams_of(*HELLO, client(0, b"a"), client(0, isn=far), client(1, b"b")) == {NAME: "ab"}


def test_a_syn_answered_twice_with_different_numbers() -> None:
    other = server(0, flags=SYN | ACK, isn=3_000_000)
    for answers in ([HELLO[1], other], [other, HELLO[1]], [HELLO[1], other, HELLO[1]]):
        sent = [HELLO[0], *answers, server(0, b"data", isn=3_000_000)]
        assert streams_of(*sent) == {BACK: "data"}


def test_a_forged_reset_before_the_answer_changes_nothing() -> None:
    forged = [server(-OTHER_ISN - 1, flags=RST | ACK), server(-OTHER_ISN - 1, flags=FIN | ACK)]
    sent = [HELLO[0], *forged, *HELLO[1:], client(0, b"a"), server(0, b"b")]
    assert streams_of(*sent) == {NAME: "a", BACK: "b"}


def test_the_text_of_a_reset_is_not_data() -> None:
    capture = read(*HELLO, client(0, b"a"), client(1, b"go away", flags=RST | ACK))
    assert [shown(stream) for stream in capture.streams] == ["a"]
    assert capture.payload_bytes["reset"] == 7
    assert capture.streams[0].ended == "rst"


def test_a_connection_of_both_syns() -> None:
    both = [client(0, flags=SYN), server(0, flags=SYN), client(0, flags=SYN | ACK)]
    assert streams_of(*both, client(0, b"a"), server(0, b"b")) == {NAME: "a", BACK: "b"}


def test_a_side_that_talks_to_itself_ends() -> None:
    frame = ethernet(ipv4(tcp(7, 7, 1, b"a"), 6, CLIENT, CLIENT))
    assert streams_of(frame, frame) == {"10.0.0.1:7>10.0.0.1:7": "a"}


def test_windows_come_at_their_offsets() -> None:
    sent = [client(at, b"%04d" % at) for at in range(0, 400, 4)]
    (stream,) = read(*HELLO, *sent).streams
    whole = stream.read(0, 400).tobytes()
    seen = []
    for window in stream.windows(100, 400, 64):
        at = window.base + window.start
        assert bytes(window.view) == whole[at : at + len(window.view)]
        step = len(window.view) if window.at_end else min(50, len(window.view))
        seen.append(bytes(window.view[:step]))
        window.start += step
    assert b"".join(seen) == whole[100:]
    # A window ends after as many runs as it has room for, if each counts as 48 bytes.
    assert len(next(stream.windows(100, 400, 96)).view) == 8


def test_a_window_grows_for_what_does_not_fit() -> None:
    (stream,) = read(*HELLO, client(0, bytes(range(200)))).streams
    sizes = [len(window.view) for window in stream.windows(0, 200, 10)]
    assert sizes == [10, 20, 40, 80, 160, 200]


def test_a_packet_is_complete_with_its_last_frame_not_its_last_byte() -> None:
    (stream,) = read(*HELLO, client(4, b"efgh"), client(0, b"abcd"), client(8, b"i")).streams
    frames, times_ns = stream.completed(np.array([0, 4, 2, 7]), np.array([4, 8, 9, 9]))
    assert frames.tolist() == [5, 4, 6, 6]
    assert times_ns.tolist() == [stream.content.times_ns[frame - 1] for frame in frames]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 2), (1, 4), (3, 7), (5, 8), (6, 9), (8, 9), (11, 13), (12, 13)]
)
def test_only_what_is_there_can_be_read(start: int, stop: int) -> None:
    (stream,) = read(*HELLO, client(2, b"cde"), client(7, b"h"), client(9, b"jkl")).streams
    assert stream.pieces.tolist() == [[2, 5], [7, 8], [9, 12]]
    with pytest.raises(ValueError, match=f"bytes {start} to {stop} are not all in one piece"):
        stream.read(start, stop)


def test_any_part_of_a_piece_can_be_read() -> None:
    (stream,) = read(*HELLO, client(0, b"abc"), client(3, b"defg"), client(7, b"h")).streams
    for start in range(9):
        for stop in range(start, 9):
            assert stream.read(start, stop).tobytes() == b"abcdefgh"[start:stop]


def test_many_segments_out_of_order_are_sorted_elsewhere() -> None:
    sent = [client(at, b"x") for at in range(3000, 0, -2)]
    (stream,) = read(*HELLO, *sent, client(0, b"a"), client(3001, b"z")).streams
    assert stream.size == 3002
    assert len(stream.gaps) == 1500
    assert stream.runs.records.tolist() == [1503, *range(1502, 2, -1), 1504]


def test_where_a_stream_was_closed() -> None:
    frames = [
        tcp(1, 2, 10, flags=SYN),
        tcp(1, 2, 11, b"abc"),
        tcp(1, 2, 14, flags=FIN | ACK),
        tcp(1, 2, 14, flags=FIN | ACK),
        tcp(1, 2, 15, flags=RST),
        tcp(3, 2, 10, b"x"),
    ]
    capture = read_capture(pcap(packets(ethernet(ipv4(frame)) for frame in frames)))
    closed, open_end = capture.streams
    assert (closed.ended, closed.closed) == ("rst", (3, BEGAN_NS + 2000))
    assert closed.span_ns == (BEGAN_NS + 1000, BEGAN_NS + 1000)
    assert (open_end.ended, open_end.closed) == (None, None)


def spaced(*frames: tuple[int, bytes]) -> dict[str, str]:
    """Return the streams of frames that were captured so many nanoseconds after the first."""
    capture = read_capture(pcap([Packet(frame, BEGAN_NS + after) for after, frame in frames]))
    return {stream.name: shown(stream) for stream in capture.streams}


@pytest.mark.parametrize(
    ("silence_ns", "streams"),
    [
        (SILENCE_NS, {NAME: "abc" + "_" * (FAR - 3) + "new"}),
        (SILENCE_NS + 1000, {NAME: "abc", f"{NAME}#2": "new"}),
    ],
)
def test_a_silent_connection_ends(silence_ns: int, streams: dict[str, str]) -> None:
    hello = [(0, frame) for frame in (*HELLO, client(0, b"abc"))]
    late = 5000, client(3, b"")  # an acknowledgment breaks the silence as well
    assert spaced(*hello, late, (5000 + silence_ns, client(FAR, b"new"))) == streams


def test_a_silent_connection_goes_on_where_it_stopped() -> None:
    day_ns = 12 * SILENCE_NS
    frames = [(0, frame) for frame in (*HELLO, client(0, b"abc"))]
    frames += [(day_ns, client(5, b"fg")), (2 * day_ns, client(7, b"h"))]
    assert spaced(*frames) == {NAME: "abc__fgh"}


def test_the_same_numbers_after_a_silence_are_a_port_used_again() -> None:
    frames = [(0, frame) for frame in (*HELLO, client(0, b"abc"))]
    frames += [(2 * SILENCE_NS, frame) for frame in (*HELLO, client(0, b"xyz"))]
    assert spaced(*frames) == {NAME: "abc", f"{NAME}#2": "xyz"}
    frames[4:] = [(1000, frame) for _, frame in frames[4:]]
    assert spaced(*frames) == {NAME: "abc"}


def test_what_has_no_time_was_never_silent() -> None:
    blocks = [simple(frame) for frame in (*HELLO, client(0, b"abc"))]
    late = enhanced(client(FAR, b"new"), BEGAN_NS // 1000)
    capture = read_capture(section() + interface() + b"".join(blocks) + late)
    assert [stream.size for stream in capture.streams] == [FAR + 3]


@pytest.mark.parametrize("says_something", [True, False])
def test_a_reset_of_a_side_without_bytes_ends_the_other_stream(says_something: bool) -> None:
    """What has no stream could not show its end anywhere else."""
    answer = b"answer" if says_something else b""
    frames = [*HELLO, client(0, b"hello"), server(0, answer), server(len(answer), flags=RST)]
    streams = {stream.name: stream for stream in read_capture(pcap(packets(frames))).streams}
    ends = {name: (stream.ended, stream.closed) for name, stream in streams.items()}
    reset = ("rst", (6, BEGAN_NS + 5000))
    assert ends == ({NAME: (None, None), BACK: reset} if says_something else {NAME: reset})


@pytest.mark.parametrize(
    ("sent", "frames"),
    [
        ([client(0, b"abc"), client(0, b"abc")], []),
        ([client(0, b"abc"), client(0, b"abX")], [5]),
        ([client(0, b"abc"), client(2, b"cde"), client(0, b"abcde"), client(3, b"dE")], [7]),
        ([client(4, b"efgh"), client(0, b"abcdEfghij"), client(8, b"ij"), client(6, b"gh")], [5]),
        # A byte to keep the connection alive may have any value.
        ([client(0, b"abc"), client(2, b"?")], []),
    ],
)
def test_other_bytes_than_were_sent_before_are_named(sent: list[bytes], frames: list[int]) -> None:
    repairs = read(*HELLO, *sent, server(0, b"x"), server(0, b"x")).repairs
    named = [f"frame {frame} of {NAME}" for frame in frames]
    assert [placed.text for placed in repairs.different] == named
    assert repairs.differing == len(frames)
    assert len([*repairs.lines()]) == bool(frames)
