"""The tables above bronze, as plain DataFrame functions.

They neither read nor write, and all they do to rows is SQL, so the same functions serve streams;
but messages of several RMP packets are put together in Python, each sender by one task.
A time ``x_ms`` or ``x_ns`` has a twin ``x_at``, a timestamp in UTC. The twin is null where the
number is no time (0 is "never") or outside of the years 1 to 9999 that timestamps have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame

from wireyard.spark.tables import jms, rmp
from wireyard.spark.tables.destinations import destinations

__all__ = ["MESSAGES", "destinations"]

MESSAGES: Mapping[str, Callable[[DataFrame], DataFrame]] = MappingProxyType(
    {"jmq": jms.messages, "rmp": rmp.messages}
)
"""By format, what finds the messages among its packets; the tables have the same columns.

MQTT's come with its facts (``wireyard.spark.mqtt_facts``).
"""
