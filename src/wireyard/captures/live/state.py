"""The stored state of a live capture, from which another process continues.

A state is a tree: dictionaries with text keys, lists, and in them JSON values, arrays of integers,
and bytes as arrays. It contains the open connections, nothing that is over, and is as large as
the limits of `LiveCapture` allow. Secrets of TLS are not in it: they are read from key logs and
files again. Bytes of unfinished packets are, and they may have a password in them, so a state is
stored where only its owner can read it. `pack_state` turns it into one JSON text and the arrays,
which are stored as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from wireyard.captures.records import NO_TIME
from wireyard.errors import WireError

_ARRAY: Final = "\0array"
"""Key of the JSON object that stands for an array; no other key of a state begins like it."""
KINDS: Final = {name: np.dtype(name) for name in ("uint8", "int8", "int32", "int64")}
"""The types of arrays in a state, by name."""
_TYPES: Final = frozenset(KINDS.values())
_MOST: Final = 1 << 62
"""Numbers of a state are no larger: sums and differences of two of them fit into its arrays."""


class StateError(WireError):
    """A state that is damaged or of another version; its capture has to be read again."""


def pack_state(state: Mapping[str, Any]) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """Return a state as JSON text and its arrays."""
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
    """Return the state that `pack_state` packed.

    `StateError` is raised if it is damaged.
    """

    def unpacked(value: dict[str, Any]) -> Any:
        if _ARRAY not in value:
            return value
        array = arrays[value[_ARRAY]]
        if array.dtype not in _TYPES:
            raise ValueError(array.dtype.name)
        return array if array.flags.writeable else array.copy()

    try:
        state = json.loads(
            text,
            object_hook=unpacked,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_number,
        )
    except (ValueError, IndexError, TypeError, RecursionError) as error:
        raise StateError(f"a state is damaged ({error})") from None
    if not isinstance(state, dict):
        raise StateError("a state is damaged")
    return state


def _number(text: str) -> int:
    """Return a number of a state: all are integers."""
    number = int(text)
    if not (-_MOST <= number <= _MOST or number == NO_TIME):
        raise ValueError(f"{number} is no number of a state")
    return number
