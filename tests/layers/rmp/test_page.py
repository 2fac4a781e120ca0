"""The page about the layer: its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.layers.rmp.make import YOU, segment

PAGE = Path(__file__).resolve().parents[3] / "docs" / "layers" / "rmp.md"


def test_the_examples_do_what_they_say() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    first, handled = blocks[0], next(block for block in blocks if "register_foreign" in block)
    names: dict[str, Any] = {}
    exec(first.replace("layer.next_event() ", "found = layer.next_event() "), names)
    assert names["found"].data == b"hello"
    exec(handled, names)
    assert names["layer"].next_packet("ring")[1] == b"\x10\x00theirs"
    asked = segment(1, 1, 1, b"shout", layer=2, reply_requested=True)
    names["layer"].receive("ring", YOU, asked, qos=names["qos"], now=0.0)
    assert names["layer"].next_event() is None
    assert names["layer"].next_packet("ring")[1].endswith(b"SHOUT")
