"""JSON Lines by columns: byte for byte those that rows give, of every format."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.results import LOGIN, notes_of
from tests.formats.mqtt import make as mqtt
from tests.make import ALL_TYPES, Value, item, items, packet, section, variety
from tests.mutations import damaged_streams, subject_of
from tests.readings import forced
from wireyard.cli import main
from wireyard.cli.decoding import large, lines
from wireyard.formats import names

OPTIONS = [(), ("--secrets",), ("--mode", "dropmalformed"), ("--limit", "23")]
TEXTS = [
    '", "',
    "\\",
    '\\"',
    "a, b",
    "\n\t\x01\x1f",
    "\x7f\x80\x9f\xa0",
    "\u2027\u2028\u2029é日本🦊",
]
Entry = tuple[str | bytes, int, Value]


def lines_of(data: bytes, *options: str) -> bytes:
    """Return the lines that are written by columns, which are those that are written by rows."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream"
        path.write_bytes(data)
        words = ["decode", str(path), "--out", "jsonl", *options]
        for compiled in (True, False):
            with forced(compiled=compiled):
                done = CliRunner().invoke(main, words, catch_exceptions=False)
            results.append((done.stdout_bytes, notes_of(done.stderr), done.exit_code))
    assert results[0] == results[1]
    return results[0][0]


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have so few rows become lines at once that most slices begin inside a byte of a bitmap.

    And have payloads of a few bytes written in pieces.
    """
    monkeypatch.setattr(lines, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(large, "PIECE_BYTES", 9)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", names())
def test_lines_of_any_stream_are_those_of_rows(name: str, options: tuple[str, ...]) -> None:
    """Packets as they are and as they should not be, garbage, tails, rows of other names."""
    rng = Random(len(options))
    for label in subject_of(name).labels:
        subject = subject_of(label)
        for stream in damaged_streams(subject, subject.corpus(None), rng, 80)[:8]:
            lines_of(stream, "--format", label, *options)
            lines_of(stream, "--format", label, *options, "--where", "length > 60")


@pytest.mark.parametrize("options", [(), ("--secrets",), ("--where", "packet_type in 1,3,8,9")])
def test_lists_are_those_of_rows(options: tuple[str, ...]) -> None:
    """Properties, filters and codes; pairs of texts with all that JSON escapes."""
    pairs = b"".join(mqtt.user(key, value) for key in TEXTS for value in TEXTS)
    reason = b"".join(
        mqtt.numbered(5, 0x40, b"\x10" + mqtt.block(5, b"\x1f" + mqtt.text(one))) for one in TEXTS
    )
    odd = [mqtt.publish(5, properties=pairs), reason, mqtt.subscribe(5, (TEXTS[-1], 1))]
    bad = mqtt.publish(5, 0x30, "a/#", properties=pairs)
    streams = (mqtt.random_stream(5, Random(seed), 60, [*odd, bad]) for seed in range(110))
    written = lines_of(b"".join(streams), "--format", "mqtt", *options)
    assert b'["\\\\\\"","\\", \\""]' in written
    assert written.count(b"\n") > 4096  # more than become lines at once


def test_maps_are_those_of_rows() -> None:
    """Properties of every type, none, empty ones, and those that only the scalar reader takes."""
    sections = [
        section(*ALL_TYPES[:-1]),
        section(*ALL_TYPES),  # with an object
        section(),
        section(*((f"{place} {text}", 8, text) for place, text in enumerate(TEXTS))),
        section(("lone", 8, b"\xed\xa0\x80"), ("\U0001f98a", 8, "\U0001f98a")),
        b"",
    ]
    rng = Random(4)
    parts = [
        packet(
            packet_type=rng.choice((1, 3, 6)),
            items=items(item(1, rng.choice(TEXTS))),
            properties=rng.choice(sections),
            body=rng.randbytes(rng.choice((0, 1, 7, 40))),
        )
        for _ in range(5000)
    ]
    data = b"".join([*parts, LOGIN, *variety(), b"garbage", *parts[:9]])
    password = b"c2VjcmV0".hex().encode()
    written = lines_of(data)
    assert b'"value":"\\ud800"' in written and b'"properties":{}' in written
    assert password not in written and password in lines_of(data, "--secrets")


MARKS = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Line separators and characters that set the direction of text."""
BESIDE = (0x61B, 0x61D, 0x200D, 0x2010, 0x2027, 0x202F, 0x2065, 0x206A, 0x20A8)
"""Their neighbours, which stay as they are."""


def test_what_is_escaped_is_escaped_wherever_it_stands() -> None:
    """DEL too, though it is ASCII."""
    odd = [
        chr(code)
        for code in (*range(1, 0x24), 0x5B, 0x5C, 0x5D, *range(0x7D, 0xA2), *MARKS, *BESIDE)
    ]
    texts = ("x" * place + one + "y" * (17 - place) for one in odd for place in range(18))
    parts = [packet(items=items(item(1, text)), body=text.encode()) for text in texts]
    written = lines_of(b"".join(parts), "--columns", "destination,body")
    assert written.count(b"\\") == 18 * (0x1F + 1 + 2 + 0x21 + len(MARKS))


def test_a_stream_that_the_scalar_reader_gives_alone_is_that_of_rows() -> None:
    """All packets have an object, so no line comes from columns."""
    lines_of(packet(properties=section(*ALL_TYPES)) * 300)


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
_VALUES = st.one_of(
    st.tuples(st.just(6), st.floats(width=32)),
    st.tuples(st.just(7), st.floats()),
    st.tuples(st.just(5), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(1), st.booleans()),
    st.tuples(st.just(8), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)),
)


@given(st.lists(st.none() | st.dictionaries(_NAMES, _VALUES, max_size=6), min_size=1, max_size=20))
def test_any_properties_are_those_of_rows(some: list[dict[str, tuple[int, Value]] | None]) -> None:
    parts = []
    for entries in some:
        found = [(name, kind, value) for name, (kind, value) in (entries or {}).items()]
        parts.append(packet(properties=b"" if entries is None else section(*found)))
    lines_of(b"".join(parts))
