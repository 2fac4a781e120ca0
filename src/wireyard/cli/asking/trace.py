"""``wireyard trace``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.asking.answers import (
    columns,
    field,
    head_of,
    limit_option,
    ms_text,
    opened_tables,
    out_option,
    reading_options,
    status_of,
    wrapped,
)
from wireyard.cli.decoding.cells import json_line
from wireyard.cli.options import PATH, complete_verdicts, examples
from wireyard.cli.output import open_output
from wireyard.errors import UsageError
from wireyard.formats.plain_values import json_value
from wireyard.text import count_text, moment, payload_text, printable

if TYPE_CHECKING:
    from wireyard.answers.trace import Trace
    from wireyard.formats.base import Row
    from wireyard.layers.frame_files import FrameFiles

_MOST_MESSAGES = 10
_COLUMNS = (2, 18, 20, 12, 13, 15)
"""Widths of the lines of consumers: margin, verdict, consumer, delay, acknowledged, frames."""
_PROOFS = ("relayed_frame", "delivered_frame", "acknowledged_frame")
_AGAIN = "R"
"""Mark of a redelivery, named after the flag of JMQ packets."""
_WORST = (2, 18, 11, 16, 16, 17)
"""Widths of the worst deliveries: margin, verdict, time in queue, consumer, destination, frame."""
_PREVIEW_BYTES = 48


@click.command(
    "trace",
    epilog=examples(
        "wireyard trace traffic.pcap plant/7/state",
        "wireyard trace lake 'plant/7/#' --limit 3",
        "wireyard trace lake orders --verdict rolled_back --all",
        "wireyard trace lake '127.0.0.1:40000>127.0.0.1:1883@19'",
    ),
)
@click.argument("inputs", metavar="INPUT|LAKE...", nargs=-1, type=PATH)
@click.argument("message", metavar="MESSAGE|TOPIC|CLIENT")
@reading_options
@click.option(
    "--verdict",
    metavar="VERDICT",
    shell_complete=complete_verdicts,
    help="Only messages with such a delivery.",
)
@limit_option(_MOST_MESSAGES, "Show N messages; the summary is of all.")
@click.option("--all", "every", is_flag=True, help="A line for every consumer that has it, too.")
@click.option(
    "--hops",
    is_flag=True,
    help="List each time that a JMS message was seen, and what the hop took.",
)
@out_option("A picture, or the rows of the tables as JSON Lines.")
def command(
    inputs: tuple[str, ...],
    message: str,
    verdict: str | None,
    limit: int,
    every: bool,
    hops: bool,
    out: str,
    **how: Any,
) -> int:
    """Show what became of a message, or of the messages of a topic or a client.

    INPUT is a capture, a stream or a store, or a folder of them. MESSAGE is a key as the tables
    have it: a JMS message id, or stream and offset of an MQTT or RMP message. TOPIC is a queue, a
    topic or a group; + and # stand for levels of a topic. CLIENT is a client id or an endpoint, of
    a producer or a consumer. Of several messages a summary comes first; of those to a client it
    counts the deliveries to it. Each is shown with its producer, whether the broker accepted
    it, and for every consumer and matching subscriber the verdict, how long it waited, how long
    the acknowledgement took, and the frames that prove it; R marks a redelivery. What is bad
    comes first.
    """
    from wireyard.answers.trace import WORST_FIRST, find_messages

    if not inputs:
        raise UsageError("trace: name an INPUT or a LAKE, and then a MESSAGE, TOPIC or CLIENT")
    if verdict is not None and verdict not in WORST_FIRST:
        raise UsageError(f"--verdict: '{verdict}' is none of {', '.join(sorted(WORST_FIRST))}")
    with opened_tables(inputs, **how) as tables, open_output(None, binary=False) as target:
        found = find_messages(tables, message, verdict=verdict, limit=limit)
        if out == "jsonl":
            lines: Iterable[bytes] = (json_line(json_value(story)) for story in found.stories)
        else:
            files = tables.frame_files
            picture = _picture(found, message, files, every=every, hops=hops)
            lines = (f"{line}\n".encode() for line in chain(head_of(tables), picture))
        target.writelines(lines)
    if found.messages > len(found.stories):
        exits.note(f"{len(found.stories)} of {found.messages:,} messages; --limit N shows more")
    return status_of(tables)


# --- the summary ----------------------------------------------------------------------------


def _picture(
    found: Trace, asked: str, files: FrameFiles, *, every: bool, hops: bool
) -> Iterator[str]:
    if found.messages > 1:
        yield from _summary(found, asked, files)
    for place, story in enumerate(found.stories):
        if place or found.messages > 1:
            yield ""
        _locate(story, files)
        yield from _block(story, every=every)
        if hops:
            for one in story["hops"]:
                kind = one["kind"].replace("_", " ")
                yield from field(f"hop {one['hop']}", f"{kind}, {_hop(one)}")
        elif not story["deliveries"]:
            for one in story["hops"]:
                if one["kind"] == "relayed":
                    yield from field("relayed", _hop(one))


def _summary(found: Trace, asked: str, files: FrameFiles) -> Iterator[str]:
    where = f", {found.destinations:,} destinations" if found.destinations > 1 else ""
    yield f"{found.messages:,} messages for {printable(asked)}{where}"
    if found.first_ns is not None and found.last_ns is not None:
        yield from field("sent", f"{moment(found.first_ns)} to {moment(found.last_ns)}")
    counted = [f"{count:,} {verdict}" for verdict, count in found.verdicts.items()]
    yield from field("deliveries", ", ".join(counted) or "none was seen")
    if found.unseen:
        yield from field(
            "besides",
            f"{found.unseen:,} deliver{'y' if found.unseen == 1 else 'ies'} of messages whose"
            " sending was not captured",
        )
    if found.timed:
        times = f"p50 {ms_text(found.p50_ns)}, p99 {ms_text(found.p99_ns)}"
        yield from field("in queue", f"{times} of {found.timed:,} deliveries")
    if found.worst:
        yield columns(_WORST, "", "worst", "in queue", "consumer", "destination", "frame")
    for one in found.worst:
        place, frame = one["source"], one["frame"]
        if frame is not None:
            place, frame = files.find(place, frame)
        place = " ".join(filter(None, (frame and str(frame), PurePath(place).name)))
        cells = (
            one["verdict"],
            ms_text(one["queue_ns"]),
            _consumer(one),
            one["destination"] or "-",
        )
        yield columns(_WORST, "", *cells, place)


# --- a message ------------------------------------------------------------------------------


def _block(story: Row, *, every: bool) -> Iterator[str]:
    from wireyard.answers.trace import GOOD

    message, deliveries = story["message"], story["deliveries"]
    yield from field("message", message["message_key"], indent=0)
    kind = (message["destination_kind"] or "destination").replace("_", " ").rpartition(" ")[2]
    yield from field(kind, message["destination"] or "unknown")
    yield from field("sent", f"{_when(message)} by {_sender(message, deliveries)}")
    frame = "" if message["frame"] is None else f"frame {message['file_frame']} of "
    yield from field("in", f"{frame}{message['file']}")
    yield from field("content", _content(message))
    yield from field("payload", _preview(message["body"]))
    if message["protocol"] == "rmp":
        yield from field("packets", _packets(message))
    accepted = [one for one in deliveries if one["accepted_frame"] is not None]
    if accepted:
        first = min(accepted, key=lambda one: one["accepted_frame"])
        yield from field("accepted", f"by the broker{_frame(first, 'accepted')}")
    for request in story["requests"]:
        yield from field("answers", f"{request['request_key']}{_frame(request, 'requested')}")
    for reply in story["replies"]:
        yield from field("reply", _reply(reply))
    for value in story["retained"]:
        end = "" if value["to_ns"] is None else f" {moment(value['to_ns'])}"
        yield from field("retained", f"{value['ended_by'] or 'still the value of its topic'}{end}")
    if message["protocol"] == "rmp":
        yield from field("consumers", "every member of the group: no capture shows who read it")
        return
    if not deliveries:
        yield from field("consumers", "none was seen that it went to")
        return
    yield columns(_COLUMNS, "", "verdict", "consumer", "in queue", "acknowledged", "frames")
    bad = [one for one in deliveries if one["verdict"] not in GOOD]
    good = [one for one in deliveries if one["verdict"] in GOOD]
    for one in bad:
        yield from _bad(one, message["source"])
    for _, same in groupby(good, key=lambda one: one["verdict"]):
        yield from _good(list(same), message["source"], every=every)


def _sender(message: Row, deliveries: Sequence[Row]) -> str:
    endpoint = message["client"] or message["producer"] or "an unknown producer"
    client_id = message["producer_client_id"]
    who = endpoint if client_id is None else f"{client_id} ({endpoint})"
    if any(one["origin"] == "will" for one in deliveries):
        return f"{who}, as the will of a connection that then broke"
    return who


def _content(message: Row) -> str:
    parts = [] if message["qos"] is None else [f"QoS {message['qos']}"]
    parts.append(message["body_kind"] or "bytes")
    if message["persistent"]:
        parts.append("persistent")
    if message["retained"]:
        parts.append("to be retained")
    if message["transaction_id"]:
        parts.append(f"in transaction {message['transaction_id']}")
    return ", ".join(parts)


def _preview(body: bytes | None) -> str:
    """Return the first bytes as text or hex, and the number of all bytes."""
    if not body:
        return "empty"
    size = "" if len(body) > _PREVIEW_BYTES else f" ({count_text(len(body), 'byte')})"
    return payload_text(body, _PREVIEW_BYTES) + size


def _packets(message: Row) -> str:
    """Return the layer, domain and number of an RMP message, and its packets."""
    values = {name: entry["value"] for name, entry in message["properties"]}
    parts = [f"layer {message['message_type'].removeprefix('layer ')}"]
    named = {"domain": "domain", "number": "message_number"}
    parts += [f"{name} {values[key]}" for name, key in named.items() if key in values]
    count = int(values["packets"])
    where = f", frame{'s' * (count > 1)} {values['frames']}" if "frames" in values else ""
    return f"{', '.join(parts)}; {count} packet{'s' * (count > 1)}{where}"


def _reply(reply: Row) -> str:
    if reply["reply_key"] is None:
        return "expected, and none was seen"
    took = "" if reply["latency_ms"] is None else f" after {reply['latency_ms']} ms"
    return f"{reply['reply_key']}{took}{_frame(reply, 'replied')}"


# --- its consumers --------------------------------------------------------------------------


def _bad(one: Row, source: str) -> Iterator[str]:
    from wireyard.answers.trace import meaning_of

    yield _line(one)
    text = meaning_of(one["protocol"], one["verdict"])
    if one["subscription"]:
        text += f"; subscribed to {one['subscription']}{_frame(one, 'subscribed')}"
    if one.get("unseen"):
        text += f": {one['unseen']}"
    if one["dead_reason"]:
        text += f"; {one['dead_reason']}"
    yield from wrapped(text, _COLUMNS[0] + _COLUMNS[1])
    yield from _elsewhere(one, source)


def _good(same: Sequence[Row], source: str, *, every: bool) -> Iterator[str]:
    if every or len(same) == 1:
        for one in same:
            yield _line(one)
            yield from _elsewhere(one, source)
        return
    times = [one["queue_ns"] for one in same if one["queue_ns"] is not None]
    first, last = (ms_text(bound(times, default=None), unit=False) for bound in (min, max))
    between = f", {first}{f' to {last}' * (last != first)} ms" if times else ""
    yield f"  {len(same)} {same[0]['verdict']}{between}"


def _elsewhere(one: Row, source: str) -> Iterator[str]:
    """Yield the files of a consumer's frames that are in another file than the message."""
    shown = [name for name in _PROOFS if one[name] is not None]
    files = {name: one["elsewhere"][name] for name in shown if name in one["elsewhere"]}
    if len(files) == len(shown) and len({*files.values()}) == 1:
        texts = [f"in {one['elsewhere'][shown[0]]}"]
    elif not shown and one["source"] != source:
        texts = [f"in {one['source']}"]
    else:
        texts = [f"frame {one[name]} in {file}" for name, file in files.items()]
    for text in texts:
        yield from wrapped(text, _COLUMNS[0] + _COLUMNS[1])


