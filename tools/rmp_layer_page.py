"""The page about the RMP messaging layer, generated from its state tables."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tools.format_pages import markdown
from tools.layer_pages import state_diagram
from wireyard.layers.rmp import Drop, Limits, QoS
from wireyard.layers.rmp.states import (
    ABORT_REASONS,
    ARRIVING,
    DONE_REASONS,
    OWN,
    REQUESTS,
    Arrival,
    Arriving,
    Step,
)
from wireyard.layers.rmp.violations import RULES
from wireyard.layers.sequencer import Settings
from wireyard.layers.sequencer.states import ADDRESSES, BALLOTS, PHASES
from wireyard.layers.states import Cell, StateTable

__all__ = ["rmp_page"]

_HEAD = """
# The RMP messaging layer

`wireyard.layers.rmp` turns messages into packets of the [RMP format](../formats/rmp.md), and
packets as a ring delivers them into messages: segmentation and reassembly, packing of small
messages, domains, clients, replies. It opens no socket, reads no clock and draws no random numbers:
its caller passes packets, views and `now`, and gets packets and events.

```python
from wireyard.layers.rmp import MessagingLayer

layer = MessagingLayer("10.0.0.1:7001", first_number=4711)
layer.add_ring("ring", max_packet_bytes=1400)
layer.send("ring", b"hello", now=0.0, urgent=True)
qos, packet = layer.next_packet("ring")  # for the ring to carry
layer.receive("ring", "10.0.0.1:7001", packet, qos=qos, now=0.0)
layer.next_event()  # Delivered(... data=b'hello' ...)
```

`get_timer` returns the time at which `handle_timer` is due. `view` sets the members of the ring
from that place in the order of packets on. An ordered ring delivers packets to all of its members,
the sender included; after a message of several packets `next_packet` waits for that.

## Where it runs

| ring | order | members | needs |
|---|---|---|---|
| `wireyard.net.UdpMulticast` | none; packets may be lost | not known | nothing |
| `wireyard.net.Tcp` | total | views | nothing |
| `wireyard.net.Corosync` | total | views | corosync and its library |
| `wireyard.net.MemoryHub` | total | views | nothing; all members in one event loop |
| `wireyard.layers.rmp.sim.SimRing` | every one | views | nothing |

`SimRing` is a simulation for experiments: crashes after any packet, joins, parts, slow members,
loss and duplicates, repeatable by a seed. `wireyard.net.Ring` combines the layer with one of the
other rings and a clock:

```python
from wireyard.net import Ring, Tcp

async with Ring(Tcp()) as ring:
    await ring.send(b"hello", domain=3)
    ring.flush()  # sends everything now
    async for reply in ring.request(b"who?", want=3, timeout_s=1.0):
        print(reply.source, reply.data)
    async for message in ring.client(7, domains={3}):
        print(message.data)
```

`wireyard ring send`, `listen` and `request` do the same on the command line. `MemoryHub` is for the
tests of programs: `hub = MemoryHub()`, then `Ring(hub.transport())` for each member.

Rings of one process share its message numbers and the handlers of its layers if they share a
`Process` (errata R34). Then a reply to a request on one ring cannot be mistaken for a reply on
another, whatever names the rings have for the process.

```python
from wireyard.net import Process, Tcp, UdpMulticast

process = Process()


async def upper(message):
    return message.data.upper()  # the reply, if the message asks for one


process.register_layer(2, upper)
async with Ring(UdpMulticast(), process=process), Ring(Tcp(), process=process) as ordered:
    await ordered.send(b"to all, in one order")
```
"""
_TCP_TEXT = """
A ring over TCP is a list of addresses, the same at all members: `Tcp("127.0.0.1:7077-7092")`, which
is the default, or `Tcp("10.0.0.1:7077,10.0.0.2:7077")`. A process listens on the first address of
the list that is free and belongs to its machine; this address is its process id. Nothing listens on
any other address. There is no encryption, and anybody with access to these ports can take part: use
it between machines only in a trusted network.

**Order.** The first member of a view is its sequencer. It numbers the packets, all members
acknowledge what they hold, and what all members hold is delivered. So a packet that any member has
delivered, one that died as well, is delivered by all that go on. When the sequencer dies, nothing
has to be fetched: the members deliver what every one of them holds, the next one is the sequencer,
and what own packets are left are submitted to it again, once. A packet is kept until it is
delivered, and no longer.

**Views.** Every member has a connection to every other and sends a beat on it six times in
`patience_s`. Who is silent for that time is suspected; an address that refuses connections shows at
once that its process has ended. The first member that is not suspected proposes the next view, with
the processes that want to join; all that are not suspected have to promise, and then to accept.

