"""Names of destinations, and the names that they have as topics of MQTT.

``plant.line`` is ``plant/line``; of the wildcards ``*`` is ``+``, and ``>`` or ``**`` at the end is
``#``. A queue has the prefix ``$Q/``. So no name has a character that means something there.
"""

from __future__ import annotations

from typing import Final

from wireyard.layers.jmq.rules import TEMPORARY

__all__ = ["access_name", "is_name"]

_QUEUES: Final = "$Q/"
_FOREIGN: Final = "/+#"


def is_name(name: str, most: int) -> bool:
    """Return whether a text can be the name of a destination, or a client id."""
    if not 0 < len(name) <= most or not name.isprintable() or " " in name:
        return False
    return name.startswith(TEMPORARY) or not any(one in name for one in _FOREIGN)


def access_name(name: str, is_queue: bool) -> str:
    """Return the topic, or the topic filter, that a name is for the list of access."""
    levels = []
    for level in name.split("."):
        if level in ("**", ">"):
            levels.append("#")
            break
        levels.append("+" if level == "*" else level)
    return (_QUEUES if is_queue else "") + "/".join(levels)
