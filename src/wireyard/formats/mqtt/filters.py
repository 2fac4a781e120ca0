"""Topic filters of SUBSCRIBE and UNSUBSCRIBE, and their conversion from plain Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wireyard.errors import EncodeError
from wireyard.formats.fields import flag, whole


class Filter(NamedTuple):
    """A topic filter and, in SUBSCRIBE, its byte of subscription options."""

    filter: str | None
    options: int | None = None

    @property
    def qos(self) -> int | None:
        """Requested QoS, the highest that is wanted."""
        return None if self.options is None else self.options & 3

    @classmethod
    def of(
        cls,
        filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> Filter:
        """Return a filter of SUBSCRIBE with the subscription options of 5.0.

        Raises
        ------
        EncodeError
            An option out of its range.
        """
        if not isinstance(filter, str):
            raise EncodeError("filter", filter, "text is needed")
        options = _two_bits("qos", qos) | _two_bits("retain_handling", retain_handling) << 4
        options |= flag("no_local", no_local) << 2
        return cls(filter, options | flag("retain_as_published", retain_as_published) << 3)


def _two_bits(name: str, value: int) -> int:
    if not 0 <= whole(name, value) <= 3:
        raise EncodeError(name, value, "an integer from 0 to 3")
    return value


def subscribed(field: str, given: Any) -> tuple[Filter, ...]:
    """Return the filters of SUBSCRIBE, each given as text (QoS 0), as text and QoS, or a `Filter`.

    Anything else raises an EncodeError.
    """
    filters = []
    for item in _listed(field, given):
        match item:
            case str():
                filters.append(Filter(item, 0))
            case (str(text), int(options)) if not isinstance(options, bool):
                filters.append(Filter(text, options))
            case _:
                raise EncodeError(field, item, "a topic filter and its QoS are needed")
    return tuple(filters)


def unsubscribed(field: str, given: Any) -> tuple[Filter, ...]:
    """Return the filters of UNSUBSCRIBE, each given as text or as a `Filter` without options.

    Anything else raises an EncodeError.
    """
    filters = []
    for item in _listed(field, given):
        match item:
            case str():
                filters.append(Filter(item))
            case (str(text), None):
                filters.append(Filter(text))
            case _:
                raise EncodeError(field, item, "a topic filter without options is needed")
    return tuple(filters)


def _listed(field: str, given: Any) -> Sequence[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise EncodeError(field, given, "a sequence of topic filters is needed")
    return given
