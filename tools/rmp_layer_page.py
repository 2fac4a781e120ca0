"""The page about the RMP messaging layer, made from its literal tables."""

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
from wireyard.layers.states import Cell, StateTable
from wireyard_ring.sequencer import Settings
from wireyard_ring.sequencer.states import ADDRESSES, BALLOTS, PHASES

__all__ = ["rmp_page"]

_HEAD = """
# The RMP messaging layer

`wireyard.layers.rmp` turns messages into packets of the [RMP format](../formats/rmp.md), and the
packets that a ring delivers into messages. It does segmentation and reassembly, packing of small
messages, domains, clients and replies. It opens no socket, reads no clock and draws no random
numbers: its caller passes packets, views and `now`, and gets packets and events.

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
from that position in the order of packets on. An ordered ring delivers packets to all of its
members, the sender included. After a message of several packets, `next_packet` returns nothing
until all of them have come back.

## Where it runs

| ring | order | members | needs |
|---|---|---|---|
| `wireyard_ring.UdpMulticast` | none; packets may be lost | not known | nothing |
| `wireyard_ring.Tcp` | total | views | nothing |
| `wireyard_ring.Corosync` | total | views | corosync and its library |
| `wireyard_ring.MemoryHub` | total | views | nothing; all members in one event loop |
| `wireyard_ring.sim.SimRing` | every one | views | nothing |

Passing tokens, ordering and repeating packets is the task of the rings, not of this layer (errata
R36). `SimRing` is a simulation for tests: crashes after any packet, joins, parts, slow members,
loss and duplicates, repeatable by a seed. `wireyard_ring.Ring` combines the layer, one of the other
rings, and a clock:

```python
from wireyard_ring import Ring, Tcp

async with Ring(Tcp()) as ring:
    await ring.send(b"hello", domain=3)
    ring.flush()  # all that was sent goes now
    async for reply in ring.request(b"who?", want=3, timeout_s=1.0):
        print(reply.source, reply.data)
    async for message in ring.client(7, domains={3}):
        print(message.data)
```

`wireyard ring send`, `listen` and `request` do the same on the command line. `MemoryHub` is for the
tests of programs: `hub = MemoryHub()`, then `Ring(hub.transport())` for each member.

Rings that are given the same `Process` share its message numbers and the handlers of its layers
(errata R34). So a reply to a request on one ring cannot be mistaken for a reply on the other,
whatever names the rings have for the process.

```python
from wireyard_ring import Process, Tcp, UdpMulticast

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
is the default of `Tcp()`, or `Tcp("10.0.0.1:7077,10.0.0.2:7077")`. A process listens on the first
free address of the list that belongs to its machine. This address is its process id; it listens on
no other address. Everyone who can connect to these ports can take part, and there is no encryption,
so use it between machines only in a trusted network.

**Order.** The first member of a view is its sequencer. It numbers the packets; all members
acknowledge the packets that they hold; a packet that all members hold is delivered. So if any
member has delivered a packet, even one that then failed, all remaining members deliver it. When the
sequencer fails, no packets have to be fetched: the members deliver the packets that every one of
them holds, the next member becomes the sequencer, and each member submits its undelivered packets
again, once. A packet is kept until it is delivered, and no longer.

**Views.** Every member has a connection to every other member and sends a beat on it six times in
`patience_s`. A member that is silent for that time is suspected. An address that refuses
connections shows at once that its process has ended. The first member that is not suspected
proposes the next view, with the processes that want to join. All members that are not suspected
have to promise, and then to accept.

**Never two rings.** More than half of a view decides on the next view, or exactly half with the
first member among them. Dead members do not count if their death was observed by a process that
they could not have excluded before: an echoed beat is a promise not to exclude its sender for
`patience_s`. So if one of two members is killed, the other continues, whichever it is. If one of
two is *stopped*, or disconnected, the first in the view continues and the second waits, up to
`give_up_s`. A process that was stopped for longer than the others waited finds that it was
excluded, and fails; it can join again, as another member. It never delivers anything in another
order.

**Joining.** A process without a ring connects to every address of the list. It forms a ring if all
others refuse connections or are joining and come later in the list. If an address accepts
connections and sends nothing, such as that of a stopped process or of another program, the process
waits for it up to `give_up_s`.

**Slow members.** Each sender may have `window_bytes` that not all members hold. So a member that
does not read makes all others wait, and fails after `give_up_s`. Data that is no frame of a ring,
or too long, closes its connection with one line in the log `wireyard.ring`; the ring continues.

A member's phases:
"""
_ARRIVING_TEXT = """
A message has the position of its first packet in the order. An unfinished message holds back the
messages that began after it: in the whole ring or of its source, depending on the quality of
service. At a change of view, complete messages are delivered before it, and unfinished messages are
dropped, also those of members that live; afterwards, message numbers begin anew. All members see
the view at the same position among the packets, so all do the same, and a restarted process cannot
be mistaken for its former self. In an ordered ring nothing depends on time, because time passes
differently at each member. Where packets keep no order, a message is delivered when all its packets
are there, whichever came first (errata R25).
"""
_OWN_TEXT = """
A packet of an own message is *back* when the ring has delivered it to its sender. A view *cuts* a
message if some of its packets came before the view and some did not. Its sender sends it again. It
also does so if receivers had no room left, because it sees the same packets as they do. If none of
a message's packets is back, nothing has to be done: the ring will order all of it in the new view.

**A sender's order holds over every view** (errata R28). After a message of several packets, the
ring is given no more packets until all of them are back. So nothing can be ordered between a cut
message and the same message sent again, and every member delivers the messages of a sender in the
order in which they were sent, without a gap; a member that joins does so from some message on. With
the packets as they are, no other rule keeps this order. If packets were given to the ring after a
cut message, they would arrive in the new view, or in a later one. A member that joins then has seen
no packet of the cut message, and nothing in the later packets shows that they have to wait. A
message of one packet is never cut, and is sent without waiting. All this applies to messages that
wait for each other: totally ordered ones, and source ordered ones.

A cut message is sent again under its own number, once none of its packets is in flight (R29).
Before packet 1 comes again, every member drops the rest of the first attempt, because no member has
its beginning. So a request keeps its number, and nothing is lost if all numbers are in use.

The price is one trip around the ring for each message of several packets. Larger packets mean fewer
such messages: `max_packet_bytes` is that of the transport, for corosync 32 KiB.
"""
_HANDLERS_TEXT = """
`register_layer` requests the messages of a destination layer: as events, or for a handler, which
`next_event` calls at the position of each message. A handler replies as any sender does. Replies
are events, or end a request; no handler gets one (errata R32).

```python
def upper(message):
    layer.send("ring", message.data.upper(), now=0.0, layer=2, reply_to=message.message_id)


layer.register_layer(2, upper)  # the RPC layer
layer.register_foreign(4096, print)  # messages of a protocol of its own, and how they are sent:
layer.send_foreign("ring", b"\\x10\\x00theirs", now=0.0)
```

`register_layer(1, in_pieces=True)` requests the messages of the streams layer as they arrive: a
message of several packets becomes `Piece` events as soon as its turn comes, instead of one
`Delivered` when it is complete. The last piece is marked. If an `Aborted` with the number of the
message comes first, the pieces have to be discarded, and its sender may send the message again,
from the beginning. A message that is complete when its turn comes is delivered as a whole, and so
is every reply. Each member chooses for itself, and the others see no difference.
"""
_REQUESTS_TEXT = """
A request needs a registered layer, because replies for another would be dropped (errata R35). It
states how many replies it wants: a number, `all` members that it could reach when it was
sent, or a `stream` of all replies that come. This process counts as one of them if another of its
clients gets the request. Members that have left do not answer, and a member answers at most once. A
message number is not used again before twice the timeout has passed since the request ended.
"""
_CAPTURES_TEXT = """
`wireyard run` reassembles the packets of a capture with the same code. Packets of UDP ports that
`--decode-as` names, as in `udp.port==7077,rmp`, become rows of `packets_rmp`, one for each message
in a packet, and from these

- **messages**: a complete message is one row, at the position of its first packet. Its destination
  is the group, `message_type` its layer, `producer_client_id` the number of its client; properties
  have domain, message number, and the frames of all its packets. A request and its replies have the
  same `correlation_id`: the requesting process and the number of its message.
- **conversations** of the kind `rmp`: a request with each of its replies. A reply is matched to the
  latest earlier message with the process and number that it names. A request without a reply has
  `reply_key` null.
- **violations**: the rules below.

```python
from wireyard.layers.rmp.chain import derive_tables

rows = wireyard.read("ring.pcap", "rmp").to_pylist()
derive_tables(rows).tables["conversations"]
```

A sender is everything that one endpoint sent to one group, in the order of capture. It is
reassembled as unordered packets are, because no capture shows a quality of service, and UDP keeps
no order. So a message is complete with the last of its packets, in whichever order they came, and
its fields are those of packet 1.

No row has what a capture cannot show:

- **the receivers of a message**: clients, domains and layers are registered in processes, and never
  sent.
- **how many replies a request wanted**, how long it waited, and whether a reply was the last: the
  wire has one flag, that a reply is requested. The status of a conversation is null.
- **views**. An unfinished message is given up after `reassembly_timeout_s`, or at the end of the
  capture. Missing packets may have been lost before the capture, or never sent.
- **a copy of a packet without numbers** (errata R27). Two equal packets count once if the second
  came within `max_delay_s` and both would have fitted into one packet, because a sender would have
  packed them together. A note says how many packets count once; to come again breaks no rule.
"""
_RULINGS = """
## Rulings

In addition to those of the [errata](../errata.md), R12 to R34:

- **A packet of another order** than the message that it names does not change that message. Members
  see unordered packets at different positions, so its effect on an ordered message would differ.
- **A repeated packet 1** begins its message again if packets keep an order, because its sender has
  begun again. Without an order it is a packet that the network duplicated.
- **A packet that overtakes packet 1** is dropped, and its message with it. A member that joined
  late or has passed a view must not keep the rest of a message, because a later message may have
  the same number.
- **Whether a layer or a domain is registered** is checked when a message is delivered. Otherwise
  members with other layers would count other messages against their bounds.
- **Bounds** are applied by the packets alone. In an order, the message that began last is aborted,
  and its sender sends it again; the message that the others wait for is aborted last (R30). Without
  an order nothing is sent again, and the oldest message is aborted.
- **A process without clients** gets every message itself.
"""

