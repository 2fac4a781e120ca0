"""The facts of JMS, from packets of JMQ and GPackets, as `layers.facts` registers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wireyard.layers.facts import DerivedFiles, Facts, PacketFile, Verdict
from wireyard.layers.jmq.symptoms import SYMPTOMS
from wireyard.layers.jmq.symptoms.cluster import CLUSTER

if TYPE_CHECKING:
    import pyarrow as pa

    from wireyard.layers.newest import NewestRules

FORMATS: Final = ("jmq", "gpacket")
VERDICTS: Final[Mapping[str, Verdict]] = MappingProxyType(
    {
        "dead": Verdict(
            "bad", "the client could not deliver it; the broker moves it to the dead message queue"
        ),
        "expired": Verdict(
            "bad", "the client found it expired; the broker moves it to the dead message queue"
        ),
        "left": Verdict(
            "bad",
            "neither acknowledged nor returned when its session or connection ended; if delivered"
            " again, flagged R",
        ),
        "unconfirmed": Verdict(
            "bad", "acknowledged, and the connection ended without the broker's reply"
        ),
        "declining": Verdict(
            "bad", "reported as undeliverable, and the capture ended before the reply"
        ),
        "dying": Verdict("bad", "reported as dead, and the capture ended before the reply"),
        "expiring": Verdict("bad", "reported as expired, and the capture ended before the reply"),
        "rolled_back": Verdict("warn", "acknowledged in a transaction that was rolled back"),
        "returned_seen": Verdict(
            "warn", "returned after the application saw it; if delivered again, flagged R"
        ),
        "returned_unseen": Verdict(
            "warn", "returned before the application saw it; if delivered again, as new"
        ),
        "in_transaction": Verdict(
            "warn", "acknowledged in a transaction whose end was not seen, or only prepared"
        ),
        "held": Verdict("warn", "the consumer had it when the capture ended"),
        "joining": Verdict(
            "unknown",
            "the capture ended between an ACKNOWLEDGE in a transaction and its reply",
        ),
        "acknowledging": Verdict(
            "unknown", "the capture ended between an ACKNOWLEDGE and its reply"
        ),
        "undecided": Verdict(
            "unknown", "packets that were not captured may have acknowledged or returned it"
        ),
        "acknowledged": Verdict("good", "acknowledged"),
        "committed": Verdict("good", "acknowledged in a transaction that was committed"),
        "no_ack_wanted": Verdict("good", "delivered to a consumer that never acknowledges"),
        "browsed": Verdict("good", "a copy for a browser; the message stayed where it was"),
    }
)
"""The last states of delivery attempts (`states.DELIVERY`)."""


def _derive(
    files: Sequence[PacketFile], streams: pa.Table, sources: Collection[str]
) -> DerivedFiles:
    """Derive the tables; memory holds about 1.5 kB for each packet, without bodies."""
    from wireyard.layers.jmq.files import derive_files, ends_of, slices_of

    return derive_files(files, sources, ends_of([streams]), slices_of([streams]))


def _newest() -> NewestRules:
    from wireyard.layers.jmq.newest import JMS

    return JMS


FACTS: Final = Facts(
    protocol="jms",
    formats=FORMATS,
    derive=_derive,
    shares_messages=True,
    verdicts=VERDICTS,
    symptoms=(*SYMPTOMS, *CLUSTER),
    newest=_newest,
)
