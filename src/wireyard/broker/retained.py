"""The retained value of each topic, as a tree of topic levels."""

from __future__ import annotations

from collections.abc import Iterator

from wireyard.endpoints import Message
from wireyard.layers.mqtt.deliveries.subscriptions import MAX_LEVELS

_LEVEL_BYTES = 300


class _Level:
    __slots__ = ("below", "message")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.message: Message | None = None


class Retained:
    """The retained values of a broker.

    There are at most `most` values, of `most_bytes` together, of topics of at most 200 levels. A
    lookup visits only levels that match.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.count = self.bytes = 0
        self._root = _Level()

    def set(self, message: Message) -> bool:
        """Make a message the value of its topic, or remove that if the message is empty.

        Return False if it is above a limit; the topic then has no value.
        """
        levels = message.topic.split("/")
        self._remove(levels)
        if not message.payload:
            return True
        size = _size_of(message)
        if (
            len(levels) > MAX_LEVELS
            or self.count >= self.most
            or self.bytes + size > self.most_bytes
        ):
            return False
        at = self._root
        for level in levels:
            at = at.below.setdefault(level, _Level())
        at.message = message
        self.count += 1
        self.bytes += size
        return True

    def _remove(self, levels: list[str]) -> None:
        path = [self._root]
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return
            path.append(below)
        old = path[-1].message
        if old is None:
            return
        path[-1].message = None
        self.count -= 1
        self.bytes -= _size_of(old)
        for above, level, at in zip(path[-2::-1], levels[::-1], path[:0:-1], strict=True):
            if at.below or at.message is not None:
                break
            del above.below[level]

    def matching(self, filter: str, now: float) -> Iterator[Message]:
        """Yield the values of the topics that a filter without a share name matches."""
        levels = filter.split("/")
        waiting = [(self._root, 0)]
        while waiting:
            at, depth = waiting.pop()
            if depth == len(levels):
                if at.message is not None and not _is_over(at.message, now):
                    yield at.message
                continue
            level = levels[depth]
            if level == "#":
                yield from _all_below(at, depth == 0, now)
            elif level == "+":
                waiting += [
                    (below, depth + 1)
                    for name, below in at.below.items()
                    if depth or not name.startswith("$")
                ]
            elif level in at.below:
                waiting.append((at.below[level], depth + 1))


def _all_below(at: _Level, is_root: bool, now: float) -> Iterator[Message]:
    waiting = [at]
    while waiting:
        at = waiting.pop()
        if at.message is not None and not _is_over(at.message, now):
            yield at.message
        waiting += [
            below for name, below in at.below.items() if not (is_root and name.startswith("$"))
        ]
        is_root = False


def _is_over(message: Message, now: float) -> bool:
    return message.expires_at is not None and now >= message.expires_at


def _size_of(message: Message) -> int:
    return message.size + _LEVEL_BYTES * (1 + message.topic.count("/"))
