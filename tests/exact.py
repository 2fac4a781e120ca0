"""Bytes that come back the same: ``python -m tests.exact``.

Well-formed packets, made byte by byte from the grammars, go through every pair of reading and
writing: as Python objects, as rows, as Arrow columns, through ``decode | encode``, and for JMQ and
GPacket through ``convert`` and back. A case is a stream of packets, made from one number.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType

from click.testing import CliRunner

from tests.formats.gpacket.grammar import random_gpacket
from tests.formats.jmq.grammar import random_jmq
from tests.formats.mqtt.grammar import random_mqtt
from tests.formats.rmp.make import framed
from tests.formats.rmp.make import random_packet as random_rmp
from tests.readings import frames_of, table_of
from wireyard.cli import main as wireyard
from wireyard.errors import EncodeError
from wireyard.formats import get_format
from wireyard.formats.base import Format
from wireyard.layers.port import to_jmq
from wireyard.streams.write import encode_batches, encode_rows

__all__ = ["GRAMMARS", "check_case"]


def _framed_rmp(rng: Random, *, list_order: bool = False) -> bytes:
    return framed(random_rmp(rng, list_order=list_order))


GRAMMARS: Mapping[str, tuple[str, Callable[[Random], bytes]]] = MappingProxyType(
    {
        "JMQ 103": ("jmq", partial(random_jmq, version=103)),
        "JMQ 200": ("jmq", partial(random_jmq, version=200)),
        "JMQ 301": ("jmq", partial(random_jmq, version=301)),
        "JMQ, short objects": (
            "jmq/short-object",
            partial(random_jmq, version=301, short_objects=True),
        ),
        "JMQ, time stamps": ("jmq/timestamps", partial(random_jmq, version=301, stamped=True)),
        "GPacket": ("gpacket", random_gpacket),
        "GPacket, short objects": (
            "gpacket/short-object",
            partial(random_gpacket, short_objects=True),
        ),
        "MQTT": ("mqtt", partial(random_mqtt, version=0)),
        "MQTT 3.1": ("mqtt/3.1", partial(random_mqtt, version=3)),
        "MQTT 3.1.1": ("mqtt/3.1.1", partial(random_mqtt, version=4)),
        "MQTT 5.0": ("mqtt/5.0", partial(random_mqtt, version=5)),
        "MQIpdp": ("mqtt/mqipdp", partial(random_mqtt, version=2)),
        "MQIpdp, msb": ("mqtt/mqipdp-msb", partial(random_mqtt, version=2, msb_first=True)),
        "RMP": ("rmp", random_rmp),
        "RMP, list order": ("rmp/list-order", partial(random_rmp, list_order=True)),
        "RMP, framed": ("rmp/framed", _framed_rmp),
        "RMP, framed, list order": (
            "rmp/framed-list-order",
            partial(_framed_rmp, list_order=True),
        ),
    }
)
"""The label that packets of a grammar are read by, and what makes one."""
_ONE_PACKET = ("rmp", "rmp/list-order")
"""Under these a stream is one packet."""
_ONE_PACKET_STREAMS = 20
"""How many of them go through columns and commands: a scan costs as much as a thousand packets."""
_COMMANDS_EVERY = 10
"""Of so many cases one goes through the commands, which take three times as long as all else."""


def check_case(name: str, seed: int, packets: int, commands: bool = True) -> None:
    """Assert that packets of a grammar come back in every way; with or without the commands."""
    label, make = GRAMMARS[name]
    rng = Random(f"{name} {seed}")
    made = [make(rng) for _ in range(packets)]
    format = get_format(label)
    if label not in _ONE_PACKET:
        made = [b"".join(made)]
    assert sum(_check_objects(data, format) for data in made) >= packets
    for data in made[:_ONE_PACKET_STREAMS]:
        _check_columns(data, format)
        if commands:
            _check_commands(data, format)


def _check_objects(data: bytes, format: Format) -> int:
    """Check every packet as an object, and all as rows; return how many rows there are."""
    rows = []
    for frame in frames_of(data, format):
        view = data[frame.start : frame.stop]
        row, error = format.read_row(view, frame.context)
        assert frame.status == "ok" and error is None, (format.label, view.hex(), error)
        packet = format.decode(view, frame.context)
        assert format.encode(packet) == view, (format.label, view.hex())
        rows.append(row)
    again = b"".join(encode_rows(rows, format))
    assert again == data, (format.label, _first_difference(data, again, format))
    return len(rows)


def _check_columns(data: bytes, format: Format) -> None:
    table = table_of(data, compiled=True, format=format)
    assert set(table["status"].to_pylist()) == {"ok"}
    [batch] = table.to_batches()
    again = b"".join(encode_batches([batch], format))
    assert again == data, (format.label, _first_difference(data, again, format))


def _check_commands(data: bytes, format: Format) -> None:
    lines = _run(data, "decode", "-", "--format", format.label, "--secrets", "--out", "jsonl")
    again = _run(lines, "encode")
    assert again == data, (format.label, _first_difference(data, again, format))
    if format.name == "jmq":
        there = _run(data, "convert", "--format", format.label)
        back = _run(there, "convert", "--format", "gpacket")
        assert back == data, (format.label, _first_difference(data, back, format))
        assert _run(back, "convert", "--format", format.label) == there
    if format.name == "gpacket":
        for frame in frames_of(data, format):
            _check_refused(data[frame.start : frame.stop], format)


def _check_refused(data: bytes, format: Format) -> None:
    """Assert that a GPacket which was not ported is not taken for one that was."""
    try:
        to_jmq(format.decode(data, format.context))
    except EncodeError:
        return
    raise AssertionError(data.hex())


def _run(data: bytes, *words: str) -> bytes:
    result = CliRunner().invoke(wireyard, [*words], input=data, catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, ""), (words, result.stderr[:500])
    return result.stdout_bytes


def _first_difference(data: bytes, again: bytes, format: Format) -> str:
    for frame in frames_of(data, format):
        if data[frame.start : frame.stop] != again[frame.start : frame.stop]:
            was, now = data[frame.start : frame.stop], again[frame.start : frame.stop]
            return f"frame at {frame.start}: {was.hex()} came back as {now.hex()}"
    return "bytes at the end"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check packets of the grammars by turns; print how many, and the seed of a case that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.exact", description=__doc__)
    parser.add_argument("--grammar", choices=GRAMMARS, action="append", help="all if not given")
    parser.add_argument("--packets", type=int, default=100_000, help="of each grammar")
    parser.add_argument("--case", type=int, default=1000, help="packets of a case")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each grammar")
    given = parser.parse_args(arguments)
    names = given.grammar or [*GRAMMARS]
    last = given.seed + -(-given.packets // given.case)
    began = time.monotonic()
    for seed in range(given.seed, last):
        for name in names:
            try:
                check_case(name, seed, given.case, seed % _COMMANDS_EVERY == 0)
            except BaseException:
                print(f"fails: --grammar '{name}' --seed {seed} --case {given.case}", flush=True)
                raise
        if seed + 1 == last or seed % _COMMANDS_EVERY == 0:
            done = (seed + 1 - given.seed) * given.case
            seconds = time.monotonic() - began
            print(f"{done} packets of each grammar, {seconds:.0f} s", flush=True)
    print(f"seeds {given.seed} to {last - 1} of {', '.join(names)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
