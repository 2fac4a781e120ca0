"""What may be wrong with messages and their clients: the table of symptoms, a query each.

A query selects what has a symptom, a row each, with these columns: `destination` and `client`, of
which one may be null, `count`, and its proof: `source`, `frame`, `stream` and `offset` of a packet
or of a stored record, which has no frame. What else `text` and `next` name in braces is a column,
too; there ``input`` is what was asked, ``subject`` the destination, or the client, and
``messages``, ``times`` and so on are the count with that word.

Queries look at what has times. Of a bare stream one direction is there, and nobody answers in it.
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
    sorted((*MQTT, *JMS, *CLUSTER, *EVERY), key=lambda one: SEVERITIES.index(one.severity))
)
"""All symptoms, the worst first; those of a severity in the order in which they are shown."""
