"""``wireyard why`` of JMS conversations that people misread: what is true, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.answers.jms_talks import write_capture
from tests.answers.test_why import findings
from tests.captures.make import QUIET, go_on
from tests.layers.jmq.make import Talk
from wireyard.answers import open_tables
from wireyard.answers.latencies import measure_latencies
from wireyard.formats.base import Row
from wireyard.layers.jmq.waiting import COVERS

QUEUE: dict[str, Any] = {"JMQDestination": "q", "JMQDestType": 1}
TOPIC: dict[str, Any] = {"JMQDestination": "t", "JMQDestType": 2}
DURABLE: dict[str, Any] = {"JMQDurableName": "night"}
OTHER = ("10.0.0.8", 50008)


def producer(**values: Any) -> Talk:
    return Talk(**values).login()


def send(talk: Talk, count: int = 1, **values: Any) -> list[Row]:
    """Send messages to a queue, which the broker accepts."""
    wanted = {"flags": "Q", "destination": "q", **values}
    return [talk.request("TEXT_MESSAGE", reply="SEND_REPLY", **wanted) for _ in range(count)]


def consumer(talk: Talk, number: int = 7, **values: Any) -> Talk:
    """Log a consumer of the queue in, after what `talk` has done."""
    other = Talk(client=OTHER, now_ms=talk.now_ms).login()
    other.consumer(number, **{**QUEUE, **values})
    other.tell("START")
    return other


def close(talk: Talk, number: int = 7) -> None:
    talk.request("DELETE_CONSUMER", JMQConsumerID=number)


def wait(*talks: Talk, ms: int = 3_000) -> None:
    """Let time pass; whoever is there says so."""
    now = max(talk.now_ms for talk in talks) + ms
    for talk in talks:
        talk.now_ms = now
        talk.request("PING")


def found(path: Path, *talks: Talk, **how: Any) -> dict[str, int]:
    """Return the findings of a capture: how many of each symptom."""
    return {one["symptom"]: one["count"] for one in findings(write_capture(path, *talks, **how))}


def waiting(path: Path) -> dict[str, int]:
    """Return what `wireyard slow` shows as waiting, by state."""
    with open_tables([str(path)]) as tables:
        return {row["state"]: row["messages"] for row in measure_latencies(tables).waiting}


def test_a_reply_dies_with_its_temporary_queue(tmp_path: Path) -> None:
    talk = producer()
    name = "temporary_destination://queue/10.0.0.8/50008/1"
    asker = Talk(client=OTHER, now_ms=talk.now_ms).login()
    asker.request("CREATE_DESTINATION", JMQDestination=name, JMQDestType=17)
    talk.now_ms = asker.now_ms
    (reply,) = send(talk, destination=name)
    asker.now_ms = talk.now_ms
    asker.goodbye()
    wait(talk)
    path = write_capture(tmp_path / "a", talk, asker, ended=[asker], last_ms=asker.now_ms)
    (one,) = findings(path)
    assert (one["symptom"], one["severity"], one["client"]) == (
        "died_with_queue", "lost", "10.0.0.8:50008",
    )  # fmt: skip
    assert reply["destination"] == one["destination"]


@pytest.mark.parametrize("how", ["12", "32", "30", "refused", "other", "before"])
def test_what_an_administrator_emptied_does_not_wait(tmp_path: Path, how: str) -> None:
    talk = producer()
    admin = Talk(client=OTHER, broker=("10.0.0.1", 7678)).login()
    back = "temporary_destination://queue/10.0.0.8/50008/1"
    admin.consumer(9, JMQDestination=back, JMQDestType=17)
    first, last = (admin, talk) if how == "before" else (talk, admin)
    for one in (first, last):
        if one is talk:
            send(talk, 4)
        else:
            admin.tell(
                "OBJECT_MESSAGE", destination="__JMQAdmin", reply_to=back, flags="Q",
                JMQMessageType=int(how) if how.isdigit() else 32, JMQDestType=1,
                JMQDestination="other" if how == "other" else "q",
            )  # fmt: skip
            reply = Talk(client=("10.0.0.1", 7678)).send(destination=back)
            answer = admin.deliver(reply, 9)
            status = 500 if how == "refused" else 200
            answer["properties"] = {"JMQStatus": ("integer", status)}
            admin.acknowledge(answer)
        last.now_ms = max(first.now_ms, last.now_ms)
    wait(talk, admin)
    known = "purged" if how in ("12", "32") else "no_consumer"
    assert found(tmp_path / "a", talk, admin) == {known: 4}
    assert waiting(tmp_path / "a") == ({} if known == "purged" else {"no consumer": 4})


def test_a_message_that_nobody_accepted_waits_nowhere(tmp_path: Path) -> None:
    talk = producer()
    talk.ask("TEXT_MESSAGE", flags="Q", destination="q")
    assert found(tmp_path / "a", talk, ended=[talk], last_ms=20_000) == {
        "unaccepted": 1, "dropped": 1,
    }  # fmt: skip
    assert waiting(tmp_path / "a") == {}


def test_the_end_of_a_killed_client_is_its_fin(tmp_path: Path) -> None:
    talk = producer()
    send(talk, 5)
    path = tmp_path / "a"
    assert found(path, talk, ended=[talk], last_ms=9_000) == {"no_consumer": 5, "dropped": 1}
    with open_tables([str(path)]) as tables:
        (row,) = tables.sql("SELECT closed_ns - opened_ns AS ns FROM sessions").to_pylist()
    assert row["ns"] == (9_000 - talk.rows[0]["timestamp"]) * 1_000_000


@pytest.mark.parametrize("frame", QUIET)
def test_a_message_is_unaccepted_until_the_last_frame(tmp_path: Path, frame: str) -> None:
    talk = producer()
    talk.ask("TEXT_MESSAGE", flags="Q", destination="q")
    assert found(tmp_path / "a", talk) == {}
    (one,) = findings(go_on(tmp_path / "a", 10, QUIET[frame]))
    assert one["symptom"] == "unaccepted"


def test_a_delayed_message_is_late_for_nobody(tmp_path: Path) -> None:
    talk = producer()
    reader = consumer(talk)
    talk.now_ms = reader.now_ms
    for _ in range(3):
        send(talk, delivery_time=1_700_000_060_000)
    wait(talk, reader)
    assert found(tmp_path / "a", talk, reader) == {}
    assert waiting(tmp_path / "a") == {"delayed until 2023-11-14T22:14:20Z": 3}


def test_a_delayed_message_of_a_topic_waits_for_its_subscribers(tmp_path: Path) -> None:
    scene = Scene()
    scene.join(**TOPIC)
    scene.send(flags="", destination="t", delivery_time=1_700_000_060_000)
    wait(*scene.talks)
    assert found(tmp_path / "a", *scene.talks) == {}
    assert waiting(tmp_path / "a") == {"delayed until 2023-11-14T22:14:20Z": 3}


@pytest.mark.parametrize(
    ("room", "known"), [(False, {"slow_consumer": 3}), (True, {"kept_back": 3})]
)
def test_a_message_that_waits_for_a_consumer_with_room_makes_nobody_slow(
    tmp_path: Path, room: bool, known: dict[str, int]
) -> None:
    scene = Scene()
    scene.join()
    for _ in range(2):
        scene.send(count=1)
        scene.take(1)
    scene.send()
    wait(*scene.talks)
    if not room:
        scene.on(1).tell("RESUME_FLOW", JMQConsumerID=1)
    scene.take(1)
    assert found(tmp_path / "a", *scene.talks) == known


@pytest.mark.parametrize("ended", [True, False])
def test_an_heir_is_neither_slow_nor_is_anything_stuck(tmp_path: Path, ended: bool) -> None:
    talk = producer()
    reader = consumer(talk)
    heir = Talk(client=("10.0.0.6", 50006), now_ms=reader.now_ms).login()
    heir.consumer(8, **QUEUE)
    talk.now_ms = heir.now_ms
    messages = send(talk, 6)
    reader.now_ms = heir.now_ms = talk.now_ms
    heir.acknowledge(heir.deliver(messages[0], 8))
    for message in messages[1:]:
        reader.deliver(message, 7)
    if not ended:
        close(reader)
        reader.packet("GOODBYE", False)
    at = max(reader.now_ms, heir.now_ms) + 5_000
    heir.now_ms = at
    for message in messages[1:]:
        heir.acknowledge(heir.deliver(message, 8))
    named = found(tmp_path / "a", talk, reader, heir, ended=[reader], last_ms=at)
    assert named == ({"dropped": 1} if ended else {})


@pytest.mark.parametrize("is_lost", [True, False])
def test_who_may_not_have_been_the_first_is_not_slow(tmp_path: Path, is_lost: bool) -> None:
    talk = producer()
    first = consumer(talk)
    heir = Talk(client=("10.0.0.6", 50006), now_ms=first.now_ms).login()
    heir.consumer(8, **QUEUE)
    talk.now_ms = first.now_ms = heir.now_ms
    for message in send(talk, 6):
        row = first.deliver(message, 7)
        row["status"] = "gap" if is_lost else "ok"
        heir.now_ms = max(heir.now_ms, talk.now_ms) + 5_000
        heir.acknowledge(heir.deliver(message, 8))
    close(first)
    assert found(tmp_path / "a", talk, first, heir).keys() == (
        {"capture_gap"} if is_lost else set()
    )


@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_message_may_have_gone_to_another_consumer(
    tmp_path: Path, is_lost: bool, is_ended: bool
) -> None:
    talk = producer()
    first = consumer(talk)
    heir = Talk(client=("10.0.0.6", 50006), now_ms=first.now_ms).login()
    heir.consumer(8, **QUEUE)
    talk.now_ms = heir.now_ms
    (message,) = send(talk)
    first.now_ms = heir.now_ms = talk.now_ms
    first.deliver(message, 7)
    heir.now_ms += 5_000
    heir.request("PING")["status"] = "gap" if is_lost else "ok"
    heir.request("PING")
    wait(talk, heir)
    named = found(
        tmp_path / "a", talk, first, heir, ended=[first] if is_ended else [], last_ms=3_000
    )
    stuck = "never_acknowledged" if is_ended else "unacknowledged"
    known = {"capture_gap"} if is_lost else {stuck}
    assert named.keys() == (known | {"dropped"} if is_ended else known)


def test_a_reader_of_the_dead_message_queue_is_not_slow(tmp_path: Path) -> None:
    talk = producer()
    messages = send(talk, 6)
    reader = consumer(talk, **{**QUEUE, "JMQDestination": "mq.sys.dmq"})
    busy = Talk(client=("10.0.0.6", 50006), now_ms=reader.now_ms).login()
    busy.consumer(8, **QUEUE)
    reader.now_ms = busy.now_ms + 5_000
    for message in messages:
        row = reader.deliver(message, 7)
        row["properties"] = {"JMS_SUN_DMQ_UNDELIVERED_REASON": "EXPIRED"}
        reader.acknowledge(row)
    assert found(tmp_path / "a", talk, reader, busy) == {"dead_messages": 6}


def test_a_request_that_others_overtook_is_named(tmp_path: Path) -> None:
    talk = producer()
    talk.ask("PING")
    talk.request("of no name")
    assert found(tmp_path / "a", talk, ended=[talk], last_ms=talk.now_ms) == {
        "request_unanswered": 1, "dropped": 1,
    }  # fmt: skip


@pytest.mark.parametrize("by_broker", [True, False])
def test_the_side_that_refuses_is_named(tmp_path: Path, by_broker: bool) -> None:
    talk = producer()
    for up in (not by_broker, by_broker):
        values: dict[str, Any] = {} if up is not by_broker else {"JMQStatus": 501}
        talk.packet("of no name", up, flags="" if values else "A", consumer_id=77, **values)
    (one,) = findings(write_capture(tmp_path / "a", talk))
    refuser = "client" if by_broker else "broker"
    assert one["text"] == f"99 refused by the {refuser} (1 time), with status 501 (not implemented)"
    assert one["client"] == "10.0.0.9:50000"


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_a_side_that_is_missing_accuses_nobody(tmp_path: Path, which: int, up: bool) -> None:
    talk = producer()
    reader = consumer(talk)
    talk.now_ms = reader.now_ms
    messages = send(talk, 4)
    reader.now_ms = talk.now_ms
    for message in messages:
        reader.acknowledge(reader.deliver(message, 7, "FC"))
        reader.tell("RESUME_FLOW")
        reader.tell("RESUME_FLOW", JMQConsumerID=7)
    wait(talk, reader)
    for one in (talk, reader):
        one.goodbye()
    lost = (talk, reader)[which].stream(up)
    path = write_capture(
        tmp_path / "a", talk, reader, ended=[talk, reader], last_ms=9_000, lost=lost
    )
    assert findings(path) == []


# --- sisters --------------------------------------------------------------------------------


class Scene:
    """A producer, client 0, and consumers, whose numbers are their places; all by one clock."""

    def __init__(self) -> None:
        self.talks = [Talk().login()]
        self.sent: list[Row] = []

    def on(self, which: int) -> Talk:
        talk = self.talks[which]
        talk.now_ms = max(one.now_ms for one in self.talks)
        return talk

    def join(self, client_id: str | None = None, **values: Any) -> None:
        number = len(self.talks)
        self.talks.append(Talk(client=(f"10.0.1.{number}", 50000 + number)))
        self.on(number).login()
        if client_id is not None:
            self.talks[number].request("SET_CLIENTID", JMQClientID=client_id)
        self.talks[number].consumer(number, **{**QUEUE, **values})
        self.talks[number].tell("START")

    def send(self, by: int = 0, count: int = 3, **values: Any) -> None:
        self.sent = send(self.on(by), count, **values)

    def hold(self, by: int, **values: Any) -> list[Row]:
        reader = self.on(by)
        return [reader.deliver(message, by, **values) for message in self.sent]

    def take(self, by: int, **values: Any) -> None:
        for row in self.hold(by):
            self.talks[by].acknowledge(row, **values)

    def close(self, by: int) -> None:
        close(self.on(by), by)

    def destroy(self, by: int) -> None:
        self.on(by).request("DESTROY_SESSION", JMQSessionID=70)

    def ping(self, by: int) -> None:
        self.on(by).packet("PING", False, flags="A", consumer_id=55)

    def lose(self, by: int) -> None:
        """Let a packet of the broker be missing, behind which others come."""
        self.on(by).reply("INFO")["status"] = "gap"
        self.on(by).request("PING")

    def begin(self) -> None:
        self.on(0).request("START_TRANSACTION", re_JMQTransactionID=9)

    def over(self, how: str, reply: str = "") -> None:
        self.on(0).request(f"{how}_TRANSACTION", reply=reply, JMQTransactionID=9)

    def unsubscribe(self) -> None:
        self.on(0).request("DELETE_CONSUMER", **DURABLE)


Step = tuple[str, dict[str, Any]]
SELECTS = {"JMQSelector": "size > 2"}
ON_TOPIC = {"flags": "", "destination": "t"}
JOIN: Step = ("join", {})
SEND: Step = ("send", {})
BEGIN: Step = ("begin", {})
JOIN_TOPIC, SEND_TOPIC = ("join", TOPIC | SELECTS), ("send", ON_TOPIC)
IN_TRANSACTION = ("send", {"transaction_id": 9})
COMMIT, ROLL_BACK = (
    ("over", {"how": "COMMIT"}),
    ("over", {"how": "ROLLBACK", "reply": "ROLLBACK_REPLY"}),
)
CLOSE, HOLD, TAKE, LOSE, DESTROY, PING = (
    (name, {"by": 1}) for name in ("close", "hold", "take", "lose", "destroy", "ping")
)
NIGHT = TOPIC | DURABLE
SISTERS: dict[str, tuple[list[Step], dict[str, int]]] = {
    "who consumed once and left does not consume": (
        [JOIN, SEND, TAKE, CLOSE, ("send", {"count": 5})], {"no_consumer": 5},
    ),
    "what was purged is gone, and nobody is blamed": (
        [JOIN, ("send", {"count": 6}), SEND, TAKE], {"overtaken": 6},
    ),
    "a durable subscriber has unsubscribed": (
        [("join", TOPIC | DURABLE), CLOSE, SEND_TOPIC, ("unsubscribe", {})], {},
    ),
    "a selector matches nothing": ([("join", SELECTS), SEND], {"selector_matches_nothing": 3}),
    "nothing of a topic": ([JOIN_TOPIC, SEND_TOPIC], {"selector_matches_nothing": 3}),
    "or deliveries are missing": ([JOIN_TOPIC, SEND_TOPIC, LOSE], {"capture_gap": 1}),
    "it has matched": ([JOIN_TOPIC, SEND_TOPIC, TAKE], {}),
    "its consumer has closed before": ([JOIN_TOPIC, CLOSE, SEND_TOPIC], {}),
    "and left a queue": ([("join", SELECTS), CLOSE, SEND], {"no_consumer": 3}),
    "it wants no messages of its own": (
        [("join", TOPIC | SELECTS | {"JMQNoLocal": True}), ("send", ON_TOPIC | {"by": 1})], {},
    ),
    "they were rolled back": (
        [JOIN_TOPIC, BEGIN, ("send", ON_TOPIC | {"transaction_id": 9}), ROLL_BACK], {},
    ),
    "nobody subscribes to a topic": ([SEND_TOPIC], {}),
    "what is not committed waits nowhere": ([BEGIN, IN_TRANSACTION], {}),
    "what is rolled back waits nowhere": ([BEGIN, IN_TRANSACTION, ROLL_BACK], {}),
    "what is committed waits": ([BEGIN, IN_TRANSACTION, COMMIT], {"no_consumer": 3}),
    "what is refused does not": ([("send", {"status": 414})], {"over_limit": 3}),
    "one durable subscriber of two is away": (
        [("join", TOPIC | DURABLE), ("join", TOPIC | {"JMQDurableName": "day"}), CLOSE, SEND_TOPIC,
         ("take", {"by": 2})],
        {"queued_away": 3},
    ),
    "one with a selector may not want it": (
        [("join", TOPIC | SELECTS | DURABLE), CLOSE, SEND_TOPIC], {},
    ),
    "its subscription has a wildcard, as has one with a selector": (
        [("join", NIGHT | {"JMQDestination": "a.*"}),
         ("join", TOPIC | SELECTS | {"JMQDestination": "**.b"}), CLOSE,
         ("send", {"flags": "", "destination": "a.b"})],
        {"queued_away": 3, "selector_matches_nothing": 3},
    ),
    "an heir takes it": ([JOIN, JOIN, SEND, HOLD, CLOSE, ("take", {"by": 2})], {}),
    "given back, and nobody takes it": ([JOIN, SEND, HOLD, CLOSE], {"no_consumer": 3}),
    "its session was destroyed": (
        [("join", {"JMQSessionID": 70}), SEND, TAKE, DESTROY, SEND], {"no_consumer": 3},
    ),
    "that of a subscription was": (
        [("join", NIGHT | {"JMQSessionID": 70}), DESTROY, SEND_TOPIC], {"queued_away": 3},
    ),
    "another client has a subscription of the same name": (
        [("join", NIGHT | {"client_id": "a"}), ("join", NIGHT | {"client_id": "b"}), CLOSE,
         SEND_TOPIC, ("take", {"by": 2})],
        {"queued_away": 3},
    ),
    "the broker had it before": ([("send", {"status": 304})], {"no_consumer": 3}),
    "a delivery without a count pauses its consumer": (
        [JOIN, ("send", {"count": 1}), ("hold", {"by": 1, "flags": "C", "count": None})],
        {"consumer_paused": 1, "unacknowledged": 1},
    ),
    "a client does not answer": ([JOIN, PING], {"request_unanswered": 1}),
    "its acknowledgement was refused": (
        [JOIN, SEND, ("take", {"by": 1, "status": 404})],
        {"request_refused": 3, "unacknowledged": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "covered"),
    [("a.*", "a.b a.cc"), ("a.**", "a a.b a.cc a.b.c"), ("a.>", "a.b a.cc a.b.c"),
     ("*.b", "a.b c.b"), ("**.b", "a.b c.b"), (">", "a a.b a.cc a.b.c c.b aXb"), ("a.b", "a.b"),
     ("a*", "")],
)  # fmt: skip
def test_topics_of_a_wildcard(topic: str, covered: str) -> None:
    names = "a a.b a.cc a.b.c c.b aXb"
    query = f"""SELECT string_agg(m.destination, ' ') FROM
      (SELECT unnest(split('{names}', ' ')) AS destination) m,
      (SELECT '{topic}' AS destination, true AS is_topic) c WHERE {COVERS.format("m")}"""
    assert duckdb.execute(query).fetchall() == [(covered or None,)]


@pytest.mark.parametrize("name", SISTERS)
def test_a_sister(tmp_path: Path, name: str) -> None:
    steps, known = SISTERS[name]
    scene = Scene()
    for step, values in steps:
        getattr(scene, step)(**values)
    wait(*scene.talks)
    assert found(tmp_path / "a", *scene.talks) == known
