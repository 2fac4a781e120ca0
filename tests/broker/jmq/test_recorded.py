"""What passes the broker, judged by wireyard's own reading of the recording."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.broker.jmq.talk import TOPIC, Broker, Peer, blocks, joined
from tests.broker.wires import rows_of
from wireyard import jmq
from wireyard.answers import Tables, open_tables
from wireyard.broker.recording import Recording

CONVERSATIONS = 12
STEPS = 60


class Client:
    """A client with a producer and a consumer, which acts at random within the rules."""

    def __init__(self, broker: Broker, recordings: Sequence[Recording], port: int) -> None:
        ends = ("127.0.0.1", port), ("127.0.0.1", 7676)
        self.tapes = [recording.open(*ends) for recording in recordings]
        self.broker = broker
        self.peer: Peer = joined(broker, tap=self.tapes[0].write, wire=self.tapes[1].write)
        self.ack_mode = [2, 1, None][port % 3]
        self.session = self.peer.session(self.ack_mode)
        self.producers = [self.peer.producer("q"), self.peer.producer("a.b", TOPIC)]
        self.consumers = [
            self.peer.consumer(self.session, "q", Size=7),
            self.peer.consumer(self.session, "a.*", TOPIC, Size=5),
        ]
        self.transaction: int | None = None
        self.held: list[jmq.Packet] = []

    def begin(self) -> int | None:
        if self.ack_mode is None and self.transaction is None:
            self.transaction = int(self.peer.ask("START_TRANSACTION")["JMQTransactionID"])
        return self.transaction

    def step(self, rng: random.Random) -> None:
        peer = self.peer
        self.read()
        match rng.randrange(6):
            case 0 | 1:
                kind = rng.randrange(2)
                name, flags = (("q", "QPA"), ("a.b", "PA"))[kind]
                peer.send(
                    self.producers[kind], "x" * rng.randrange(50), destination=name,
                    bit_flags=flags, transaction_id=self.begin(), priority=rng.randrange(10),
                )  # fmt: skip
            case 2 | 3 if self.held:
                number = self.begin()
                taken, self.held = self.held[:3], self.held[3:]
                assert peer.acknowledge(*taken, transaction=number) == 200
            case 4 if self.transaction is not None:
                asked = {"JMQTransactionID": self.transaction}
                assert peer.ask("COMMIT_TRANSACTION", asked)["JMQStatus"] == 200
                self.transaction = None
            case 5 if self.held and self.transaction is None:
                peer.ask("STOP", {"JMQSessionID": self.session})
                self.read()
                seen = rng.random() < 0.5
                peer.tell("REDELIVER", {"JMQSetRedelivered": seen}, body=blocks(self.held))
                self.held.clear()
                peer.tell("START", {"JMQSessionID": self.session})
        self.read()

    def read(self) -> None:
        for message in self.peer.messages():
            self.held.append(message)
            if "C" in message.flags:
                resumed = {"JMQConsumerID": message.consumer_id, "JMQSize": 3}
                self.peer.tell("RESUME_FLOW", resumed)

    def end(self) -> None:
        self.read()
        self.peer.ask("GOODBYE")
        self.peer.received()
        for tape in self.tapes:
            tape.close(by_client=True)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tables, Tables]]:
    """The tables of random conversations of several clients with one broker.

    First those of what the endpoints show for a record, then those of the bytes of their sockets.
    """
    files = io.BytesIO(), io.BytesIO()
    moment = itertools.count(1_000_000_000_000_000, 100_000)
    now_ns = next(moment)
    recordings = [Recording(file, lambda: now_ns) for file in files]
    for seed in range(CONVERSATIONS):
        rng, broker = random.Random(seed), Broker()
        clients = [Client(broker, recordings, 1000 + 10 * seed + place) for place in range(3)]
        for _ in range(STEPS):
            now_ns = next(moment)
            rng.choice(clients).step(rng)
        for client in clients:
            client.end()
    paths = [tmp_path_factory.mktemp("recorded") / f"{name}.pcapng" for name in ("own", "wires")]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file.getvalue())
    with open_tables([str(paths[0])]) as own, open_tables([str(paths[1])]) as wires:
        yield own, wires


@pytest.fixture(scope="module")
def tables(both: tuple[Tables, Tables]) -> Tables:
    return both[0]


@pytest.mark.parametrize(
    "table", ["deliveries", "sessions", "transactions", "violations", "messages"]
)
def test_what_the_endpoints_show_tells_what_the_sockets_do(
    both: tuple[Tables, Tables], table: str
) -> None:
    own, others = (rows_of(tables, table) for tables in both)
    assert own == others
    assert table == "violations" or len(own) > CONVERSATIONS


def test_the_recording_has_every_packet_whole(tables: Tables) -> None:
    found = tables.sql("SELECT count(*) AS n, count(error) AS bad FROM packets_jmq")
    assert found["n"][0].as_py() > 100 * CONVERSATIONS
    assert found["bad"][0].as_py() == 0
    assert tables.sql("SELECT * FROM quarantine").num_rows == 0


def test_nobody_breaks_a_rule(tables: Tables) -> None:
    assert tables.sql("SELECT rule, text, frame FROM violations").to_pylist() == []


def test_what_a_delivery_came_to_is_what_the_broker_did(tables: Tables) -> None:
    found = tables.sql("SELECT outcome, count(*) AS n FROM deliveries GROUP BY 1").to_pylist()
    counts = {row["outcome"]: row["n"] for row in found}
    assert counts["acknowledged"] > 10 * CONVERSATIONS and counts["committed"] > CONVERSATIONS
