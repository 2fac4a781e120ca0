"""The exceptions of wireyard, which hold the format, the field, the offset and the rule as data.

A ``DecodeError`` is about received bytes and has their position; an ``EncodeError`` is about a
value to be written and has the limit that it exceeds. "Need more bytes" is not an error: framing
returns it as a value.
"""

from __future__ import annotations

__all__ = [
    "DecodeError",
    "EncodeError",
    "LakeDamaged",
    "LakeError",
    "LedgerError",
    "LimitExceeded",
    "Malformed",
    "SourceError",
    "Truncated",
    "UnknownFormat",
    "UnsupportedVersion",
    "UsageError",
    "WireError",
]


class WireError(Exception):
    """Base of all errors of wireyard; ``str()`` is one line for display."""


class UsageError(WireError):
    """An argument that does not exist or is not valid: a format, a column, an option."""


class UnknownFormat(UsageError):
    """The format was not given and could not be detected from the first bytes."""


class SourceError(WireError):
    """A source cannot be read or a target cannot be written; the message names it."""


class LakeError(WireError):
    """A lake cannot be read or written, or is not one; the message names it."""


class LakeDamaged(LakeError):
    """Files of a lake are missing, or differ from those that were written."""


class LedgerError(WireError):
    """The rows of a stream do not cover its bytes; nothing of the run is committed."""


class DecodeError(WireError):
    """Bytes that break a rule of their format.

    Parameters
    ----------
    format
        Name of the format, such as ``jmq``.
    field
        Name of the field in the specification.
    offset
        Offset of the fault in the packet, in bytes.
    problem
        Description of the fault, as a predicate: ``is 71, at least 72 are needed``.
    spec
        Document and section of the rule.
    code
        Stable identifier of the rule, for programs; each subclass has a default.
    """

    code = "malformed"

    def __init__(
        self,
        format: str,
        field: str,
        offset: int,
        problem: str,
        spec: str,
        code: str | None = None,
    ) -> None:
        self.format = format
        self.field = field
        self.offset = offset
        self.problem = problem
        self.spec = spec
        self.code = code or type(self).code
        super().__init__(format, field, offset, problem, spec, self.code)

    def __str__(self) -> str:
        return f"{self.format}: '{self.field}' {self.problem} at byte {self.offset} [{self.spec}]"

    def row(self) -> dict[str, str | int]:
        """Return the error as the ``error`` value of a row."""
        return {
            "code": self.code,
            "field": self.field,
            "offset": self.offset,
            "message": str(self),
            "spec": self.spec,
        }


class Malformed(DecodeError):
    """A value that the specification does not allow."""


class UnsupportedVersion(DecodeError):
    """An unknown version; the packet's size still frames it, within limits."""

    code = "unsupported_version"


class LimitExceeded(DecodeError):
    """A length or count over one of our own limits; nothing was allocated for it."""

    code = "limit_exceeded"


class Truncated(DecodeError):
    """A field that needs more bytes than its section has left."""

    code = "truncated"

    def __init__(
        self, format: str, field: str, offset: int, needed: int, available: int, spec: str
    ) -> None:
        self.needed = needed
        self.available = available
        super().__init__(format, field, offset, f"needs {needed} bytes, {available} left", spec)

    def __reduce__(self) -> tuple[object, ...]:
        args = (self.format, self.field, self.offset, self.needed, self.available, self.spec)
        return type(self), args


class EncodeError(WireError):
    """A value that the wire cannot represent.

    Parameters
    ----------
    field
        Name of the field.
    value
        The rejected value.
    maximum
        The largest value or length that fits, or a sentence about valid values.
    """

    def __init__(self, field: str, value: object, maximum: object) -> None:
        self.field = field
        self.value = value
        self.maximum = maximum
        super().__init__(field, value, maximum)

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 60:
            shown = shown[:57] + "..."
        return f"'{self.field}' cannot be {shown}: {self.maximum}"
