"""The page of symptoms, generated from their table."""

from __future__ import annotations

from collections.abc import Iterator

from tools.format_pages import markdown
from wireyard.answers.latencies import FEWEST, SLOWER_TIMES
from wireyard.answers.symptoms import LONG_NS, MUCH_SLOWER_NS, SEVERITIES, SYMPTOMS

__all__ = ["symptoms_page"]

_HEAD = """
# Symptoms

`wireyard why` runs a query for each of these symptoms, and shows its findings worst first: by
severity in the order of this page, then by the number of messages. Words in braces come from the
finding. A finding has a proof, which is a packet with its frame or a record of a store, and a
command that shows more.

Nothing is concluded from packets that were not captured. A bare stream has only one direction and
no times, so there are no findings about it. [Recordings](../examples/symptoms/README.md) of real
brokers show most symptoms, one each.

- A message that has waited for less than {long} s at the end of the capture counts as under way,
  not as stuck.
- A consumer is slow if its median is at least {times} times that of the other consumers of a
  destination, and {much} ms more, over at least {fewest} messages; or if messages waited for a
  second or more in a JMS queue while it was consuming.
- A keep-alive is missed after one and a half times its length.
- Two Open MQ brokers of a cluster are compared: the packets that one forwarded, announced or sent
  as requests over their link, and those that the other delivered, routed or answered. A broker is
  named by its instance and its address. Messages that wait because a consumer is full, or holds
  others, are no finding about its broker.
"""
_MEANINGS = {
    "lost": "Messages are lost",
    "stuck": "Messages wait",
    "refused": "A request was refused",
    "cut": "A client was disconnected",
    "slow": "Deliveries are slow",
    "odd": "Something is unusual",
}


def symptoms_page() -> Iterator[str]:
    """Yield the lines of docs/symptoms.md."""
    head = _HEAD.format(
        long=LONG_NS // 10**9,
        times=SLOWER_TIMES,
        much=MUCH_SLOWER_NS // 10**6,
        fewest=FEWEST,
    )
    yield from head.strip().splitlines()
    for severity in SEVERITIES:
        yield from ("", f"## {_MEANINGS[severity]}: {severity}", "")
        rows = (
            (f"`{symptom.code}`", symptom.text, f"`{symptom.next}`")
            for symptom in SYMPTOMS
            if symptom.severity == severity
        )
        yield from markdown(("symptom", "description", "next command"), rows)
