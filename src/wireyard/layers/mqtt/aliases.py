"""Topic aliases of one direction of a connection (MQTT 5.0, 3.3.2.3.4)."""

from __future__ import annotations

__all__ = ["Aliases"]


class Aliases:
    """What each alias stands for; a new connection has a new one.

    Parameters
    ----------
    maximum
        The highest alias that the side which is published to takes; None if that is not known.

    Limits
    ------
    An alias has 16 bits, so there are at most 65,535.
    """

    __slots__ = ("_topics", "maximum")

    def __init__(self, maximum: int | None = None) -> None:
        self.maximum = maximum
        self._topics: dict[int, str] = {}

    def resolve(self, topic: str, alias: int | None) -> tuple[str | None, str | None]:
        """Return the topic that a PUBLISH means, and the fault if there is one.

        Returns
        -------
        topic, fault
            None for a topic that was never told. The fault is ``alias_unknown`` or
            ``alias_maximum``; an alias above the maximum is understood all the same.
        """
        if alias is None:
            return topic, None
        above = self.maximum is not None and alias > self.maximum
        if topic:
            self._topics[alias] = topic
            return topic, "alias_maximum" if above else None
        known = self._topics.get(alias)
        return known, "alias_maximum" if above else None if known else "alias_unknown"
