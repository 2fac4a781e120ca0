"""What a JMQ client may have; each limit that is reached is said in one line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JmqLimits"]


@dataclass(frozen=True, slots=True)
class JmqLimits:
    """Limits of the JMQ half of a broker, beside those of ``Settings``.

    Parameters
    ----------
    max_parts
        Sessions, consumers, producers, browsers and open transactions of one connection, of each.
    max_kept
        Messages of one queue or topic, waiting or held; also those sent in one transaction.
    max_name
        Characters of a name.
    producer_credit, connection_credit
        Messages that a producer, and a connection, sends until it waits for RESUME_FLOW.
    shared_prefetch
        Messages that a consumer of a shared subscription gets in advance.
    """

    max_destinations: int = 100_000
    max_subscriptions: int = 100_000
    max_parts: int = 10_000
    max_kept: int = 100_000
    max_dead: int = 10_000
    max_transactions: int = 10_000
    max_name: int = 1024
    producer_credit: int = 1000
    connection_credit: int = 5000
    shared_prefetch: int = 5