_CELL = ("state", "event", "action", "next state")


def rmp_page() -> Iterator[str]:
    """Yield the lines of docs/layers/rmp.md."""
    yield from (*_HEAD.strip().splitlines(), "", "## Qualities of service", "")
    qualities = ((one.label, one.order, "yes" if one.reliable else "no") for one in QoS)
    yield from markdown(("quality", "order", "reaches all members"), qualities)
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
    yield from markdown(("end of the request", "reason"), ends)
    yield from _section("Over TCP", _TCP_TEXT)
    yield from state_diagram(PHASES)
    yield from markdown(_CELL, _cells(PHASES))
    yield from ("A ballot of a member's own:", "")
    yield from markdown(_CELL, _cells(BALLOTS))
    yield from ("Another address, to a process that joins:", "")
    known = ((*pair, cell.state) for pair, cell in ADDRESSES.items())
    yield from markdown(("state", "event", "next state"), known)
    yield from ("Settings, the same at all members:", "")
    yield from markdown(("setting", "value", "meaning"), _defaults(Settings))
    yield from _section("From captures", _CAPTURES_TEXT)
    yield from markdown(("rule", "meaning"), ((f"`{name}`", text) for name, text in RULES.items()))
    yield from (*_RULINGS.strip().splitlines(), "", "## Counters", "")
    yield from markdown(("`Drop`", "counts"), ((f"`{one.name}`", one.value) for one in Drop))
    yield from ("## Limits", "", "They are the same at all members of a ring.", "")
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
