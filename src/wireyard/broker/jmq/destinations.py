"""Queues, topics and subscriptions, and the copies of messages that wait in them or are held.

Rules of this file:

1. A queue, and each subscription of a topic, has a `Backlog`. Of a message, each has one copy.
2. Copies go out by priority, then in the order of arrival; so do those that come back.
3. No consumer that could take a copy leaves it waiting: a copy is offered to the consumers when it
   comes, and a consumer looks through the backlog when it becomes ready.
4. As a topic of MQTT, ``plant.line`` is ``plant/line`` (`topic_of`, `name_of`). In the list of
   access, of the wildcards ``*`` is ``+``, and ``>`` or ``**`` at the end is ``#``. A queue has the
   prefix ``$Q/``. So no name has a character that means something there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from wireyard.broker.jmq.selector import Selector
from wireyard.broker.settings import JmqLimits
from wireyard.endpoints.jmq import Message
from wireyard.layers.jmq.rules import TEMPORARY
from wireyard.layers.jmq.states import DELIVERY

if TYPE_CHECKING:
    from wireyard.broker.jmq.connections import Consumer, Producer
    from wireyard.broker.jmq.transactions import Transaction

_WAITING: Final = ""
_HELD: Final = DELIVERY.states[0]
QUEUES: Final = "$Q/"
"""The prefix of topics of MQTT that are queues."""
MOST_NAME: Final = JmqLimits().max_name
_FOREIGN: Final = "/+#"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_/]|^[0-9/]")
_QUOTED: Final = re.compile(r"(?:\$[0-9A-F]{2})+")


class Copy:
    """A message of one backlog.

    `count` is how often a consumer has seen it. `state` is that of its delivery in the table
    `DELIVERY`; empty while it waits. `consumer` is the one that holds it, or the one that it waits
    for. The selectors in `refused` do not match it.
    """

    __slots__ = ("backlog", "consumer", "count", "message", "refused", "state", "transaction")

    def __init__(self, message: Message, backlog: Backlog) -> None:
        self.message, self.backlog = message, backlog
        self.count, self.state = 0, _WAITING
        self.consumer: Consumer | None = None
        self.transaction: Transaction | None = None
        self.refused: tuple[Selector, ...] = ()

    def begin(self, consumer: Consumer | None) -> None:
        """Begin a delivery."""
        self.consumer, self.state = consumer, _HELD

    def advance(self, event: str) -> bool:
        """Apply an event to the delivery; return False if it does not apply."""
        cell = DELIVERY.get((self.state, event))
        if cell is None:
            return False
        self.state = cell.state
        return True

    def give_back(self, seen: bool) -> None:
        """End a delivery without an acknowledgement."""
        self.state, self.transaction, self.consumer = _WAITING, None, None
        self.count += seen

    @property
    def rank(self) -> tuple[int, int]:
        """Where it stands in its backlog."""
        return -self.message.priority, self.message.order


class Backlog:
    """The copies of a queue or of a subscription."""

    def __init__(self, destination: Destination | None) -> None:
        self.destination = destination
        """The queue; None for a subscription."""
        is_kept = destination is not None and destination.owner is None
        self.number: int | None = 0 if is_kept else None
        """The subscription in a store, 0 of a queue; None for what does not outlive the process."""
        self.is_gone = False
        """Whether it is no longer there: copies that are held in it are not delivered again."""
        self.copies: dict[bytes, Copy] = {}
        """Those that wait and those that are held, by SysMessageID."""
        self.consumers: list[Consumer] = []
        self._lines: dict[int, deque[Copy]] = {}
        self._turn = 0

    def sorted(self) -> list[Copy]:
        """Return all copies in their order."""
        return sorted(self.copies.values(), key=lambda copy: copy.rank)

    def waiting(self) -> Iterator[Copy]:
        """Yield the copies that no consumer holds, in their order."""
        for priority in sorted(self._lines, reverse=True):
            yield from self._lines[priority]

    def offer(self, copy: Copy) -> Consumer | None:
        """Return the consumer whose turn it is to take a new copy; let it wait if there is none."""
        consumer = self._taker(copy)
        if consumer is None:
            self._lines.setdefault(copy.message.priority, deque()).append(copy)
        return consumer

    def _taker(self, copy: Copy) -> Consumer | None:
        consumers, count = self.consumers, len(self.consumers)
        for place in range(self._turn, self._turn + count):
            consumer = consumers[place % count]
            if consumer.is_ready and consumer.wants(copy):
                self._turn = (place + 1) % count
                return consumer
        return None

    def put_back(self, copies: Iterable[Copy]) -> None:
        """Let copies wait again, each at its place."""
        for copy in copies:
            line = self._lines.setdefault(copy.message.priority, deque())
            order = copy.message.order
            if not line or line[-1].message.order < order:
                line.append(copy)
            elif order < line[0].message.order:
                line.appendleft(copy)
            else:
                place = next(at for at, one in enumerate(line) if order < one.message.order)
                line.insert(place, copy)

    def take_for(self, consumer: Consumer) -> Iterator[Copy]:
        """Yield the copies that a consumer takes, as long as it is ready; they wait no more."""
        for priority in sorted(self._lines, reverse=True):
            line = self._lines[priority]
            if consumer.selector is None:
                while line and consumer.is_ready:
                    yield line.popleft()
            else:
                yield from self._chosen(line, priority, consumer)
            if not self._lines.get(priority):
                self._lines.pop(priority, None)

    def _chosen(self, line: deque[Copy], priority: int, consumer: Consumer) -> Iterator[Copy]:
        chosen = set()
        for copy in list(line):
            if not consumer.is_ready:
                break
            if consumer.wants(copy):
                chosen.add(copy)
                yield copy
        if chosen:
            self._lines[priority] = deque(copy for copy in line if copy not in chosen)

    def drop(self, copy: Copy) -> None:
        """Remove a copy that waits."""
        line = self._lines.get(copy.message.priority)
        if line is not None and copy in line:
            line.remove(copy)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._turn = 0


class Subscription(Backlog):
    """A subscription of a topic, or of all topics that a name with wildcards matches.

    `key` is the client id and name of a durable or a shared one, and whether it is durable; None
    for the subscription of a single consumer.
    """

    def __init__(
        self,
        topic: str,
        key: tuple[str | None, str, bool] | None,
        is_shared: bool,
        selector: Selector | None,
        no_local: bool,
        origin: object,
    ) -> None:
        super().__init__(None)
        self.topic, self.key, self.is_shared = topic, key, is_shared
        self.selector, self.no_local, self.origin = selector, no_local, origin

    @property
    def name(self) -> str:
        """The name of a durable or a shared one."""
        return "" if self.key is None else self.key[1]

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its consumers."""
        return self.key is not None and self.key[2]

    def selects(self, message: Message) -> bool:
        """Return whether it gets a message of its topic."""
        if self.no_local and message.origin == self.origin:
            return False
        return self.selector is None or self.selector.matches(message.values())


