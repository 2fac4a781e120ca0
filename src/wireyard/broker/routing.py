"""From messages to receivers: subscriptions, retained values, and the queues of sessions.

Rules of this file:

1. A client gets one copy of a message, at the highest QoS of its subscriptions that match, with the
   identifiers of all of them.
2. Messages of QoS 1 and 2 wait in the queue of a session while its client is away, slow, or has as
   many in flight as it takes. Those of QoS 0 do not wait.
3. Each limit that is reached is said in one line; nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from wireyard.broker.persistence import Persistence
from wireyard.broker.retained import Retained
from wireyard.broker.session import Link, Session
from wireyard.broker.settings import Settings
from wireyard.endpoints import Burst, Delivery, Message, codes
from wireyard.endpoints.messages import MQIPDP
from wireyard.endpoints.packets import ERROR
from wireyard.errors import SourceError
from wireyard.layers.mqtt.deliveries.subscriptions import Subscription, Subscriptions
from wireyard.layers.mqtt.deliveries.topics import split_shared

_MOST_TOPICS: Final = 10_000
"""Topics whose receivers are remembered."""


class _Target(NamedTuple):
    """A receiver of a topic: its session, and what its subscriptions that match grant."""

    session: Session
    subscriptions: tuple[Subscription, ...]
    qos: int
    keeps_retain: bool
    identifiers: tuple[int, ...]
    has_no_local: bool

    @classmethod
    def of(cls, session: Session, subscriptions: list[Subscription]) -> _Target:
        return cls(
            session,
            tuple(subscriptions),
            max(one.qos for one in subscriptions),
            any(one.retain_as_published for one in subscriptions),
            tuple(one.identifier for one in subscriptions if one.identifier is not None),
            any(one.no_local for one in subscriptions),
        )

    def delivery(self, message: Message) -> Delivery:
        qos = self.qos if self.qos < message.qos else message.qos
        return Delivery(message, qos, message.retain and self.keeps_retain, self.identifiers)


class _Targets:
    """The receivers of a topic; of each group, one member gets a message."""

    __slots__ = ("each", "groups", "turn")

    def __init__(self, each: list[_Target], groups: list[list[_Target]]) -> None:
        self.each, self.groups, self.turn = each, groups, 0


class Router:
    """The subscriptions and messages of a broker.

    `say` is called with one line for each notable cause. `kept` is where its state outlives the
    process, if it does. Links in `dirty` have something to send. The caller sets `now`, the time in
    seconds since 1970. `also` is called with each message that is published, for receivers
    elsewhere, and returns its reason code.
    """

    def __init__(
        self, settings: Settings, say: Callable[[str], None], kept: Persistence | None = None
    ) -> None:
        self.settings, self.say = settings, say
        self.kept = kept
        self.sessions: dict[str, Session] = {}
        self.dirty: set[Link] = set()
        self.now = 0.0
        self.also: Callable[[Message], int] | None = None
        self.retained = Retained(settings.max_retained, settings.max_retained_bytes)
        self._tree = Subscriptions()
        self._targets: dict[str, _Targets] = {}
        self._kept_bytes = 0

    # --- subscriptions --------------------------------------------------------------------

    def subscribe(self, session: Session, subscription: Subscription) -> tuple[int, bool]:
        """Add a subscription; return its reason code, the granted QoS, and whether it is new."""
        access, filter = self.settings.access, subscription.filter
        if access is not None and not access.may_read(session.user, session.client_id, filter):
            self.say(f"{session.client_id}: may not subscribe to {filter} [{codes.NOT_AUTHORIZED}]")
            return codes.NOT_AUTHORIZED, False
        is_new = filter not in session.subscriptions
        refused, most = self._tree.refused, self.settings.max_subscriptions
        if not is_new or len(session.subscriptions) < most:
            self._tree.subscribe(subscription)
        if (is_new and len(session.subscriptions) >= most) or self._tree.refused > refused:
            text = f"has {most} subscriptions, or one of too many levels"
            self.say(f"{session.client_id}: {text} [{codes.QUOTA_EXCEEDED}]")
            return codes.QUOTA_EXCEEDED, False
        session.subscriptions[filter] = subscription
        self._targets.clear()
        if self.kept is not None and session.is_durable:
            self.kept.put_subscription(subscription)
        return subscription.qos, is_new

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Remove a subscription; return whether there was one."""
        self._targets.clear()
        found = session.subscriptions.pop(filter, None)
        if self.kept is not None and session.is_durable:
            self.kept.remove_subscription(session.client_id, filter)
        return found is not None and self._tree.unsubscribe(session.client_id, filter)

    def has(self, session: Session) -> bool:
        """Return whether a session goes on."""
        return self.sessions.get(session.client_id) is session

    def forget(self, session: Session) -> None:
        """Remove a session, with its subscriptions and messages."""
        for filter in list(session.subscriptions):
            self.unsubscribe(session, filter)
        if self.kept is not None:
            self.kept.remove_session(session)
        self._kept_bytes -= session.kept_bytes
        session.kept_bytes = 0
        session.queue.clear()
        session.flows.discard()
        if self.has(session):
            del self.sessions[session.client_id]

    def send_retained(self, session: Session, subscription: Subscription, is_new: bool) -> None:
        """Send the retained values that a subscription asks for."""
        group, filter = split_shared(subscription.filter)
        handling = subscription.retain_handling
        if group is not None or handling == 2 or (handling == 1 and not is_new):
            return
        identifiers = () if subscription.identifier is None else (subscription.identifier,)
        is_oldest = session.link is not None and session.link.endpoint.version == MQIPDP
        for message in self.retained.matching(filter, self.now):
            # 1999: "with the same QoS with which it was originally published" (errata M28).
            most = message.qos if is_oldest else subscription.qos
            self._deliver(session, Delivery(message, min(message.qos, most), True, identifiers))

    # --- messages -------------------------------------------------------------------------

    def publish(self, message: Message, publisher: Session | None) -> int:
        """Pass a message on; return its reason code."""
        if message.retain:
            self._retain(message)
        count = self.route(message, publisher)
        code = codes.NO_SUBSCRIBERS if self.also is None else self.also(message)
        return 0 if count and code == codes.NO_SUBSCRIBERS else code

    def publish_burst(self, burst: Burst, publisher: Session) -> None:
        """Pass on several messages of QoS 0 and one topic."""
        targets = self._find(burst.first.topic)
        if self.also is not None or targets.groups:
            for message in burst.messages():
                self.publish(message, publisher)
            return
        for target in targets.each:
            link = target.session.link
            if link is None:
                continue
            is_plain = not (target.has_no_local or target.identifiers or self._is_slow(link))
            if is_plain and link.endpoint.forward_burst(burst):
                self.dirty.add(link)
            else:
                for message in burst.messages():
                    self._give(target, message, publisher)

    def has_receivers(self, topic: str) -> bool:
        """Return whether somebody gets the messages of a topic."""
        targets = self._find(topic)
        return bool(targets.each or targets.groups)

    def route(self, message: Message, publisher: Session | None) -> int:
        """Give a message to the sessions that subscribe to its topic; return how many those are."""
        targets = self._find(message.topic)
        for target in targets.each:
            self._give(target, message, publisher)
        for group in targets.groups:
            targets.turn += 1
            target = _next_of(group, targets.turn)
            self._deliver(target.session, target.delivery(message))
        return len(targets.each) + len(targets.groups)

    def _give(self, target: _Target, message: Message, publisher: Session | None) -> None:
        if target.has_no_local and target.session is publisher:
            others = [one for one in target.subscriptions if not one.no_local]
            if not others:
                return
            target = _Target.of(target.session, others)
        if message.qos and target.qos:
            self._deliver(target.session, target.delivery(message))
        elif target.session.link is not None:
            self._forward(target.session.link, target, message)

    def _is_slow(self, link: Link) -> bool:
        return link.is_slow or link.endpoint.unsent_bytes > self.settings.max_unsent_bytes

    def _retain(self, message: Message) -> None:
        is_kept = self.retained.set(message)
        if not is_kept:
            count = self.retained.count
            self.say(f"{message.topic}: is not retained, there are {count} retained values")
        if self.kept is not None:
            self.kept.put_retained(message, is_kept and message.payload != b"")

    def _find(self, topic: str) -> _Targets:
        known = self._targets.get(topic)
        if known is not None:
            return known
        each: dict[str, list[Subscription]] = {}
        groups: dict[str, list[Subscription]] = {}
        for subscription in self._tree.matching(topic):
            if subscription.group is None:
                each.setdefault(subscription.client_id, []).append(subscription)
            else:
                groups.setdefault(subscription.filter, []).append(subscription)
        found = _Targets(
            [_Target.of(self.sessions[name], same) for name, same in each.items()],
            [
                [_Target.of(self.sessions[one.client_id], [one]) for one in members]
                for members in groups.values()
            ],
        )
        if len(self._targets) >= _MOST_TOPICS:
            self._targets.clear()
        self._targets[topic] = found
        return found

    def _deliver(self, session: Session, delivery: Delivery) -> None:
        """Send a message to a session, or keep it for later."""
        link = session.link
        if link is not None and link.endpoint.unsent_bytes > self.settings.max_unsent_bytes:
            link.is_slow = True
        if not delivery.qos:
            if link is not None and not link.is_slow:
                self._send(link, session, delivery)
            elif link is not None:
                self._drop(session, "reads too slowly, messages of QoS 0 are dropped")
        elif self._keep(session, delivery):
            if link is None or link.is_slow or session.queue or link.endpoint.room <= 0:
                session.queue.append(delivery)
                if self.kept is not None and session.is_durable:
                    self.kept.put_delivery(session, delivery)
            else:
                self._send(link, session, delivery)

    def _forward(self, link: Link, target: _Target, message: Message) -> None:
        """Send a message at QoS 0 to a session that is connected."""
        endpoint = link.endpoint
        retain = message.retain and target.keeps_retain
        if self._is_slow(link) or target.identifiers or not endpoint.forward(message, retain):
            self._deliver(target.session, target.delivery(message))
        else:
            self.dirty.add(link)

    def _send(self, link: Link, session: Session, delivery: Delivery) -> None:
        if not link.endpoint.send(delivery, self.now):
            most = link.endpoint.peer_max_packet
            self._drop(session, f"takes packets of {most} bytes at most, larger ones are dropped")
            self.release(session, delivery)
        elif delivery.qos and self.kept is not None and session.is_durable:
            self.kept.put_delivery(session, delivery)
            link.waits_for = self.kept.store.group
        self.dirty.add(link)

    def _keep(self, session: Session, delivery: Delivery) -> bool:
        """Account for a message that waits or is in flight; return False if there is no room."""
        settings, size = self.settings, delivery.message.size
        kept, all_kept = session.kept_bytes + size, self._kept_bytes + size
        if len(session.queue) >= settings.max_queued:
            self._drop(session, f"{settings.max_queued} messages wait for it, more are dropped")
        elif kept > settings.max_kept_bytes or all_kept > settings.max_all_kept_bytes:
            shown = f"{session.kept_bytes} bytes are kept for it, {self._kept_bytes} for all"
            self._drop(session, f"{shown}, more are dropped")
        else:
            session.kept_bytes, self._kept_bytes = kept, all_kept
            return True
        return False

    def release(self, session: Session, delivery: Delivery) -> None:
        """Take note that a message does not wait, and is not in flight, any more."""
        if delivery.qos:
            session.kept_bytes -= delivery.message.size
            self._kept_bytes -= delivery.message.size
            if self.kept is not None:
                self.kept.remove_delivery(delivery)

    def restore(self) -> list[Session]:
        """Continue with what the store has; return the sessions that were connected."""
        kept, self.kept = self.kept, None  # what is read is not written
        assert kept is not None
        connected = []
        for session, is_connected in kept.sessions():
            self.sessions[session.client_id] = session
            connected += [session] if is_connected else []
        for subscription in kept.subscriptions():
            session = self._restored(kept, subscription.client_id)
            if self.subscribe(session, subscription)[0] >= ERROR:
                kept.remove_subscription(subscription.client_id, subscription.filter)
        for client_id, delivery, is_received in kept.deliveries():
            session = self._restored(kept, client_id)
            session.kept_bytes += delivery.message.size
            self._kept_bytes += delivery.message.size
            if delivery.packet_id is None:
                session.queue.append(delivery)
            else:
                session.flows.restore(delivery, is_received)
        for client_id, packet_id in kept.held():
            self._restored(kept, client_id).flows.hold(packet_id)
        for message in kept.retained():
            if not self.retained.set(message):
                kept.put_retained(message, False)
        self.kept = kept
        return connected

    def _restored(self, kept: Persistence, client_id: str) -> Session:
        session = self.sessions.get(client_id)
        if session is None:
            text = f"{kept.store.path}: is damaged: client id '{client_id[:100]}' has no session"
            raise SourceError(text)
        return session

    def _drop(self, session: Session, text: str) -> None:
        if not session.dropped:
            self.say(f"{session.client_id}: {text}")
        session.dropped += 1

    def report_dropped(self, session: Session) -> None:
        """Say how many messages were dropped, if any."""
        if session.dropped:
            self.say(f"{session.client_id}: {session.dropped} messages were dropped")
            session.dropped = 0

    def pump(self, session: Session) -> None:
        """Send messages that wait, as far as the client takes them."""
        link = session.link
        while link is not None and session.queue and not link.is_slow and link.endpoint.room > 0:
            delivery = session.queue.popleft()
            if delivery.is_expired(self.now):
                self.release(session, delivery)
            else:
                self._send(link, session, delivery)
            if link.endpoint.unsent_bytes > self.settings.max_unsent_bytes:
                link.is_slow = True


def _next_of(group: list[_Target], turn: int) -> _Target:
    """Return the member of a shared subscription whose turn it is: one that reads, if any."""
    turns = [group[(turn + place) % len(group)] for place in range(len(group))]
    connected = [target for target in turns if target.session.link is not None]
    for target in connected:
        if not target.session.queue:
            return target
    return (connected or turns)[0]
