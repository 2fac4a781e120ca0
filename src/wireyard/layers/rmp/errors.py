"""Why a message was not taken: nothing of it was sent, and nothing of it is kept."""

from __future__ import annotations

from wireyard.errors import WireError

__all__ = ["MessageTooBig", "NotWritable", "NumbersExhausted", "SendRefused"]


class SendRefused(WireError):
    """A message that cannot be sent now, or never."""


class MessageTooBig(SendRefused):
    """A message of more packets than have numbers, or over the bound of its receivers."""


class NotWritable(SendRefused):
    """The ring is behind: what it has not taken yet leaves no room. Later there is."""


class NumbersExhausted(SendRefused):
    """Every message number is in use. Later some are not."""
