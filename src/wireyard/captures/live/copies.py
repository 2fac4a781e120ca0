"""Connections of a live capture that are one: captured twice, or in several networks.

Rules of this file:

1. The rules of `connections.copies` decide, by the bytes that are held. A connection that its
   numbers and endpoints relate to an earlier one waits until `SETTLE_NS` after its first bytes.
   Then it is that one for good, or is not.
2. If the earlier one was read to its end, the other one waits for its own end, as long as it has no
   other bytes.
3. Datagrams of one direction in a network belong to a conversation that has only the other
   direction then.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireyard.arrays import Int32s, Ints
from wireyard.captures.connections.copies import Compared, Copy, Finder, join
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.stream import Runs
from wireyard.captures.connections.tcp import Placer
from wireyard.captures.connections.tcp_kernels import Connection, Side, State
from wireyard.captures.live.held import Held, HeldRuns
from wireyard.captures.records import NO_TIME

if TYPE_CHECKING:
    from wireyard.captures.live.connections import OpenConnection

SETTLE_NS: Final = 200_000_000
"""How long a connection waits for better evidence: of its format, of where its streams begin, and
of being another one."""
_MOST_PAIRS: Final = 1 << 17
"""Pairs of endpoints whose connections are counted, for their names, at about 300 bytes each."""
_MOST_BEFORE: Final = 4
"""Earlier connections that one is compared with."""
NEVER: Final = 1 << 62
_NUMBERS: Final = (1 << 32) - 1


@dataclass(slots=True)
class _Pair:
    """Two endpoints: the number of their connections, and the latest ones."""

    count: int = 0
    connections: list[int] = field(default_factory=list)
    datagrams: list[int] = field(default_factory=list)
    """UDP conversations, of several networks."""


class LiveCopies:
    """The names of connections, and those that are copies of earlier ones.

    `open` are the connections that are being read, `ended` those that ended lately, and `datagrams`
    UDP conversations; `held` has their bytes.
    """

    def __init__(
        self,
        flows: FlowTable,
        placer: Placer,
        open: Mapping[int, OpenConnection],
        ended: Mapping[int, OpenConnection],
        datagrams: Mapping[int, OpenConnection],
        held: HeldRuns,
    ) -> None:
        self._flows, self._placer, self._held = flows, placer, held
        self._open, self._ended, self._datagrams = open, ended, datagrams
        self.joined: dict[int, Copy] = {}
        """The copies, by number."""
        self._first_ns: Ints = np.zeros(0, np.int64)
        self._targets: Ints = np.zeros(0, np.int64)
        self._shifts: Ints = np.zeros(0, np.int64)
        self._flow_targets: dict[int, int] = {}
        """Flows of datagrams that are those of another conversation."""
        self._pairs: OrderedDict[bytes, _Pair] = OrderedDict()
        """The pair seen longest ago comes first."""
        self._by_numbers: defaultdict[int, list[int]] = defaultdict(list)
        """Connections by the first numbers of both sides."""

    def _pair(self, conversation: int) -> _Pair:
        key = self._flows.pair(conversation)
        pair = self._pairs.pop(key) if key in self._pairs else _Pair()
        self._pairs[key] = pair
        if len(self._pairs) > _MOST_PAIRS:
            self._pairs.popitem(last=False)
        return pair

    # --- connections ------------------------------------------------------------------------

    def add(self, number: int, conversation: int, first_ns: int) -> tuple[int, Sequence[int]]:
        """Add a connection; return its ordinal, and the earlier ones that it waits for.

        It may be a copy of them. If there are any, it is not counted yet, and its ordinal is 0.
        """
        more = 2 * len(self._placer) - len(self._targets)
        if more > 0:
            known = len(self._targets)
            self._targets = np.append(self._targets, np.arange(known, known + more))
            self._shifts = np.append(self._shifts, np.zeros(more, np.int64))
            self._first_ns = np.append(self._first_ns, np.full(more // 2, NO_TIME))
        self._first_ns[number] = first_ns
        pair = self._pair(conversation)
        suspects = self._possible(number, pair.connections) or [
            # Another one that is not counted yet comes first.
            each
            for each in pair.connections
            if (connection := self._open.get(each)) is not None and connection.suspects
        ]
        pair.connections = [*pair.connections[1 - _MOST_BEFORE :], number]
        return (0, suspects) if suspects else (self.count(conversation), ())

    def count(self, conversation: int) -> int:
        """Count another connection of its endpoints; return the n of the suffix ``#n``."""
        pair = self._pair(conversation)
        pair.count += 1
        return pair.count

    def uncount(self, conversation: int, ordinal: int) -> None:
        """Undo `count` for a copy, unless another connection was counted in the meantime."""
        pair = self._pair(conversation)
        pair.count -= pair.count == ordinal

    def with_numbers(self, number: int) -> Sequence[int]:
        """Return the earlier connections with the numbers of one that has its first bytes."""
        sides = self._placer.sides[2 * number : 2 * number + 2]
        if not (sides[:, Side.STATE] & State.BEGUN).all():
            return ()
        low, high = sorted((sides[:, Side.BASE] + sides[:, Side.BEGIN] & _NUMBERS).tolist())
        others = self._by_numbers[low << 32 | high]
        if number not in others[-_MOST_BEFORE:]:
            others.append(number)
        return self._possible(number, (one for one in others[-_MOST_BEFORE:] if one < number))

    def _possible(self, number: int, others: Iterable[int]) -> list[int]:
        """Return the connections of which one may be a copy, the latest first."""
        found = []
        for other in others:
            connection = self._open.get(other) or self._ended.get(other)
            if other in self.joined or (connection is not None and connection.is_ignored):
                continue
            if self._finder(number, other).is_possible(number, other):
                found.append(other)
        return found[::-1]

    def _is_empty(self, number: int) -> bool:
        """Return whether a connection has no bytes, and is not that of a copy."""
        states = self._placer.sides[2 * number : 2 * number + 2, Side.STATE]
        return number not in self.joined and not (states & State.DATA).any()

    def conclude(
        self, connection: OpenConnection, now_ns: int, *, final: bool
    ) -> Copy | int | None:
        """Return a connection as a copy, or else when to look again; None if it is another one.

        `final` shows whether this is the last time.
        """
        number = connection.number
        row = self._placer.connections[number]
        began_ns = [one.first_ns for one in connection.sides if one.first_ns != NO_TIME]
        if not final:
            settled_ns = min(began_ns) + SETTLE_NS if began_ns else NEVER
            if now_ns < settled_ns:
                return settled_ns
        ended_ns = int(row[Connection.LATEST_NS]) + SETTLE_NS
        size = sum(int(stream.held[Held.LENGTH].sum()) for stream in connection.sides)
        for earlier in connection.suspects:
            copy = self._finder(number, earlier).copy(number, earlier)
            if copy is None:
                continue
            if earlier in self._open or self._is_empty(earlier):
                return copy
            if earlier in self._ended and copy.common_bytes == size:
                if final or (row[Connection.ENDED] and now_ns >= ended_ns):
                    return copy
                return ended_ns if row[Connection.ENDED] else NEVER
        return None

    def _finder(self, number: int, earlier: int) -> Finder:
        """Return what compares two connections."""
        numbers = (number, earlier)
        rows = {each: self._placer.connections[each] for each in numbers}
        conversations = {each: int(row[Connection.CONVERSATION]) for each, row in rows.items()}
        sides = [2 * each + way for each in numbers for way in (0, 1)]
        compared = Compared(
            {side: self._placer.sides[side].tolist() for side in sides},
            {each: int(self._first_ns[each]) for each in numbers},
            {each: int(row[Connection.LATEST_NS]) for each, row in rows.items()},
            {each: self._flows.pair(conversations[each]) for each in numbers},
            conversations,
        )

        def runs_of(side: int) -> Runs:
            connection = self._open.get(side >> 1) or self._ended.get(side >> 1)
            if connection is None:
                return Runs(*np.empty((4, 0), np.int64))
            stream = connection.sides[side & 1]
            self._held.recall([stream])
            return Runs(*stream.held[1:5])

        return Finder(compared, runs_of, self._flows, self._held.places)

    def join(self, copy: Copy) -> None:
        """Give the segments of a copy to the connection that it is a copy of."""
        self.joined[copy.number] = copy
        self._join([copy])

    def target(self, side: int) -> tuple[int, int]:
        """Return the side that the segments of a side belong to, and what moves their positions."""
        return int(self._targets[side]), int(self._shifts[side])

    def follow(self, sides: Int32s, positions: Ints) -> None:
        """Give the new segments of copies to the connections that these are copies of, in place."""
        if not self.joined:
            return
        numbers = np.unique(sides >> 1)
        self._join([self.joined[one] for one in numbers.tolist() if one in self.joined])
        positions += self._shifts[sides]
        sides[:] = self._targets[sides]

    def _join(self, copies: Sequence[Copy]) -> None:
        placer = self._placer
        join(copies, placer.connections, placer.sides, self._targets, self._shifts)

    # --- datagrams --------------------------------------------------------------------------

    def add_datagrams(self, flow: int, used: set[int]) -> int | None:
        """Add a conversation by its first datagram; return its ordinal.

        None if the flow belongs to a conversation of the same endpoints in another network. `used`
        are the flows of all new datagrams.
        """
        pair = self._pair(flow >> 1)
        taken = {*self._flow_targets.values(), *used}
        for other in pair.datagrams:
            target = 2 * other + (flow & 1)
            if (one := self._datagrams.get(other)) is None or target in taken:
                continue
            if one.sides[flow & 1].begin is None:
                self._flow_targets[flow] = target
                return None
        pair.datagrams = [*pair.datagrams[1 - _MOST_BEFORE :], flow >> 1]
        return self.count(flow >> 1)

    def pair_flows(self, flows: Ints) -> Ints:
        """Return flows of datagrams, those in the other network of a conversation as its own."""
        if not self._flow_targets:
            return flows
        known, places = np.unique(flows, return_inverse=True)
        paired = [self._flow_targets.get(flow, flow) for flow in known.tolist()]
        return np.array(paired, np.int64)[places.reshape(-1)]

    def is_paired(self, flow: int) -> bool:
        """Return whether a flow of datagrams is that of another conversation."""
        return flow in self._flow_targets

    @property
    def conversations(self) -> Ints:
        """The conversations of flows that are those of other ones."""
        return np.array([flow >> 1 for flow in self._flow_targets], np.int64)

    # --- eviction and state -----------------------------------------------------------------

    def keep_only(self, connections: Ints, conversations: Mapping[int, int]) -> Ints:
        """Renumber; return the new numbers of copies of connections that are not kept.

        `connections` are the numbers of the connections that are kept, and `conversations` the new
        numbers of the conversations that are kept, by the old ones.
        """
        numbers = {old: new for new, old in enumerate(connections.tolist())}
        self._first_ns = self._first_ns[connections]
        self._shifts = self._shifts.reshape(-1, 2)[connections].reshape(-1)
        self._targets = np.arange(2 * len(connections))
        before, self.joined = self.joined, {}
        lost = []
        for old, copy in before.items():
            if old in numbers and copy.of in numbers:
                kept = copy._replace(number=numbers[old], of=numbers[copy.of])
                self.joined[kept.number] = kept
            elif old in numbers:
                lost.append(numbers[old])
        self._join([*self.joined.values()])
        self._flow_targets = {
            2 * conversations[flow >> 1] + (flow & 1): 2 * conversations[target >> 1] + (target & 1)
            for flow, target in self._flow_targets.items()
            if target >> 1 in conversations
        }
        for pair in self._pairs.values():
            pair.connections = [numbers[old] for old in pair.connections if old in numbers]
            pair.datagrams = [conversations[old] for old in pair.datagrams if old in conversations]
        renumbered = (
            (key, [numbers[old] for old in others if old in numbers])
            for key, others in self._by_numbers.items()
        )
        self._by_numbers = defaultdict(list, {key: some for key, some in renumbered if some})
        return np.array(lost, np.int64)

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues."""
        return {
            "pairs": np.frombuffer(b"".join(self._pairs), np.uint8),
            "pair_counts": np.array([pair.count for pair in self._pairs.values()], np.int64),
            "first_ns": self._first_ns,
            "copies": [[*copy] for copy in self.joined.values()],
            "flow_targets": [[*each] for each in self._flow_targets.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; the connections have been restored.

        `KeyError`, `TypeError`, `ValueError` or `IndexError` is raised if `state` is not such a
        state.
        """
        counts = state["pair_counts"].tolist()
        keys = state["pairs"].reshape(len(counts), -1) if counts else ()
        self._pairs = OrderedDict(
            (key.tobytes(), _Pair(count)) for key, count in zip(keys, counts, strict=True)
        )
        count = len(self._placer)
        self._first_ns = state["first_ns"].copy()
        self._targets, self._shifts = np.arange(2 * count), np.zeros(2 * count, np.int64)
        self.joined = {int(each[0]): Copy(*each) for each in state["copies"]}
        if len(self._first_ns) != count or any(
            not 0 <= number < count for one in self.joined.values() for number in one[:2]
        ):
            raise ValueError("no state of copies")
        self._join([*self.joined.values()])
        self._flow_targets = {int(flow): int(target) for flow, target in state["flow_targets"]}
        conversations = self._placer.connections[:, Connection.CONVERSATION].tolist()
        for number, conversation in enumerate(conversations):
            pair = self._pair(conversation)
            pair.connections = [*pair.connections[1 - _MOST_BEFORE :], number]
        for conversation in self._datagrams:
            pair = self._pair(conversation)
            pair.datagrams = [*pair.datagrams[1 - _MOST_BEFORE :], conversation]
        for number in sorted((*self._open, *self._ended)):
            self.with_numbers(number)
