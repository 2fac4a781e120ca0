"""Who is suspected, who is counted, and that a process that was stopped counts nobody out."""

from __future__ import annotations

from tests.ring.sequencer.network import SETTINGS, Network, Process
from wireyard_ring.sequencer import Failed, Member, NewView
from wireyard_ring.sequencer.contacts import Contacts
from wireyard_ring.sequencer.frames import Beat

ANNA, BERT, CARL, DORA = (Member(place, place) for place in range(4))
VIEW = (ANNA, BERT, CARL, DORA)


def beat(echo: float) -> Beat:
    return Beat(1, int(echo * 1_000_000), 1, 1, True, 0)


def test_more_than_half_decides_and_of_half_that_which_has_the_first() -> None:
    at = Contacts(1.0)
    assert at.may_decide(VIEW, (BERT, CARL, DORA))
    assert at.may_decide(VIEW, (ANNA, DORA))
    assert not at.may_decide(VIEW, (BERT, CARL))
    assert not at.may_decide(VIEW, (ANNA,))
    assert not at.may_decide(VIEW[:2], (BERT,))


def test_the_dead_do_not_count_if_they_could_not_have_excluded_this_process() -> None:
    at = Contacts(1.0)
    for member in (ANNA, BERT):
        at.beat(member, beat(10.0), 10.0, grant=True)
    at.died(ANNA, 10.8)
    assert at.may_decide((ANNA, CARL), (CARL,))
    at.died(BERT, 11.0)  # what it promised at 10.0 is over
    assert not at.may_decide((BERT, CARL), (CARL,))


def test_a_member_is_suspected_when_its_time_is_over_or_it_is_dead() -> None:
    at = Contacts(1.0)
    at.installed(VIEW, 10.0)
    at.beat(ANNA, beat(0.0), 10.5, grant=True)
    at.beat(BERT, beat(0.0), 10.5, grant=False)
    assert [at.suspected(member, 11.2) for member in VIEW[:2]] == [False, True]
    at.died(ANNA, 11.2)
    assert at.suspected(ANNA, 11.2)


def test_nobody_is_suspected_for_the_time_in_which_this_process_did_not_run() -> None:
    at = Contacts(1.0)
    at.installed(VIEW, 10.0)
    at.resumed(20.0)
    assert not any(at.suspected(member, 20.5) for member in VIEW)
    assert not any(at.has_lease(member, 20.5) for member in VIEW)


def test_a_member_that_is_renounced_is_promised_nothing_until_the_next_view() -> None:
    at = Contacts(1.0)
    at.installed(VIEW, 10.0)
    at.beat(ANNA, beat(0.0), 10.1, grant=True)
    assert at.echo(ANNA) == 1
    at.renounce([ANNA])
    at.beat(ANNA, beat(0.0), 10.9, grant=True)
    assert at.echo(ANNA) == 0 and at.suspected(ANNA, 11.2)
    at.installed(VIEW, 11.2)
    at.beat(ANNA, beat(0.0), 11.3, grant=True)
    assert at.echo(ANNA) == 1


# --- what follows for a ring ----------------------------------------------------------------


def ring_of(count: int) -> tuple[Network, list[Process]]:
    network = Network(count, 4)
    members = []
    for place in range(count):
        members.append(network.start(place))
        network.run(0.5)
    return network, members


def views(process: Process) -> list[int]:
    return [len(event.members) for event in process.events if isinstance(event, NewView)]


def test_of_two_either_goes_on_when_the_other_is_killed() -> None:
    for killed in (0, 1):
        network, members = ring_of(2)
        network.kill(members[killed])
        network.run(0.2)
        assert views(members[1 - killed])[-1] == 1


def test_of_two_the_first_goes_on_without_the_stopped_and_the_second_waits_for_the_first() -> None:
    network, members = ring_of(2)
    members[1].stopped = True
    network.run(2.0)
    assert views(members[0])[-1] == 1
    members[1].stopped = False
    network.run(1.0)
    assert members[1].events[-1] == Failed("the others have excluded this process")
    network, members = ring_of(2)
    members[0].stopped = True
    network.run(5.0)
    assert [views(member)[-1] for member in members] == [2, 2]
    members[1].member.send(b"waits", network.now)
    members[0].stopped = False
    network.run(2.0)
    assert [views(member)[-1] for member in members] == [2, 2]
    assert [getattr(member.events[-1], "data", None) for member in members] == [b"waits"] * 2
    members[0].stopped = True
    network.run(2 * SETTINGS.give_up_s)
    last = members[1].events[-1]
    assert isinstance(last, Failed) and "no majority without 10.0.0.1:7077" in last.reason


def test_who_was_stopped_while_all_others_went_on_and_died_does_not_go_on_alone() -> None:
    network, members = ring_of(3)
    members[2].stopped = True
    network.run(2.0)
    assert views(members[0])[-1] == 2
    for member in members[:2]:
        network.kill(member)
    members[2].stopped = False
    network.run(2 * SETTINGS.give_up_s)
    last = members[2].events[-1]
    assert isinstance(last, Failed) and views(members[2]) == [3]


def test_a_member_that_only_some_hear_is_excluded_or_heard_again() -> None:
    network, members = ring_of(3)
    network.cut.add(frozenset((0, 2)))
    network.run(8.0)
    assert {views(member)[-1] for member in members if member.alive} <= {2, 3}
    members[1].member.send(b"goes on", network.now)
    network.run(2.0)
    assert getattr(members[1].events[-1], "data", None) == b"goes on"
