"""What a capture that is read while it is made goes on with in another process.

A state is a tree: dictionaries with text keys, lists, and in them values of JSON, arrays of
integers and bytes as arrays. It has connections that are open and nothing that is over, within the
limits of `LiveCapture`; it has no secrets, which are read from key logs and files again.
`pack_state` makes of it one JSON text and the arrays, which are stored as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from wireyard.captures.growing import GrowingFile
from wireyard.captures.live import LiveCapture
from wireyard.errors import WireError

__all__ = ["StateError", "capture_state", "pack_state", "restore_capture", "unpack_state"]

_VERSION: Final = 1
_ARRAY: Final = "\0array"
"""The key of what stands for an array; no other key of a state is so."""
_KINDS: Final = frozenset({"uint8", "int8", "int32", "int64"})


class StateError(WireError):
    """A state that is damaged, or another version's; what it is of has to be read again."""


def capture_state(capture: LiveCapture, file: GrowingFile) -> dict[str, Any] | None:
    """Return the state of a capture all of whose streams were read as far as they can be.

    None while too little of the file is there, or behind damage.
    """
    reading = file.state()
    if reading is None:
        return None
    return {"version": _VERSION, "file": reading, "capture": capture.state()}


def restore_capture(state: Mapping[str, Any], capture: LiveCapture, file: GrowingFile) -> None:
    """Have a new capture and file go on where others stood.

    Raises
    ------
    StateError
        It is no state of a capture, or of another version.
    """
    try:
        if state["version"] != _VERSION:
            raise StateError("the state of a capture is another version's")
        file.restore(state["file"])
        capture.restore(state["capture"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise StateError(f"the state of a capture is damaged ({error})") from None


def pack_state(state: Mapping[str, Any]) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """Return a state as JSON and the arrays that it stands for."""
    arrays: list[np.ndarray[Any, Any]] = []

    def packed(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(np.ascontiguousarray(value))
            return {_ARRAY: len(arrays) - 1}
        if isinstance(value, np.integer):
            return int(value)
        raise TypeError(f"{type(value)} in a state")

    return json.dumps(state, default=packed, separators=(",", ":")), arrays


def unpack_state(text: str, arrays: Sequence[np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Return the state that was packed.

    Raises
    ------
    StateError
        It is damaged.
    """

    def unpacked(value: dict[str, Any]) -> Any:
        if _ARRAY not in value:
            return value
        array = arrays[value[_ARRAY]]
        if array.dtype.name not in _KINDS:
            raise ValueError(array.dtype.name)
        return array if array.flags.writeable else array.copy()

    try:
        state = json.loads(text, object_hook=unpacked)
    except (ValueError, IndexError, TypeError) as error:
        raise StateError(f"a state is damaged ({error})") from None
    if not isinstance(state, dict):
        raise StateError("a state is damaged")
    return state
