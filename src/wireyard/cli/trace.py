"""``wireyard trace``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.moments import moment
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output
from wireyard.errors import SourceError, UsageError

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from wireyard.formats.base import Row

__all__ = ["command"]

_WILDCARDS = frozenset("+#")
_MOST_MESSAGES = 10


@click.command(
    "trace",
    epilog=examples(
        "wireyard trace lake orders",
        "wireyard trace lake 'plant/7/#' --limit 3",
        "wireyard trace lake '127.0.0.1:40000>127.0.0.1:1883@19'",
    ),
)
@click.argument("lake", type=PATH)
@click.argument("message", metavar="MESSAGE|TOPIC")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_MOST_MESSAGES,
    show_default=True,
    metavar="N",
    help="Stop after N messages.",
)
@click.option(
    "--hops",
    is_flag=True,
    help="List each time that a JMS message was seen, and what the hop took.",
)
@click.option(
    "--out",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
    help="In words, or the rows of the tables as JSON Lines.",
)
def command(lake: str, message: str, limit: int, hops: bool, out: str) -> int:
    """Tell what became of a message, or of the messages to a destination.

    MESSAGE is a key as the tables have it: a JMS message id, or stream and offset of an MQTT or
    RMP message. TOPIC is a queue, a topic or a group; + and # stand for levels of a topic. Who sent
    it, whether the broker took it, and for every consumer and matching subscriber what happened,
    with the frames that prove it.
    """
    found = _Lake(lake)
    stories = [found.story(one) for one in found.messages(message, limit + 1)]
    if not stories:
        raise UsageError(f"{lake}: no message is called '{message}', and none was sent there")
    with open_output(None, binary=False) as target:
        for story in stories[:limit]:
            if out == "jsonl":
                text = json.dumps(story, default=_plain, ensure_ascii=False)
            else:
                lines = [*_told(story), *(map(_hop, story["hops"]) if hops else ())]
                text = "\n".join(lines) + "\n"
            target.write(text.encode() + b"\n")
    if len(stories) > limit:
        exits.note(f"there are more messages; --limit shows more than {limit}")
    return exits.DONE


class _Lake:
    """The tables of a lake that tell of messages."""

    def __init__(self, url: str) -> None:
        import pyarrow.dataset as ds

        from wireyard.streams.source import filesystem, reading

        system, inner = filesystem(url)
        with reading(url):
            try:
                self._tables = {
                    name: ds.dataset(f"{inner}/{name}", filesystem=system, format="parquet")
                    for name in ("messages", "deliveries", "hops", "conversations", "retained")
                }
            except FileNotFoundError:
                raise SourceError(f"{url}: is no lake that 'wireyard run' has filled") from None

    def messages(self, asked: str, limit: int) -> list[Row]:
        """Return the messages of a key or to a destination, in the order they were sent."""
        import pyarrow.compute as pc

        from wireyard.layers.mqtt.topics import matches

        destination = pc.field("destination")
        wanted = (pc.field("message_key") == asked) | (destination == asked)
        if not _WILDCARDS.isdisjoint(asked):
            names = self._tables["messages"].to_table(columns=["destination"])["destination"]
            fitting = [name for name in names.unique().to_pylist() if name and matches(asked, name)]
            wanted |= destination.isin(fitting)
        order = ["captured_ns", "sent_ms", "source", "stream", "offset"]
        found = self._tables["messages"].to_table(filter=wanted)
        sorted_by = [(name, "ascending") for name in order]
        rows: list[Row] = found.sort_by(sorted_by).slice(0, limit).to_pylist()
        return rows

    def story(self, message: Row) -> Row:
        """Return a message with its deliveries, hops, replies, and times as a retained value.

        `requests` are those that it answers.
        """
        import pyarrow.compute as pc

        key, own = message["message_key"], pc.field("source") == message["source"]
        # A JMS message has its name wherever it is seen; another is named by its place.
        of_key = pc.field("message_key") == key
        here = of_key if message["protocol"] == "jms" else of_key & own
        return {
            "message": message,
            "deliveries": self._rows("deliveries", here, "delivered_frame"),
            "hops": self._rows("hops", of_key, "hop"),
            "replies": self._rows("conversations", (pc.field("request_key") == key) & own),
            "requests": self._rows("conversations", (pc.field("reply_key") == key) & own),
            "retained": self._rows("retained", of_key & own, "from_frame"),
        }

    def _rows(self, table: str, wanted: pc.Expression, order: str = "requested_frame") -> list[Row]:
        found = self._tables[table].to_table(filter=wanted)
        rows: list[Row] = found.sort_by([(order, "ascending")]).to_pylist()
        return rows


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


# --- in plain words -------------------------------------------------------------------------


def _told(story: Row) -> Iterator[str]:
    message, deliveries = story["message"], story["deliveries"]
    yield f"message {message['message_key']}"
    yield f"  sent {_when(message['captured_ns'], message['sent_ms'])} {_sender(message)}"
    yield f"  to {_destination(message)}: {_content(message)}"
    if message["protocol"] == "rmp":
        yield f"  {_packets(message)}"
        yield "  for every member of the group: no capture shows who took it"
    else:
        yield from _taken(message, deliveries)
        for one in deliveries:
            yield f"  {_consumer(one)}: {_delivery(one)}"
        if not deliveries:
            yield "  nobody was seen to whom it went"
    for request in story["requests"]:
        yield f"  it answers {request['request_key']}{_frame(request['requested_frame'])}"
    for reply in story["replies"]:
        if reply["reply_key"] is None:
            yield "  it asked for a reply, and none was seen"
        else:
            took = "" if reply["latency_ms"] is None else f" after {reply['latency_ms']} ms"
            yield f"  answered{took} by {reply['reply_key']}{_frame(reply['replied_frame'])}"
    for value in story["retained"]:
        until = "still the value" if value["ended_by"] is None else value["ended_by"]
        end = "" if value["to_ns"] is None else f" {moment(value['to_ns'])}"
        yield f"  retained as the value of its topic; {until}{end}"


def _sender(message: Row) -> str:
    client = f" (client {message['producer_client_id']})" if message["producer_client_id"] else ""
    return f"by {message['producer'] or 'an unknown producer'}{client}"


def _destination(message: Row) -> str:
    kind = (message["destination_kind"] or "").replace("_", " ")
    return " ".join(filter(None, (kind, message["destination"] or "an unknown destination")))


def _content(message: Row) -> str:
    parts = [f"{message['body_size'] or 0} bytes of {message['body_kind']}"]
    if message["qos"] is not None:
        parts.append(f"QoS {message['qos']}")
    if message["persistent"]:
        parts.append("persistent")
    if message["retained"]:
        parts.append("to be retained")
    if message["transaction_id"]:
        parts.append(f"in transaction {message['transaction_id']}")
    return ", ".join(parts)


def _packets(message: Row) -> str:
    """Return what an RMP message says besides, and the packets that it came in."""
    said = {name: one["value"] for name, one in message["properties"]}
    parts = [f"layer {message['message_type'].removeprefix('layer ')}"]
    named = {"domain": "domain", "number": "message_number"}
    parts += [f"{name} {said[place]}" for name, place in named.items() if place in said]
    count = int(said["packets"])
    where = f", frame{'s' * (count > 1)} {said['frames']}" if "frames" in said else ""
    return f"{', '.join(parts)}; {count} packet{'s' * (count > 1)}{where}"


def _taken(message: Row, deliveries: Iterable[Row]) -> Iterator[str]:
    frames = {(one["sent_frame"], one["accepted_frame"]) for one in deliveries}
    for sent, accepted in frames:
        if accepted is not None:
            yield f"  sent in frame {sent}; frame {accepted} shows that the broker had it"
        elif sent is not None:
            yield f"  sent in frame {sent}"


def _consumer(one: Row) -> str:
    name = one["consumer"] or "no consumer"
    known = [
        f"client {one['consumer_client_id']}" if one["consumer_client_id"] else None,
        one["subscription"],
    ]
    said = ", ".join(filter(None, known))
    return f"{name} ({said})" if said else name


def _delivery(one: Row) -> str:
    from wireyard.layers.jmq.delivery import VERDICTS as JMS
    from wireyard.layers.mqtt.deliveries import VERDICTS as MQTT

    parts = []
    if one["relayed_frame"] is not None:
        parts.append(f"relayed by {one['via_broker']}{_frame(one['relayed_frame'])}")
    if one["delivered_frame"] is not None or one["delivered_ns"] is not None:
        again = " again" if one["redelivered"] else ""
        after = _after(one["sent_ns"], one["delivered_ns"])
        parts.append(f"handed over{again}{after}{_frame(one['delivered_frame'])}")
    if one["acknowledged_ns"] is not None or one["acknowledged_frame"] is not None:
        after = _after(one["delivered_ns"], one["acknowledged_ns"])
        parts.append(f"acknowledged{after}{_frame(one['acknowledged_frame'])}")
    words = (JMS if one["protocol"] == "jms" else MQTT).get(one["verdict"], one["verdict"])
    return f"{', '.join(parts)}: {words}" if parts else words


def _hop(one: Row) -> str:
    took = ""
    if one["took_ns"] is not None:
        error = f" (± {one['took_error_ns'] / 1e6:,.1f} ms)" if one["took_error_ns"] else ""
        took = f", {one['took_ns'] / 1e6:,.1f} ms{error} after hop {one['follows']}"
    ends = " to ".join(filter(None, (one["sender"], one["receiver"])))
    kind = one["kind"].replace("_", " ")
    return f"  hop {one['hop']}: {kind}, {ends}{took}{_frame(one['frame'])} of {one['source']}"


def _frame(number: int | None) -> str:
    return "" if number is None else f" in frame {number}"


def _after(start_ns: int | None, stop_ns: int | None) -> str:
    if start_ns is None or stop_ns is None:
        return ""
    return f" {(stop_ns - start_ns) / 1e6:,.1f} ms later"


def _when(captured_ns: int | None, sent_ms: int | None) -> str:
    if captured_ns is not None:
        return moment(captured_ns)
    return "at an unknown time" if sent_ms is None else moment(sent_ms * 1_000_000)
