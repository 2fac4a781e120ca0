"""The errors of a client."""

from __future__ import annotations

from wireyard.errors import SourceError


class ConnectionLost(SourceError):
    """There is no connection to the broker."""


class Refused(SourceError):
    """The broker refused the client, or ended the connection with an error.

    Parameters
    ----------
    code
        Return code or reason code.
    """

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message, code)

    def __str__(self) -> str:
        return str(self.args[0])
