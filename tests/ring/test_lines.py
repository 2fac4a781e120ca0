"""Lines as they come, however they are cut."""

from __future__ import annotations

import io

import pytest

from tests.ring.loops import in_a_loop
from wireyard.errors import SourceError
from wireyard_ring import command, read_lines


async def all_lines(data: bytes) -> list[bytes]:
    return [line async for some in read_lines(io.BytesIO(data)) for line in some]


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 100])
@pytest.mark.parametrize("data", [b"", b"a", b"a\n", b"\n", b"\n\na\n\nbc\nd", b"abc\nabc\n"])
@in_a_loop
async def test_lines_are_those_of_the_whole(
    data: bytes, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_READ_BYTES", read_bytes)
    assert await all_lines(data) == [line.removesuffix(b"\n") for line in io.BytesIO(data)]


@in_a_loop
async def test_a_line_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_READ_BYTES", 10)
    monkeypatch.setattr(command, "MAX_LINE_BYTES", 100)
    assert await all_lines(b"x" * 100) == [b"x" * 100]
    with pytest.raises(SourceError, match="more than 100 bytes"):
        await all_lines(b"a\n" + b"x" * 101)
