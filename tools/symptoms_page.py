"""The page of symptoms, made from their table."""

from __future__ import annotations

from collections.abc import Iterator

from tools.format_pages import markdown
from wireyard.answers.symptoms import symptoms
from wireyard.layers.symptoms import FEWEST, LONG_NS, MUCH_SLOWER_NS, SEVERITIES, SLOWER_TIMES

__all__ = ["symptoms_page"]

_HEAD = """
# Symptoms

`wireyard why` runs a query for each of these symptoms and shows its findings, worst first: by
severity in the order of this page, then by number of messages. Words in braces are filled in for
each finding. One cause is one finding: what has the same symptom and the same client, or without a
client the same destination, and the same reason, on however many topics. A finding has evidence,
which is a packet with its frame, or a record of a store, and a command that shows more.

Nothing is concluded from what a capture does not show. A bare stream, which has one direction and
no times, gives no findings. [Recordings](../examples/symptoms/README.md) of real brokers show most
symptoms, one each.

- Messages that have waited for less than {long} s when the capture ends are in flight, not stuck.
- A consumer is slow if its median is at least {times} times that of the other consumers of its
  destination, and at least {much} ms more, over at least {fewest} messages. It is also slow if
  messages waited for a second or more in a JMS queue because it was full.
- Time in queue does not count against a consumer that was not connected then, or while another
  consumer, or another member of its shared subscription, had the message. A JMS consumer that had
  room is not slow: what an administrator pauses waits too.
- A JMS message waits in a queue until a consumer has it for good: one that was given back waits
  again. Nobody consumes a queue that has no consumer now, whoever had one before. Where packets of
  any connection of the broker are missing, nothing is known to wait there, nor with a consumer:
  another one may have had the message. What an administrator purged or destroyed is gone, if that
  command was captured.
- A keep-alive is missed after one and a half times its length. Of a broker that replaces the
  client's keep-alive, its own counts.
- A request is not answered after a second, if the packets of the broker were captured.
- Codes have the names of MQTT 5.0, with the reason string of the broker if it sent one.
- The two brokers of an Open MQ link are compared: what one forwarded, announced or requested over
  their link, and what the other delivered, routed or answered. A broker is named by its instance
  and its address. Consumers that are full, or hold messages, do not count against a broker.
"""
_MEANINGS = {
    "lost": "Lost messages",
    "stuck": "Messages that wait",
    "refused": "Refused logins, messages and requests",
    "cut": "Lost connections",
    "slow": "Slow consumers",
    "odd": "Other observations",
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
        yield from ("", f"## {_MEANINGS[severity]}: `{severity}`", "")
        rows = (
            (f"`{one.code}`", one.text, f"`{one.next}`")
            for one in symptoms()
            if one.severity == severity
        )
        yield from markdown(("symptom", "finding", "next command"), rows)
