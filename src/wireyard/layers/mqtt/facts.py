"""The facts of MQTT, as `layers.facts` registers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wireyard.layers.facts import DerivedFiles, Facts, PacketFile, Verdict
from wireyard.layers.mqtt.symptoms import SYMPTOMS

if TYPE_CHECKING:
    import pyarrow as pa

    from wireyard.layers.newest import NewestRules

FORMAT: Final = "mqtt"
EVIDENCE: Final = "evidence"
"""Name of the table in the footers of packet files: the evidence for the directions of streams."""
VERDICTS: Final[Mapping[str, Verdict]] = MappingProxyType(
    {
        "not_forwarded": Verdict(
            "bad", "the broker accepted it and did not deliver it to a connected subscriber"
        ),
        "not_kept": Verdict(
            "bad",
            "the broker accepted it while its subscriber was away, and did not deliver it when the"
            " subscriber came back",
        ),
        "unaccepted": Verdict(
            "bad",
            "nothing shows that the broker accepted it: no PUBACK, PUBREC, PUBCOMP, later answer or"
            " delivery to anybody",
        ),
        "unreleased": Verdict(
            "bad",
            "the broker took it with PUBREC, and its client did not send the PUBREL after which"
            " it is to be delivered",
        ),
        "refused": Verdict(
            "bad", "the broker acknowledged it with an error, and need not forward it"
        ),
        "refused_by_client": Verdict("bad", "delivered, and acknowledged with an error"),
        "too_large": Verdict("bad", "it is above the Maximum Packet Size of its subscriber"),
        "discarded": Verdict("bad", "it waited for its subscriber, whose session ended"),
        "expired": Verdict("bad", "it waited for its subscriber longer than its expiry interval"),
        "abandoned": Verdict("bad", "delivered, and the session ended before it was acknowledged"),
        "offline": Verdict(
            "warn", "its subscriber was away, and at QoS 0 a broker need not keep it"
        ),
        "no_subscriber": Verdict("warn", "no subscription was seen that matches it"),
        "duplicate": Verdict(
            "warn",
            "delivered once more than its subscriptions account for, also where its publisher sent"
            " it again",
        ),
        "lost_ack": Verdict(
            "warn", "delivered again after its acknowledgement, which the broker did not read"
        ),
        "queued": Verdict(
            "warn", "its subscriber was away or its window full, and the broker keeps it for later"
        ),
        "in_flight": Verdict(
            "warn", "delivered, and its acknowledgement was not complete when the capture ended"
        ),
        "undecided": Verdict("unknown", "the capture does not show which of these it was"),
        "delivered": Verdict("good", "delivered, and acknowledged as its QoS requires"),
    }
)
"""The verdicts about a message and one subscriber."""


def _derive(
    files: Sequence[PacketFile], streams: pa.Table, sources: Collection[str]
) -> DerivedFiles:
    from wireyard.layers.mqtt.columns import derive_files, shown_rows

    return derive_files(files, shown_rows(streams, FORMAT), sources)


def _newest() -> NewestRules:
    from wireyard.layers.mqtt.newest import MQTT

    return MQTT


FACTS: Final = Facts(
    protocol="mqtt",
    formats=(FORMAT,),
    derive=_derive,
    shares_messages=False,
    verdicts=VERDICTS,
    symptoms=SYMPTOMS,
    newest=_newest,
)
