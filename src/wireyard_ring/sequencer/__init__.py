"""The order and views of a ring by a sequencer that may fail, sans-IO; `tcp` runs it.

`RingMember` is the interface, `states` has its state tables, `contacts` the rules that prevent two
rings.
"""

from wireyard_ring.sequencer.frames import Member
from wireyard_ring.sequencer.links import Answer, Command, Dial, Drop, HangUp, Write
from wireyard_ring.sequencer.member import Event, Failed, NewView, Packet, RingMember
from wireyard_ring.sequencer.settings import Settings, read_addresses
from wireyard_ring.sequencer.states import Phase

__all__ = [
    "Answer",
    "Command",
    "Dial",
    "Drop",
    "Event",
    "Failed",
    "HangUp",
    "Member",
    "NewView",
    "Packet",
    "Phase",
    "RingMember",
    "Settings",
    "Write",
    "read_addresses",
]