**Never two rings.** More than half of a view decides on the next, or exactly half with the first of
them. Dead members do not count, if their death was seen by a process that they could not have
excluded before: a beat that is echoed is a promise not to exclude its sender for `patience_s`. So
of two members one goes on when the other is killed, whichever it is. When one of two is *stopped*,
or cut off, the first in the view goes on and the second waits, up to `give_up_s`. A process that
was stopped longer than the others waited finds that it was excluded, and fails; it can join again,
as another member. It never delivers anything in another order.

**Joining.** A process without a ring asks every address of the list. It forms one if all others
refuse connections or are joining behind it in the list. An address that accepts connections and
says nothing, as of a stopped process or of another program, keeps it waiting up to `give_up_s`.

**Slow members.** Each sender may have `window_bytes` that not all members hold, so one that does
not read makes all of them wait, and fails after `give_up_s`. What is no frame of a ring, or too
long, closes its connection with one line in the log `wireyard.ring`; the ring goes on.

A member's phases:
"""
_ARRIVING_TEXT = """
A message has the place of its first packet: one that is still arriving holds back those that began
after it, in the whole ring or of its source, as the quality of service says. A view is a cut. What
is unfinished then is dropped, of members that live as well, and what is complete is delivered
before it; numbers mean nothing afterwards. All members see the view at the same place among the
packets, so all do the same, and a process that was started again cannot be mistaken for its old
self. Time decides nothing where there is an order: it passes differently everywhere.
"""
_OWN_TEXT = """
What a view cuts, its sender sends again: a message of which some packets came before the view and
some did not. So it does where receivers had no room left, for it sees the same packets as they do.
A message that no packet is back of is left alone: the ring will order all of it in the new view.

**A sender's order holds over every view** (errata R28). The ring is given nothing behind a message
of several packets before all of them are back. Then nothing can be ordered between the message that
a view cuts and the same message sent again, and every member delivers what a sender sent in the
order sent, without a gap; a member that joins, from some message on. There is no other rule that
keeps it with the packets as they are. What the ring was given behind a cut message arrives in the
new view, or in one after that; a member that joins then has seen no packet of the cut message, and
nothing in those behind it says that they have to wait. Messages of one packet are cut by no view,
and are sent without waiting. This is the order of messages that wait for each other: totally
ordered ones, or those that are source ordered.

It is sent again under its own number, once none of its packets is on the way (R29): the tail of the
first time is dropped by every member, as none has its head, before packet 1 comes again. So a
request keeps its number, and nothing is lost where all numbers are in use.

The price is one trip around the ring for each message of several packets. Larger packets mean fewer
of them: `max_packet_bytes` is the transport's, and corosync's is 32 KiB.
"""
_HANDLERS_TEXT = """
`register_layer` has messages for a destination layer delivered: as events, or to a handler, which
`next_event` calls at the place of each message. A handler replies as any sender does.

```python
def upper(message):
    layer.send("ring", message.data.upper(), now=0.0, layer=2, reply_to=message.message_id)


layer.register_layer(2, upper)  # the RPC layer
layer.register_foreign(4096, print)  # messages of a protocol of its own, and how they are sent:
layer.send_foreign("ring", b"\\x10\\x00theirs", now=0.0)
```

`register_layer(1, in_pieces=True)` asks for the messages of the streams layer as they arrive: a
message of several packets becomes `Piece` events as soon as its turn comes, rather than one
`Delivered` when it is complete. Its last piece says so. If an `Aborted` of its number comes first,
the pieces were no message, and its sender may send it again, from the beginning. A message that is
whole when its turn comes is delivered whole, and so is every reply. The choice is each member's
own: the others see no difference.
"""
_REQUESTS_TEXT = """
A request names how many replies it wants: a number, `all` members that it could reach when it was
sent, or a `stream` of all that come. This process is one of them if another of its clients gets the
request. Members that leave will not answer; a member is taken to answer once. A message number is
not used again before twice the timeout has passed since the request ended.
"""
_CAPTURES_TEXT = """
`wireyard run` puts the packets of a capture together by the same code: packets of UDP ports that
`--decode-as` names, as in `udp.port==7077,rmp`, become rows of `packets_rmp`, one for each message
in a packet, and from these

- **messages**: a whole message is one row, at the place of its first packet. Its destination is the
  group, `message_type` its layer, `client_id` the number of its client; properties have domain,
  message number, and the frames of all its packets. A request and its replies have the same
  `correlation_id`, the process that asks and the number of its message.
- **conversations** of the kind `rmp`: a request with each of its replies, matched by what the reply
  names, with the latest message of that number before it; without one, nobody was seen to reply.
- **violations**: the rules below.

```python
from wireyard.layers.rmp.chain import derive_tables

rows = wireyard.read("ring.pcap", "rmp").to_pylist()
derive_tables(rows).tables["conversations"]
```

A sender is what one endpoint sent to one group, in the order of capture. What it sent is put
together as packets without order are: no capture shows a quality of service, and UDP keeps none. So
a message is whole with the last of its packets, and a packet that overtook packet 1 is lost with
its message, as it is for receivers that saw the same order.

