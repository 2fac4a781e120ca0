"""The order and views of a ring by a sequencer that may fail, sans-IO; `net.tcp` runs it.

`RingMember` is the interface, `states` has its state tables, `contacts` the rules that prevent two
rings.
"""

from wireyard.layers.sequencer.frames import Member
from wireyard.layers.sequencer.links import Answer, Command, Dial, Drop, HangUp, Write
from wireyard.layers.sequencer.member import Event, Failed, NewView, Packet, RingMember
from wireyard.layers.sequencer.settings import Settings, read_addresses
from wireyard.layers.sequencer.states import Phase

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