class Destination:
    """A queue or a topic.

    `owner` is the connection of a temporary destination, which alone may consume from it. Only a
    queue has a `backlog`. `kept` is the number of messages of which there are copies, or whose
    delivery time has not come. Producers in `blocked` wait for room.
    """

    __slots__ = ("backlog", "blocked", "is_gone", "is_queue", "kept", "name", "owner")

    def __init__(self, name: str, is_queue: bool, owner: object | None = None) -> None:
        self.name, self.is_queue, self.owner = name, is_queue, owner
        self.backlog = Backlog(self) if is_queue else None
        self.kept = 0
        self.is_gone = False
        self.blocked: list[Producer] = []

    @property
    def key(self) -> tuple[bool, str]:
        """What it is found by: a queue and a topic may have the same name."""
        return self.is_queue, self.name

    @property
    def id(self) -> str:
        """The name with a prefix for its kind, as brokers show it."""
        return f"{'Q' if self.is_queue else 'T'}:{self.name}"


@lru_cache(4096)
def is_name(name: str, most: int = MOST_NAME) -> bool:
    """Return whether a text can be the name of a destination, or a client id."""
    if not 0 < len(name) <= most or not name.isprintable() or " " in name:
        return False
    return name.startswith(TEMPORARY) or not any(one in name for one in _FOREIGN)


@lru_cache(4096)
def name_of(topic: str) -> str:
    """Return the name of a topic of MQTT.

    The stock client takes only names of Java identifiers and dots, so each byte of any other
    character is ``$`` and two hexadecimal digits. Temporary destinations keep their names.
    """
    if topic.startswith(TEMPORARY):
        return topic
    return _UNFIT.sub(_quote, topic).replace("/", ".")


def _quote(found: re.Match[str]) -> str:
    character = found[0]
    is_letter = not character.isascii() and character.isidentifier()
    return character if is_letter else "".join(f"${one:02X}" for one in character.encode())


@lru_cache(4096)
def topic_of(name: str) -> str:
    """Return the topic of MQTT that has a name; if `name_of` it differs, there is none."""
    if name.startswith(TEMPORARY):
        return name
    try:
        return _QUOTED.sub(
            lambda found: bytes.fromhex(found[0].replace("$", "")).decode(), name.replace(".", "/")
        )
    except UnicodeDecodeError:
        return name.replace(".", "/")


def access_name(name: str, is_queue: bool) -> str:
    """Return the topic, or the topic filter, that a name is for the list of access."""
    levels = []
    for level in name.split("."):
        if level in ("**", ">"):
            levels.append("#")
            break
        levels.append("+" if level == "*" else topic_of(level))
    return (QUEUES if is_queue else "") + "/".join(levels)


def has_wildcard(topic: str) -> bool:
    """Return whether a name stands for several topics."""
    return any(level in ("*", "**", ">") for level in topic.split("."))


@lru_cache(4096)
def matches(pattern: str, topic: str) -> bool:
    """Return whether a name with wildcards matches a topic.

    ``*`` is one level, ``**`` any number of levels, and ``>`` at the end at least one.
    """
    reached = {0}
    levels = topic.split(".")
    for wanted in pattern.split("."):
        if wanted == "**":
            reached = set(range(min(reached, default=len(levels) + 1), len(levels) + 1))
        elif wanted == ">":
            reached = {len(levels)} if min(reached, default=len(levels)) < len(levels) else set()
        else:
            reached = {at + 1 for at in reached if at < len(levels) and wanted in ("*", levels[at])}
    return len(levels) in reached
