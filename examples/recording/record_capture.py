"""Record the example capture: two real brokers, their clients, and dumpcap on the loopback.

usage: python -m examples.recording.record_capture --mq-home DIR [--out examples] [--seconds 65]

It plays the scenarios of `record` and `record_mqtt` at the same time, and needs what they need, and
dumpcap, with the right to capture. The brokers listen on their default ports: the port mapper of
Open MQ on 7676, mosquitto on 1883. The clients connect through taps, and the traffic between taps
and brokers is captured, so that each connection is in the capture once. One client connects without
a tap, as usual: it gets the port of the service from the port mapper.

Written are the capture, traffic.pcap; the messages that the clients sent and received,
traffic_clients.jsonl; and size and hash of the bytes that each tap forwarded, traffic_taps.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import tempfile
from pathlib import Path

from examples.recording import record, record_mqtt
from examples.recording.tap import LOOPBACK, running

MAPPER_PORT = 7676
MQTT_PORT = 1883
MAPPER_CLIENT = "warehouse"
"""The client that uses the port mapper, without a tap."""
QUIET_S = 2
"""Pause after which the last captured packets are in the file."""


async def capture(mq_home: Path, java_home: Path, work: Path, out: Path, seconds: int) -> None:
    """Play both scenarios once; the files of taps and clients are left in `work`."""
    mosquitto = record_mqtt.running_broker(record_mqtt.MOSQUITTO, work, MQTT_PORT)
    open_mq = record.running_broker(mq_home, java_home, work, MAPPER_PORT)
    async with mosquitto, open_mq as jms_port:
        addresses = await record.tapped(jms_port, work)
        addresses[MAPPER_CLIENT] = f"mq://{LOOPBACK}:{MAPPER_PORT}/jms"
        ports = await record_mqtt.tapped(MQTT_PORT, work)
        brokers = " or ".join(f"tcp port {port}" for port in (MAPPER_PORT, jms_port, MQTT_PORT))
        with (
            (work / "jms.jsonl").open("wb") as log,
            (work / "mqtt.jsonl").open("w", encoding="utf-8") as mqtt_log,
        ):
            # -P: the classic format, which does not describe the machine.
            command = ("dumpcap", "-P", "-i", "lo", "-f", brokers, "-w", out)
            async with running(*command, ready=b"File: "):
                await asyncio.gather(
                    record.play(mq_home, java_home, seconds, addresses, log),
                    record_mqtt.play(ports, mqtt_log),
                )
                await asyncio.sleep(QUIET_S)
    out.chmod(0o644)  # dumpcap makes it readable for its user only


def tapped_bytes(work: Path) -> list[dict[str, str | int]]:
    """Return an entry for each direction of each tapped connection."""
    entries: list[dict[str, str | int]] = []
    for suffix in ("jmq", "mqtt"):
        for path in sorted(work.glob(f"*.{suffix}")):
            data = path.read_bytes()
            name, _, direction = path.stem.rpartition("-")
            entries.append({
                "connection": name,
                "direction": direction,
                "format": suffix,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            })  # fmt: skip
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=record.HERE.parent)
    parser.add_argument("--seconds", type=int, default=65)
    arguments = parser.parse_args()
    out: Path = arguments.out
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        asyncio.run(
            capture(
                arguments.mq_home.resolve(),
                record.installed_java(),
                work,
                out / "traffic.pcap",
                arguments.seconds,
            )
        )
        logs = (work / "jms.jsonl").read_text("utf-8"), (work / "mqtt.jsonl").read_text("utf-8")
        (out / "traffic_clients.jsonl").write_text("".join(logs), "utf-8")
        lines = "".join(json.dumps(one) + "\n" for one in tapped_bytes(work))
        (out / "traffic_taps.jsonl").write_text(lines, "utf-8")
    for path in sorted(out.glob("traffic*.*")):
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
