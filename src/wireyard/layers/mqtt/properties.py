"""Properties of a packet by their names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

__all__ = ["properties_of"]

_NUMBERS: Final = frozenset(
    {"message_expiry_interval", "session_expiry_interval", "receive_maximum", "topic_alias"}
    | {"topic_alias_maximum", "maximum_packet_size", "will_delay_interval"}
)
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def properties_of(rows: Any) -> Mapping[str, Any]:
    """Return the properties of a packet by name; of one that comes again, all in a list.

    Numbers are numbers, whether they come as rows or as columns have them.
    """
    if not rows:
        return _NONE
    found: dict[str, Any] = {}
    for one in rows:
        name, value = one["name"], one["value"]
        if name == "subscription_identifier":
            found.setdefault(name, []).append(int(value))
        elif name in _NUMBERS and value is not None:
            found[name] = int(value)
        elif name == "correlation_data" and isinstance(value, str):
            found[name] = bytes.fromhex(value)
        else:
            found[name] = value
    return found
