"""Clients and domains: who of this process gets a message."""

from __future__ import annotations

import pytest

from tests.layers.rmp.make import ME, RING, YOU, events, layer, plain, receive, segment
from wireyard.errors import UsageError
from wireyard.layers.rmp import Delivered, Drop, MessagingLayer
from wireyard.layers.rmp.clients import Clients


def reached(at: MessagingLayer, packet: bytes, source: str = YOU) -> list[tuple[int, ...]]:
    receive(at, packet, source=source)
    return [event.destinations for event in events(at) if isinstance(event, Delivered)]


@pytest.fixture
def at() -> MessagingLayer:
    made = layer()
    clients = made.clients(RING)
    clients.register(7)
    clients.register(3, (1, 2))
    clients.register(9, (2,))
    clients.register(4, ())
    return made


@pytest.mark.parametrize(
    ("domain", "destinations"),
    [(None, (7, 3, 9, 4)), (0, (7, 3, 9, 4)), (1, (7, 3)), (2, (7, 3, 9)), (3, (7,))],
)
def test_a_message_reaches_who_is_in_its_domain(
    at: MessagingLayer, domain: int | None, destinations: tuple[int, ...]
) -> None:
    for _ in range(2):
        assert reached(at, plain(b"a", domain=domain)) == [destinations]


def test_without_clients_the_process_itself_is_the_receiver() -> None:
    assert reached(layer(), plain(b"a", domain=5)) == [()]


def test_a_message_for_nobody_here_is_counted() -> None:
    at = layer()
    at.clients(RING).register(1, (1,))
    assert reached(at, plain(b"a", domain=2)) == []
    assert at.dropped == {Drop.NO_DESTINATION: 1}


def test_own_messages_reach_their_client_unless_it_does_not_want_them() -> None:
    at = layer()
    at.clients(RING).register(1)
    at.clients(RING).register(2, own=False)
    assert reached(at, plain(b"a", client=2), ME) == [(1,)]
    assert reached(at, plain(b"a", client=1), ME) == [(1, 2)]
    assert reached(at, plain(b"a", client=2), YOU) == [(1, 2)]


def test_a_change_counts_from_the_call_on_and_for_what_waits() -> None:
    at = layer()
    at.clients(RING).register(1, (1,))
    receive(at, segment(1, 1, 2, b"a", domain=2), plain(b"b", domain=2))
    at.clients(RING).set_domains(1, (2,))
    assert reached(at, segment(1, 2, 2, b"a")) == [(1,), (1,)]
    at.clients(RING).unregister(1)
    at.clients(RING).register(2)
    assert reached(at, plain(b"b")) == [(2,)]


def test_numbers_are_unique_and_in_range() -> None:
    clients = Clients()
    clients.register(1)
    for number, domains in ((1, (0,)), (0, (0,)), (65536, (0,)), (2, (65536,))):
        with pytest.raises(UsageError):
            clients.register(number, domains)
    with pytest.raises(UsageError):
        clients.set_domains(3, ())
    with pytest.raises(UsageError):
        clients.unregister(3)
    assert 1 in clients and 2 not in clients


def test_peers_who_choose_domains_cannot_make_it_remember_them_all() -> None:
    clients = Clients()
    clients.register(1)
    for domain in range(1, 20_000):
        assert clients.destinations(domain, None) == (1,)
    assert len(clients._cache) <= 4097
