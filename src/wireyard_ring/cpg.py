"""corosync's closed process groups: the functions of its C library that a ring needs, by ctypes.

The library comes with corosync (Debian: ``libcpg4``). It is loaded when a group is joined, and its
callbacks run inside `Group.dispatch`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, NamedTuple

__all__ = ["CpgError", "Group", "Member"]

_OK, _TRY_AGAIN = 1, 6
_AGREED = 2
"""The guarantee of a total order, the only one that corosync implements."""
_DISPATCH_ONE_NONBLOCKING = 4
"""Dispatch one callback if there is any, so that a flood of messages does not block the caller."""
_LONGEST_NAME = 128
_ERRORS = {
    2: "corosync does not run here, or has ended",
    6: "try again",
    9: "bad handle",
    11: "access denied",
    14: "exists already",
    20: "name too long",
    29: "not ready",
}


class _Name(Structure):
    _fields_ = (("length", c_uint32), ("value", ctypes.c_char * _LONGEST_NAME))


class _Address(Structure):
    _fields_ = (("nodeid", c_uint32), ("pid", c_uint32), ("reason", c_uint32))


class _Vector(Structure):
    _fields_ = (("base", c_char_p), ("size", c_size_t))


_Deliver = ctypes.CFUNCTYPE(None, c_uint64, POINTER(_Name), c_uint32, c_uint32, c_void_p, c_size_t)
_Change = ctypes.CFUNCTYPE(
    None, c_uint64, POINTER(_Name), POINTER(_Address), c_size_t, POINTER(_Address), c_size_t,
    POINTER(_Address), c_size_t,
)  # fmt: skip


class _Callbacks(Structure):
    _fields_ = (("deliver", _Deliver), ("change", _Change))


class Member(NamedTuple):
    """A process in a group."""

    node: int
    pid: int


class CpgError(Exception):
    """An error code of the library."""

    def __init__(self, call: str, code: int) -> None:
        self.code = code
        super().__init__(f"{call}: {_ERRORS.get(code, 'error')} ({code})")

    @property
    def try_again(self) -> bool:
        """Whether the call may succeed a little later."""
        return self.code == _TRY_AGAIN


@cache
def _library() -> Any:
    """Return the library; raise an OSError if it is not installed."""
    library = ctypes.CDLL(ctypes.util.find_library("cpg") or "libcpg.so.4")
    library.cpg_initialize.argtypes = (POINTER(c_uint64), POINTER(_Callbacks))
    library.cpg_mcast_joined.argtypes = (c_uint64, c_int, POINTER(_Vector), c_uint32)
    library.cpg_join.argtypes = library.cpg_leave.argtypes = (c_uint64, POINTER(_Name))
    library.cpg_dispatch.argtypes = (c_uint64, c_int)
    library.cpg_fd_get.argtypes = (c_uint64, POINTER(c_int))
    library.cpg_local_get.argtypes = (c_uint64, POINTER(c_uint32))
    library.cpg_finalize.argtypes = (c_uint64,)
    return library


class Group:
    """A connection to corosync, and the group joined on it.

    The name has up to 128 bytes. `deliver` is called with the sender and the message, `change` with
    the members when they change, at the same point in the order of messages at all members. An
    OSError is raised if the library is not installed, a CpgError if corosync does not run here or
    denies access.
    """

    def __init__(
        self,
        name: str,
        deliver: Callable[[Member, bytes], None],
        change: Callable[[list[Member]], None],
    ) -> None:
        self._library = _library()
        encoded = name.encode()
        self._name = _Name(len(encoded), encoded)
        self._handle = c_uint64()
        self._raised: BaseException | None = None

        def delivered(
            _handle: int, _group: Any, node: int, pid: int, message: int, size: int
        ) -> None:
            with self._out_of_c():
                deliver(Member(node, pid), ctypes.string_at(message, size))

        def changed(
            _handle: int, _group: Any, members: Any, count: int, *_left_and_joined: Any
        ) -> None:
            with self._out_of_c():
                change([Member(members[n].nodeid, members[n].pid) for n in range(count)])

        # Kept alive here, because C does not count references.
        self._callbacks = _Callbacks(_Deliver(delivered), _Change(changed))
        self._vector = _Vector()
        self._check("cpg_initialize", byref(self._handle), byref(self._callbacks))

    def join(self) -> None:
        """Join the group."""
        self._check("cpg_join", self._handle, byref(self._name))

    def leave(self) -> None:
        """Leave the group and close the connection."""
        if self._handle:
            self._library.cpg_leave(self._handle, byref(self._name))
            self._library.cpg_finalize(self._handle)
            self._handle = c_uint64()

    @property
    def node(self) -> int:
        """Number of this node."""
        node = c_uint32()
        self._check("cpg_local_get", self._handle, byref(node))
        return node.value

    def fileno(self) -> int:
        """Return the file descriptor that is readable when there is something to dispatch."""
        descriptor = c_int()
        self._check("cpg_fd_get", self._handle, byref(descriptor))
        return descriptor.value

    def dispatch(self) -> bool:
        """Call the callback for one message or change; return whether there was one."""
        code = self._library.cpg_dispatch(self._handle, _DISPATCH_ONE_NONBLOCKING)
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        if code not in (_OK, _TRY_AGAIN):
            raise CpgError("cpg_dispatch", code)
        return bool(code == _OK)

    def send(self, message: bytes) -> bool:
        """Send to all members, this one too; return whether there was room."""
        self._vector.base, self._vector.size = message, len(message)
        code = self._library.cpg_mcast_joined(self._handle, _AGREED, byref(self._vector), 1)
        if code not in (_OK, _TRY_AGAIN):
            raise CpgError("cpg_mcast_joined", code)
        return bool(code == _OK)

    @contextmanager
    def _out_of_c(self) -> Iterator[None]:
        """Keep an exception of a callback, which C would lose, for `dispatch` to raise."""
        try:
            yield
        except BaseException as error:
            self._raised = error

    def _check(self, call: str, *arguments: object) -> None:
        code = getattr(self._library, call)(*arguments)
        if code != _OK:
            raise CpgError(call, code)