def _line(one: Row) -> str:
    frames = [one[name] for name in _PROOFS]
    shown = " ".join(str(frame) for frame in frames if frame is not None)
    margin = _AGAIN if one["redelivered"] else ""
    cells = (one["verdict"], _consumer(one), _delay(one), _acknowledged(one), shown or "-")
    return columns(_COLUMNS, margin, *cells)


def _delay(one: Row) -> str:
    if one["delivered_ns"] is None and one["delivered_frame"] is None:
        return "-"
    if one["retained"]:
        return "retained"
    if one["origin"] == "will":
        return "will"
    return ms_text(one["queue_ns"])


def _acknowledged(one: Row) -> str:
    """Return the time to the acknowledgement; QoS 0 has none."""
    if one["qos"] == 0 and one["protocol"] == "mqtt" and one["acknowledged_frame"] is None:
        return "QoS 0: none"
    if one["delivered_frame"] is None and one["delivered_ns"] is None:
        return "-"
    if one["acknowledged_ns"] is None or one["delivered_ns"] is None:
        return "no" if one["acknowledged_frame"] is None else "yes"
    return f"+{ms_text(one['acknowledged_ns'] - one['delivered_ns'])}"


def _consumer(one: Row) -> str:
    return one["consumer_client_id"] or one["consumer"] or "-"


