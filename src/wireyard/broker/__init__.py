"""A broker for MQTT 3.1, 3.1.1 and 5.0, for tests, development and edge gateways.

``wireyard.broker()`` runs one in a thread (`BrokerThread`). The modules:

- ``half``: what the cores of both protocols share: limits of connections, what is due
- ``core``: the broker without sockets and clocks, of ``session``, ``routing`` and ``retained``
- ``store``: what outlives the process, for any protocol: tables of an SQLite file;
  ``persistence``: those of MQTT
- ``bridge``: messages of MQTT for JMS clients, and the reverse
- ``settings``, ``access``: its limits, its users and what they may do
- ``server``, ``connection``: the same on sockets; ``recording`` writes what passes as a capture
- ``thread``: a server in a thread
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wireyard.broker.thread import BrokerThread

__all__ = ["BrokerThread"]


class _Callable(ModuleType):
    """A module that can be called: ``with wireyard.broker() as broker``."""

    def __call__(self, *args: Any, **named: Any) -> BrokerThread:
        from wireyard.broker.thread import BrokerThread

        return BrokerThread(*args, **named)

    def __getattr__(self, name: str) -> Any:
        if name != "BrokerThread":
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        from wireyard.broker.thread import BrokerThread

        return BrokerThread


sys.modules[__name__].__class__ = _Callable
