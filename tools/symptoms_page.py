"""The page of symptoms, made from their table."""

from __future__ import annotations

from collections.abc import Iterator

from tools.format_pages import markdown
from wireyard.answers.latencies import FEWEST, SLOWER_TIMES
from wireyard.answers.symptoms import LONG_NS, MUCH_SLOWER_NS, SEVERITIES, SYMPTOMS

__all__ = ["symptoms_page"]

_HEAD = """
# Symptoms

`wireyard why` asks the tables for each of these, a query each, and shows what it finds, worst
first: severities in the order of this page, then the most messages. Words in braces are of the
finding. A finding has a proof, which is a packet with its frame, or a record of a store, and a
command that shows more.

Nothing is concluded from what a capture does not show. Of a bare stream, which has one direction
and no times, there are no findings. [Recordings](../examples/symptoms/README.md) of real
brokers show most symptoms, one each.

- Under way, and not stuck, is what has waited for less than {long} s when the capture ends.
- A slow consumer's median is at least {times} times that of the other consumers of a destination,
  and {much} ms more, of {fewest} messages at least; or messages waited for a second and more in a
  JMS queue while it was there.
- A keep-alive is missed after one and a half times its length.
- What two Open MQ brokers of a cluster hold is compared: what one forwarded, announced or asked
  over their link, and what the other delivered, routed or answered. A broker is named by its
  instance and its address. Consumers that are full, or hold messages, are not held against one.
"""
_MEANINGS = {
    "lost": "Messages are gone",
    "stuck": "Messages wait",
    "refused": "Somebody was turned away",
    "cut": "Somebody was disconnected",
    "slow": "It takes long",
    "odd": "Worth a look",
}


def symptoms_page() -> Iterator[str]:
    """Yield the lines of docs/symptoms.md."""
    said = _HEAD.format(
        long=LONG_NS // 10**9,
        times=SLOWER_TIMES,
        much=MUCH_SLOWER_NS // 10**6,
        fewest=FEWEST,
    )
    yield from said.strip().splitlines()
    for severity in SEVERITIES:
        yield from ("", f"## {_MEANINGS[severity]}: {severity}", "")
        rows = (
            (f"`{one.code}`", one.text, f"`{one.next}`")
            for one in SYMPTOMS
            if one.severity == severity
        )
        yield from markdown(("symptom", "what is said", "what to look at next"), rows)
