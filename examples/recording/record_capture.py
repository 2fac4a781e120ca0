"""Record the example capture: two real brokers, their clients, and dumpcap on the loopback.

usage: python -m examples.recording.record_capture --mq-home DIR [--out examples] [--seconds 65]

It plays the scenarios of `record` and `record_mqtt` at the same time, and needs what they need, and
dumpcap, with the right to capture. The brokers listen where they do out of the box: the port mapper
of Open MQ on 7676, mosquitto on 1883. The clients connect through taps, and what is captured is the
way from there to the brokers, so that each connection is in it once. One client goes the way that
clients go by themselves: it asks the port mapper where the service is, and connects to that.

Written are the capture, traffic.pcap; what the clients say that they sent and received,
traffic_clients.jsonl; and what the taps passed on, traffic_taps.jsonl.
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
BY_MAPPER = "warehouse"
"""Who asks the port mapper; no tap sees what it says."""
QUIET_S = 2
"""What the kernel has seen is in the file by then."""


async def capture(mq_home: Path, java_home: Path, work: Path, out: Path, seconds: int) -> None:
    """Play both scenarios once; what taps and clients tell stays in `work`."""
    mosquitto = record_mqtt.running_broker(record_mqtt.MOSQUITTO, work, MQTT_PORT)
    open_mq = record.running_broker(mq_home, java_home, work, MAPPER_PORT)
    async with mosquitto, open_mq as jms_port:
        addresses = await record.tapped(jms_port, work)
        addresses[BY_MAPPER] = f"mq://{LOOPBACK}:{MAPPER_PORT}/jms"
        ports = await record_mqtt.tapped(MQTT_PORT, work)
        brokers = " or ".join(f"tcp port {port}" for port in (MAPPER_PORT, jms_port, MQTT_PORT))
        with (
            (work / "jms.jsonl").open("wb") as told,
            (work / "mqtt.jsonl").open("w", encoding="utf-8") as told_mqtt,
        ):
            # -P: the classic format, which does not tell what machine this is.
            command = ("dumpcap", "-P", "-i", "lo", "-f", brokers, "-w", out)
            async with running(*command, ready=b"File: "):
                await asyncio.gather(
                    record.play(mq_home, java_home, seconds, addresses, told),
                    record_mqtt.play(ports, told_mqtt),
                )
                await asyncio.sleep(QUIET_S)
    out.chmod(0o644)  # dumpcap lets nobody else read it


def passed_on(work: Path) -> list[dict[str, str | int]]:
    """Return of each direction of each tapped connection what it was."""
    found: list[dict[str, str | int]] = []
    for suffix in ("jmq", "mqtt"):
        for path in sorted(work.glob(f"*.{suffix}")):
            data = path.read_bytes()
            name, _, direction = path.stem.rpartition("-")
            found.append({
                "connection": name,
                "direction": direction,
                "format": suffix,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            })  # fmt: skip
    return found


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
        told = (work / "jms.jsonl").read_text("utf-8"), (work / "mqtt.jsonl").read_text("utf-8")
        (out / "traffic_clients.jsonl").write_text("".join(told), "utf-8")
        lines = "".join(json.dumps(one) + "\n" for one in passed_on(work))
        (out / "traffic_taps.jsonl").write_text(lines, "utf-8")
    for path in sorted(out.glob("traffic*.*")):
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
