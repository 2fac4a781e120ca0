"""Where texts go that are copied out of scratch: behind the arrays, however much room is there."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.formats.gpacket import make as gpacket_make
from tests.make import variety
from wireyard.formats import get_format, property_kernels
from wireyard.formats.property_kernels import retry_texts

STREAMS: dict[str, Callable[[], list[bytes]]] = {"jmq": variety, "gpacket": gpacket_make.variety}


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("name", STREAMS)
def test_texts_that_find_no_room_are_copied_again(
    name: str, bodies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []

    def put_again(*args: Any) -> int:
        copied.append(retry_texts(*args))
        return copied[-1]

    monkeypatch.setattr(property_kernels, "retry_texts", put_again)
    format = get_format(name)
    columns = import_module(format.columnar.module)
    data = np.frombuffer(b"".join(STREAMS[name]()) * 50, np.uint8)
    starts, sizes, contexts = columns.scan_frames(
        data, 0, len(data), len(data), format.framing.max_packet_bytes, format.context
    )
    wanted = [one for one in format.columns if bodies or one.kind != "binary"]
    batches = []
    for share in (8.0, 0.0, 0.05):
        decoder = columns.ColumnDecoder(wanted, True, {})
        decoder._layout.claimed_share = share
        batch, rejected = decoder.decode(data, len(data), starts, sizes, contexts[:-1], starts)
        batch.validate(full=True)
        batches.append((batch.take(np.delete(np.arange(len(starts)), rejected)), rejected.tolist()))
        assert decoder._layout.claimed_share > 0.05
    assert batches[0] == batches[1] == batches[2]
    assert len(batches[0][1]) < len(starts)
    assert bodies or len(copied) == 2  # bodies are given room for all bytes
