"""The table of symptoms: problems of messages and clients, each with a query that finds it.

A query returns a row for each finding, with these columns: `destination` and `client`, of which one
may be null; `count`; and the proof, `source`, `frame`, `stream` and `offset` of a packet, or of a
stored record, which has no frame. Other names in braces in `text` and `next` are columns too,
except ``input`` (the inputs of the command), ``subject`` (the destination, else the client) and
``messages``, ``times`` and so on (the count with that noun).

Queries only use packets with a time. A bare stream has none, and only one direction, in which no
request is answered.
"""

from __future__ import annotations

from typing import Final

from wireyard.answers.symptoms.cluster import CLUSTER
from wireyard.answers.symptoms.every import EVERY
from wireyard.answers.symptoms.jms import JMS
from wireyard.answers.symptoms.mqtt import MQTT
from wireyard.answers.symptoms.symptom import LONG_NS, MUCH_SLOWER_NS, SEVERITIES, Symptom

__all__ = ["LONG_NS", "MUCH_SLOWER_NS", "SEVERITIES", "SYMPTOMS", "Symptom"]

SYMPTOMS: Final = tuple(
    sorted((*MQTT, *JMS, *CLUSTER, *EVERY), key=lambda each: SEVERITIES.index(each.severity))
)
"""All symptoms, the worst first; symptoms of the same severity in the order of display."""
