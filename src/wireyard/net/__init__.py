"""Asyncio shells around the layers: sockets, corosync, timers, without protocol decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from wireyard.net.corosync import Corosync
from wireyard.net.inbox import Client, Replies
from wireyard.net.lines import read_lines
from wireyard.net.memory import MemoryHub
from wireyard.net.process import Process
from wireyard.net.ring import Ring
from wireyard.net.tcp import Tcp
from wireyard.net.transport import RingFailed, Transport
from wireyard.net.udp import UdpMulticast

__all__ = [
    "Client",
    "Corosync",
    "MemoryHub",
    "Process",
    "Replies",
    "Ring",
    "RingFailed",
    "Tcp",
    "Transport",
    "UdpMulticast",
    "read_lines",
    "run",
]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop of its own, and return its result."""
    return asyncio.run(main)
