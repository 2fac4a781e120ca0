"""Requests of clients: each is done by a handler, and answered.

A handler does what is asked, and answers by `accept` where the client waits; it raises `Refusal`
for what it does not do. Messages that follow from a request are sent behind its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Final

from wireyard.broker.jmq.answers import Refusal, accept
from wireyard.broker.jmq.connections import Connection, Session
from wireyard.broker.jmq.destinations import Copy
from wireyard.broker.jmq.messages import Messages
from wireyard.broker.jmq.parts import Parts, session_of, stop_waiting
from wireyard.broker.jmq.routing import Router
from wireyard.broker.jmq.transactions import Transactions
from wireyard.endpoints.jmq import Request
from wireyard.endpoints.jmq.codes import BAD_REQUEST, CONFLICT, NOT_IMPLEMENTED
from wireyard.formats.jmq_names import PACKET_TYPES

_MAX_UIDS: Final = 1000


class Requests:
    """The requests of all connections; those about sessions are done here."""

    def __init__(self, router: Router) -> None:
        self.router, self.limits = router, router.limits
        # Ids of an earlier run are not used again: a transaction may be known by its own.
        self._ids = count(int(time.time() * 1000) << 12)
        self.transactions = Transactions(router, self.next_id)
        self._parts = parts = Parts(router, self.next_id)
        self.messages = messages = Messages(parts, self.transactions, self.next_id)
        self._client_ids: dict[str, int] = {}
        """How many connections have a client id."""
        self._handlers: dict[str, Callable[[Connection, Request], None]] = {
            "ADD_CONSUMER": parts.add_consumer,
            "DELETE_CONSUMER": parts.delete_consumer,
            "ADD_PRODUCER": parts.add_producer,
            "START": self._start,
            "STOP": self._stop,
            "ACKNOWLEDGE": messages.acknowledge,
            "BROWSE": messages.browse,
            "REDELIVER": messages.redeliver,
            "CREATE_DESTINATION": parts.create_destination,
            "DESTROY_DESTINATION": parts.destroy_destination,
            "VERIFY_DESTINATION": parts.verify_destination,
            "DELIVER": messages.deliver,
            "START_TRANSACTION": self.transactions.start,
            "COMMIT_TRANSACTION": self.transactions.commit,
            "ROLLBACK_TRANSACTION": self.transactions.roll_back,
            "SET_CLIENTID": self._set_client_id,
            "RESUME_FLOW": messages.resume_flow,
            "PREPARE_TRANSACTION": self.transactions.prepare,
            "END_TRANSACTION": self.transactions.end,
            "RECOVER_TRANSACTION": self.transactions.recover,
            "GENERATE_UID": self._generate_ids,
            "FLOW_PAUSED": lambda link, request: None,  # FLOW_PAUSED only informs
            "DELETE_PRODUCER": parts.delete_producer,
            "CREATE_SESSION": self._create_session,
            "DESTROY_SESSION": self._destroy_session,
            "GET_LICENSE": accept,
        }

    def next_id(self) -> int:
        """Return an id that nothing has."""
        return next(self._ids)

    def answer(self, link: Connection, request: Request) -> None:
        """Do what a request asks for; refuse what is not implemented, if the client waits."""
        name = PACKET_TYPES.get(request.packet_type, f"type {request.packet_type}")
        handler = self._handlers.get(name)
        try:
            if handler is None:
                raise Refusal(NOT_IMPLEMENTED, f"{name} is not implemented")
            handler(link, request)
        except Refusal as refusal:
            if refusal.is_notable:
                self.router.say(f"{link.shown}: {refusal.text} [{refusal.status}]")
            if request.wants_reply:
                link.endpoint.reply(
                    request.packet_type, request.id, refusal.status, refusal.text,
                    refusal.properties,
                )  # fmt: skip

    def _set_client_id(self, link: Connection, request: Request) -> None:
        wanted = request.get("JMQClientID", str)
        if wanted is not None and not (
            wanted.isprintable() and len(wanted) <= self.limits.max_name
        ):
            raise Refusal(BAD_REQUEST, "wants a client id that is no name")
        is_shared = request.get("JMQShare", bool, False)
        if wanted != link.client_id and wanted in self._client_ids and not is_shared:
            raise Refusal(CONFLICT, f"wants the client id {wanted}, which is in use")
        self._free_client_id(link)
        if wanted is not None:
            self._client_ids[wanted] = self._client_ids.get(wanted, 0) + 1
        link.client_id = wanted
        accept(link, request)

    def _free_client_id(self, link: Connection) -> None:
        if link.client_id is not None:
            self._client_ids[link.client_id] -= 1
            if not self._client_ids[link.client_id]:
                del self._client_ids[link.client_id]

    def _create_session(self, link: Connection, request: Request) -> None:
        ack_mode = request.get("JMQAckMode", int)
        if not Session.is_mode(ack_mode):
            raise Refusal(BAD_REQUEST, f"wants the acknowledge mode {ack_mode}, which there is not")
        self._parts.check_room(link, link.sessions, "sessions")
        number = self.next_id()
        link.sessions[number] = Session(number, link, ack_mode)
        accept(link, request, {"JMQSessionID": number})

    def _destroy_session(self, link: Connection, request: Request) -> None:
        session = session_of(link, request)
        del link.sessions[session.id]
        self._end_session(link, session)
        accept(link, request)

    def _start(self, link: Connection, request: Request) -> None:
        if "JMQSessionID" in request.properties:
            session_of(link, request).is_stopped = False
        else:
            link.is_started = True
        accept(link, request)
        self.router.feed_all(link)

    def _stop(self, link: Connection, request: Request) -> None:
        if "JMQSessionID" in request.properties:
            session_of(link, request).is_stopped = True
        else:
            link.is_started = False
        accept(link, request)

    def _end_session(self, link: Connection, session: Session | None) -> None:
        """End a session, or all of a connection: what it holds is delivered again."""
        consumers = list(link.consumers_of(session))
        # All are closed first, or one would get what another one gives back.
        for consumer in consumers:
            self._parts.close(consumer)
            consumer.session.is_over = True
        held: list[Copy] = []
        for consumer in consumers:
            held += [copy for copy in consumer.held.values() if copy.transaction is None]
            self.router.give_back(consumer.returned, seen=False)
            consumer.returned = []
            link.consumers.pop(consumer.id, None)
        self.router.give_back(held, seen=True)

    def leave(self, link: Connection) -> None:
        """Take note that a connection has ended."""
        for consumer in link.consumers_of(None):
            self._parts.close(consumer)
        self.transactions.leave(link)
        self._end_session(link, None)
        for producer in link.producers.values():
            stop_waiting(producer)
        for destination in link.temporary.values():
            self._parts.remove(destination)
        self._free_client_id(link)
        link.sessions.clear()
        link.producers.clear()
        link.temporary.clear()

    def _generate_ids(self, link: Connection, request: Request) -> None:
        quantity = min(max(request.get("JMQQuantity", int, 1), 1), _MAX_UIDS)
        body = b"".join(self.next_id().to_bytes(8, "big") for _ in range(quantity))
        accept(link, request, {"JMQQuantity": quantity}, body)
