"""Differences between two recordings of the same clients: each with both frames and its class.

Rules of this file:

1. What one side could not see is no difference: a client that did not connect there, a message
   that was not sent there, and one that still waited, or may have, when that capture ended.
2. A delivery that only one side has is one more (`twice`), if the other has this message at least
   once; a will by its origin, a retained value by its RETAIN flag; else it is missing on the other
   side. If another member of the same share got it, the standard leaves that to the broker. One
   that only A has and one that only B has, of a client and a topic, are one of another payload if
   nobody sent the payload of either.
3. A side breaks a rule if its verdict on the message, or a protocol violation in its frame, says
   so; of the order, if it is not that in which the publisher sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from wireyard.answers import Tables
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.layers.mqtt.violations import RULES, cite
from wireyard.replay.renaming import AS_IS, Renaming
from wireyard.shadow import queries

Breaks = Literal["A", "B", "both", "neither"]
Faults = tuple[str | None, str | None]
"""The rule or the verdict that each side breaks, or None."""
CLASSES: Final[Mapping[str, str]] = {
    "missing": "delivered in A, not in B",
    "extra": "delivered in B, not in A",
    "twice": "delivered once more than on the other side",
    "order": "delivered before an earlier one of the same publisher, topic and QoS",
    "QoS": "delivered with another QoS",
    "retained": "a retained value is missing or extra, or RETAIN differs",
    "payload": "delivered with another payload",
    "property": "delivered with other properties",
    "session present": "the session is there on one side only",
    "will": "a will is missing or extra",
    "refusal": "CONNECT has another return code",
    "code": "SUBSCRIBE, UNSUBSCRIBE or the end has other reason codes",
    "latency": "all deliveries waited longer, by the median twice as long and 20 ms more",
    "share": "another member of a share got the message",
}
"""The classes of differences, and what each means."""
_OPEN: Final = (
    "queued", "in_flight", "undecided", "unaccepted", "unreleased", "returned_unseen",
)  # fmt: skip
"""Verdicts about messages whose end a capture does not show."""
_KEPT: Final = ("clients", "names", "codes")
_DELIVERIES_AT_ONCE: Final = 1_000_000
_BAD: Final = ("not_forwarded", "not_kept")
"""Verdicts about messages that a broker should have delivered."""
_ORDERED: Final = "order"
_ORDERED_TEXT: Final = "messages of a publisher, topic and QoS are delivered in their order"
_JMQ: Final = 301


class Difference(NamedTuple):
    """What the brokers of two recordings did differently."""

    difference: str
    """Its class, of `CLASSES`."""
    client: str
    destination: str | None
    a: str
    """What A shows, in words."""
    b: str
    breaks: Breaks
    rule: str | None
    """The rule that is broken, by its number where it has one."""
    text: str | None
    a_frame: int | None
    b_frame: int | None
    a_source: str | None
    b_source: str | None


def differences(a: Tables, b: Tables, renaming: Renaming = AS_IS) -> list[Difference]:
    """Compare the tables of two recordings.

    Parameters
    ----------
    renaming
        The topics of A that have other names in B.

    Returns
    -------
    list
        By client, then in the order of A.

    Limits
    ------
    Holds the deliveries of some topics, a million or those of one topic.
    """
    both = Tables()
    both.names = ()
    sides = ("a", a, renaming), ("b", b, AS_IS)
    for side, tables, _ in sides:
        tables.keep("clients", queries.CLIENTS)
        for name, query in zip(_KEPT, ("FROM clients", queries.NAMES, queries.CODES), strict=True):
            both.connection.register(f"{side}_{name}", tables.sql(query))
    both.keep("whole", queries.WHOLE)
    found = [*_sessions(both), *_codes(both)]
    counted = (tables.rows("SELECT count(*) AS n FROM deliveries") for _, tables, _ in sides)
    parts = 1 + max(row["n"] for (row,) in counted) // _DELIVERIES_AT_ONCE
    for part in range(parts):
        chosen = {"part": part, "parts": parts}
        for side, tables, renamed in sides:
            for of_part in (queries.copies, queries.sent, queries.lacking):
                rows = tables.sql(of_part(renamed.expression), chosen)
                both.connection.register(f"{side}_{of_part.__name__}", rows)
            for name, query in queries.ORDERED.items():
                both.keep(f"{side}_{name}", query.format(side=side))
        both.keep("matched", queries.MATCHED)
        for left, right in (("a", "b"), ("b", "a")):
            both.keep(f"{left}_rest", queries.REST.format(left=left, right=right))
        found += (*_unmatched(both), *_changed(both), *_reordered(both), *_late(both))
    return sorted(found, key=lambda each: each.client)


def _unmatched(both: Tables) -> Iterator[Difference]:
    """Yield deliveries that only one side has, and those with another payload."""
    only = {
        side: both.rows(queries.UNMATCHED.format(left=side, right=other))
        for side, other in (("a", "b"), ("b", "a"))
    }
    others = defaultdict(list)
    for row in only["b"]:
        others[row["consumer"], row["topic"]].append(row)
    paired = set()
    for row in only["a"]:
        matching = others[row["consumer"], row["topic"]]
        other = next((each for each in matching if row["is_altered"] or each["is_altered"]), None)
        if other is not None:
            matching.remove(other)
            paired.add(id(other))
            faults = _fault(row, other["other"]), _fault(other, row["other"])
            left, right = (f"a payload of {each['size'] or 0:,} bytes" for each in (row, other))
            yield _difference("payload", row, left, right, faults, row, other)
        else:
            yield from _one_sided(row, "a")
    for row in only["b"]:
        if id(row) not in paired:
            yield from _one_sided(row, "b")


def _one_sided(row: Mapping[str, Any], side: str) -> Iterator[Difference]:
    other = row["other"] or row["sent"] or {}
    verdict = other.get("verdict")
    if verdict in _OPEN and not row["is_more"]:
        return
    if row["is_shared"]:
        kind = "share"
    elif row["is_more"]:
        kind = "twice"
    else:
        of_side = "missing" if side == "a" else "extra"
        kind = "will" if row["origin"] == "will" else "retained" if row["retain"] else of_side
    shown = f"copy {row['copy']}" if row["is_more"] else "delivered"
    lacks = "no such copy" if row["is_more"] else f"not delivered: {verdict or 'nothing expected'}"
    lacking: Mapping[str, Any] = {} if row["is_more"] else row["lack"] or {}
    lack = None if row["is_more"] else _fault({"rule": lacking.get("rule")}, other)
    faults = (row["rule"], lack) if side == "a" else (lack, row["rule"])
    pair = (row, other) if side == "a" else (other, row)
    words = (shown, lacks) if side == "a" else (lacks, shown)
    about = {**row, "broken": row["broken"] or lacking.get("broken")}
    yield _difference(kind, about, *words, faults, *pair)


def _fault(row: Mapping[str, Any], undelivered: Mapping[str, Any] | None) -> str | None:
    """Return the rule that a delivery breaks, or the verdict about one that was due instead."""
    verdict = (undelivered or {}).get("verdict")
    return row["rule"] or (verdict if verdict in _BAD else None)


def _changed(both: Tables) -> Iterator[Difference]:
    for row in both.rows(queries.CHANGED):
        for kind, name in (("QoS", "qos"), ("retained", "retain"), ("property", "properties")):
            left, right = row[f"left_{name}"], row[f"right_{name}"]
            if left != right:
                faults = row["left_rule"], row["right_rule"]
                yield _of_pair(kind, row, *_shown(name, left, right), faults)


def _shown(name: str, left: Any, right: Any) -> tuple[str, str]:
    """Return two values in words; of properties those that only one side has."""
    if name != "properties":
        return f"{name} {left}", f"{name} {right}"
    first, second = (
        ", ".join(each for each in own if each not in other) or "none of these properties"
        for own, other in ((left or [], right or []), (right or [], left or []))
    )
    return first, second


def _reordered(both: Tables) -> Iterator[Difference]:
    for row in both.rows(queries.ORDER):
        faults: Faults = (None, _ORDERED) if row["is_left_right"] else (_ORDERED, None)
        if row["is_free"]:  # of another priority, or at QoS 2, passed on with PUBLISH or PUBREL
            faults = (None, None)
        yield _of_pair("order", row, "after the one before it", "before it", faults)


def _sessions(both: Tables) -> Iterator[Difference]:
    for row in both.rows(queries.OTHER_SESSIONS):
        for kind, name in (
            ("session present", "resumed"),
            ("refusal", "status"),
            ("code", "code"),
        ):
            left, right = row[f"left_{name}"], row[f"right_{name}"]
            if left != right:
                place, faults = f"connection {row['nth']}", (None, None)
                if name != "code":
                    faults = row["left_rule"], row["right_rule"]
                yield _of_pair(kind, row, f"{place}: {left}", f"{place}: {right}", faults)


def _codes(both: Tables) -> Iterator[Difference]:
    for row in both.rows(queries.OTHER_CODES):
        place = f"{row['packet']} {row['nth']}"
        left, right = (f"{place}: {row[name]}" for name in ("left_codes", "right_codes"))
        yield _of_pair("code", row, left, right, (row["left_rule"], row["right_rule"]))


def _late(both: Tables) -> Iterator[Difference]:
    for row in (*both.rows(queries.LATE), *both.rows(queries.LATE_WILLS)):
        left, right = (f"{row[name]:,.1f} ms" for name in ("left_ms", "right_ms"))
        yield _of_pair("latency", row, left, right, (None, None))


def _of_pair(kind: str, row: Mapping[str, Any], a: str, b: str, faults: Faults) -> Difference:
    left, right = (
        {"frame": row[f"{side}_frame"], "source": row[f"{side}_source"]}
        for side in ("left", "right")
    )
    return _difference(kind, row, a, b, faults, left, right)


def _difference(
    kind: str,
    row: Mapping[str, Any],
    a: str,
    b: str,
    faults: Faults,
    left: Mapping[str, Any],
    right: Mapping[str, Any],
) -> Difference:
    """Return a difference; `faults` are the rule or the verdict that each side breaks, or None."""
    breaks: Breaks = "neither"
    if any(faults):
        breaks = "both" if all(faults) else "A" if faults[0] else "B"
    fault = faults[0] or faults[1]
    rule: str | None = None
    text: str | None = None
    if fault == _ORDERED:
        rule = "Jakarta Messaging 6.2.9" if row["version"] == _JMQ else "MQTT-4.6.0-6"
        text = _ORDERED_TEXT
    elif fault is not None and fault in VERDICTS:
        text = VERDICTS[fault].meaning
    elif fault is not None:
        rule, text = (fault in RULES and cite(fault, row["version"])) or (fault, row["broken"])
    return Difference(
        kind, row["consumer"], row.get("topic"), a, b, breaks, rule, text,
        left.get("frame"), right.get("frame"), left.get("source"), right.get("source"),
    )  # fmt: skip
