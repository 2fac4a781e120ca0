"""Errors of sending: no part of a refused message is sent or kept."""

from __future__ import annotations

from wireyard.errors import WireError

__all__ = ["MessageTooBig", "NotWritable", "NumbersExhausted", "SendRefused"]


class SendRefused(WireError):
    """A message that cannot be sent now, or never."""


class MessageTooBig(SendRefused):
    """A message of more packets than can be numbered, or over the bound of its receivers."""


class NotWritable(SendRefused):
    """The queue of the ring is full; there is room again once the ring has accepted packets."""


class NumbersExhausted(SendRefused):
    """Every message number is in use; some become free with time."""
