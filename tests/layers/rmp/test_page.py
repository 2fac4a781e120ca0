"""The page about the layer: its example runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "layers" / "rmp.md"


def test_the_first_event_is_what_the_example_says() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(code.replace("layer.next_event() ", "found = layer.next_event() "), names)
    assert getattr(names["found"], "data", None) == b"hello"