def _hop(one: Row) -> str:
    took = ""
    if one["took_ns"] is not None:
        error = f" (± {ms_text(one['took_error_ns'])})" if one["took_error_ns"] else ""
        took = f", {ms_text(one['took_ns'])}{error} after hop {one['follows']}"
    ends = " to ".join(filter(None, (one["sender"], one["receiver"])))
    where = PurePath(one["file"]).name
    frame = "" if one["frame"] is None else f" in frame {one['frame']}"
    return f"{ends}{took}{frame} of {where}"


# --- text -----------------------------------------------------------------------------------


def _when(message: Row) -> str:
    if message["captured_ns"] is not None:
        return moment(message["captured_ns"])
    sent_ms = message["sent_ms"]
    return "at an unknown time" if sent_ms is None else moment(sent_ms * 1_000_000)


def _locate(story: Row, files: FrameFiles) -> None:
    """Replace the frame numbers of a story by those within their files.

    Rows get `file`, and `elsewhere`: the files of those frames that are not in the message's file,
    by column.
    """
    home = story["message"]["file"]
    for name in ("deliveries", "replies", "requests", "hops"):
        for row in story[name]:
            row["elsewhere"] = {}
            row["file"] = row["source"]
            frames = [name for name in row if name.endswith("frame") and row[name] is not None]
            for column in frames:
                row["file"], row[column] = files.find(row["source"], row[column])
                if row["file"] != home:
                    row["elsewhere"][column] = row["file"]


def _frame(row: Row, event: str) -> str:
    """Return the location of an event's frame as text, for a row from `_locate`."""
    column = f"{event}_frame"
    if row[column] is None:
        return ""
    file = row["elsewhere"].get(column)
    return f" in frame {row[column]}{f' of {file}' if file else ''}"