What a capture cannot show, no row says:

- **who took a message**: clients, domains and layers are registered in processes, and never sent.
- **how many replies a request wanted**, how long it waited, whether a reply was the last: the wire
  has one flag, that a reply is asked for. The status of a conversation is null.
- **views**. An unfinished message is given up after `reassembly_timeout_s`, or with the capture.
  Missing packets may have been lost before the capture, or never sent.
- **a copy of a packet without numbers** (errata R27). Two that are equal count once if the second
  came within `max_delay_s` and both had fitted one packet: a sender would have packed them. Every
  packet that was left out so is a row of violations.
"""
_RULINGS = """
## Rulings

Beyond those of the [errata](../errata.md), R12 to R34:

- **A packet of another order** than the message it names changes nothing of it. Members see
  unordered packets at different places, so what they did to an ordered message would differ.
- **Packet 1 again** begins a message anew where packets keep an order, for its sender did. Where
  they do not, the same packet 1 is one that the network doubled.
- **A packet that overtakes packet 1** is dropped, and its message with it: whoever joined late or
  has passed a view must not keep tails, for a later message may have the same number.
- **A layer that is not there** is looked for when a message is delivered, as are domains. Otherwise
  members with other layers would count other messages against their bounds.
- **Too much** is decided by the packets alone. In an order the message that began last is aborted,
  and its sender sends it again; the one that the others wait for is aborted last (R30). Without an
  order nothing is sent again, and the oldest is aborted.
- **A process without clients** gets every message itself.
"""

_CELL = ("state", "what happens", "what is done", "state then")


def rmp_page() -> Iterator[str]:
    """Yield the lines of docs/layers/rmp.md."""
    yield from (*_HEAD.strip().splitlines(), "", "## Qualities of service", "")
    qualities = ((one.label, one.order, "yes" if one.reliable else "no") for one in QoS)
    yield from markdown(("quality", "who waits for whom", "reaches all members"), qualities)
    yield from _section("A message that arrives", _ARRIVING_TEXT)
    yield from state_diagram(ARRIVING)
    arrivals = (
        (state, event, ", then ".join(cell.effect or ()), cell.state, _reason(event, cell))
        for (state, event), cell in ARRIVING.items()
    )
    yield from markdown((*_CELL, "reason"), arrivals)
    yield from _section("An own message", _OWN_TEXT)
    yield from state_diagram(OWN)
    yield from markdown(_CELL, _cells(OWN))
    yield from _section("Handlers, and messages in pieces", _HANDLERS_TEXT)
    yield from _section("A request", _REQUESTS_TEXT)
    yield from state_diagram(REQUESTS)
    ends = ((event, f"`{reason}`") for event, reason in DONE_REASONS.items())
    yield from markdown(("what ends it", "reason"), ends)
    yield from _section("Over TCP", _TCP_TEXT)
    yield from state_diagram(PHASES)
    yield from markdown(_CELL, _cells(PHASES))
    yield from ("A ballot of a member's own:", "")
    yield from markdown(_CELL, _cells(BALLOTS))
    yield from ("Another address, to a process that joins:", "")
    known = ((*pair, cell.state) for pair, cell in ADDRESSES.items())
    yield from markdown(("state", "what happens", "state then"), known)
    yield from ("Settings, the same at all members:", "")
    yield from markdown(("setting", "value", "meaning"), _defaults(Settings))
    yield from _section("From captures", _CAPTURES_TEXT)
    yield from markdown(("rule", "meaning"), ((f"`{name}`", text) for name, text in RULES.items()))
    yield from (*_RULINGS.strip().splitlines(), "", "## What is counted", "")
    yield from markdown(("`Drop`", "counts"), ((f"`{one.name}`", one.value) for one in Drop))
    yield from ("## Limits", "", "Members of a ring have the same.", "")
    yield from markdown(("limit", "value", "meaning"), _defaults(Limits))


def _section(title: str, text: str) -> Iterator[str]:
    yield from (f"## {title}", "", *text.strip().splitlines(), "")


def _cells(table: StateTable[Any, Any, Any]) -> Iterator[tuple[object, ...]]:
    return ((*pair, cell.effect, cell.state) for pair, cell in table.items())


def _reason(event: Arrival, cell: Cell[Arriving, tuple[Step, ...]]) -> str:
    return f"`{ABORT_REASONS[event]}`" if Step.ABORT in (cell.effect or ()) else ""


def _defaults(kind: type[Limits] | type[Settings]) -> Iterator[tuple[object, ...]]:
    docs = _field_docs(kind)
    return ((f"`{one.name}`", one.default, docs[one.name]) for one in fields(kind))


def _field_docs(kind: type) -> dict[str, str]:
    """Return the strings under the fields of a class, by field."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(doc))):
                found[name] = " ".join(inspect.cleandoc(doc).split())
    return found
