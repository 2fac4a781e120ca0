"""What can go wrong, as data: an error names the format, the field, the byte and the rule.

Two families. A ``DecodeError`` is about bytes somebody sent us and always says where; an
``EncodeError`` is about a value the caller wants written and always says what would fit.
"Need more bytes" is not an error: framing returns it as a value.
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
    """Base of every error wireyard raises on purpose; ``str()`` is one line for people."""


class UsageError(WireError):
    """The caller asked for something that does not exist: a format, a column, an option."""


class UnknownFormat(UsageError):
    """Bytes that begin like no known format, and nobody named one."""


class SourceError(WireError):
    """A source cannot be read or a target cannot be written; the text names it."""


class LakeError(WireError):
    """A lake cannot be read or written, or is not one; the text names it."""


class LakeDamaged(LakeError):
    """Files of a lake are missing, or are not what was written."""


class LedgerError(WireError):
    """The rows of a stream do not account for its bytes; nothing of the run is committed."""


class DecodeError(WireError):
    """Bytes that break a rule of their format.

    Parameters
    ----------
    format
        Name of the format that was being read, such as ``jmq``.
    field
        The field at fault, in the words of the specification.
    offset
        Bytes from the first byte of the packet to the fault.
    problem
        What is wrong, as the middle of a sentence: ``is 71, at least 72 are needed``.
    spec
        Document and section that state the rule.
    code
        Stable name of the rule for programs; each subclass has a default.
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
    """A value the specification does not allow."""


class UnsupportedVersion(DecodeError):
    """A version this format never had; the packet's size is still trusted within bounds."""

    code = "unsupported_version"


class LimitExceeded(DecodeError):
    """A length or count over one of our own caps; nothing was allocated for it."""

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
    """A value that has no form on the wire.

    Parameters
    ----------
    field
        The field that cannot be written.
    value
        The value that was given.
    maximum
        The largest value or length that fits, or a sentence saying what would.
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
