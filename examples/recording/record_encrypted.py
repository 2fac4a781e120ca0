"""Record the encrypted examples: MQTT and JMS, plain, over TLS and over WebSocket.

usage: python -m examples.recording.record_encrypted --mq-home DIR --agent JAR --node-modules DIR
           [--out examples/encrypted]

It needs what `record_capture` needs, openssl, editcap, Node.js, and

- DIR/node_modules with the packages aedes, ws and mqtt-packet (npm install aedes ws mqtt-packet);
- the Java agent name.neykov:extract-tls-secrets:4.0.0, which logs the keys of Java programs.

Every client plays the same scenario, so that each connection carries the same bytes. Written are
mqtt.pcap with its key log mqtt.keys, websocket.pcap with websocket.keys, and jms.pcapng, which
contains its key log.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Only new recordings need it, so it is not among the locked packages.
import paho.mqtt.client as mqtt

from examples.recording.record import installed_java

LOOPBACK = "127.0.0.1"
HERE = Path(__file__).resolve().parent
MOSQUITTO = "/usr/sbin/mosquitto"
NAME = "broker.example"
LARGE = b"0123456789abcdef" * 1100
"""More than one TLS record, and more than the one-byte length of a WebSocket frame."""
QUIET_S = 0.1
NO_ENCRYPT_THEN_MAC = 1 << 19
"""SSL_OP_NO_ENCRYPT_THEN_MAC, which the module ssl does not define."""
PLAIN, TLS, TLS_128, TLS_CHACHA, WS, WSS, RETRY, OPENSSL = 1883, *range(8883, 8890)
MQ_PLAIN, MQ_TLS, NODE, NODE_TLS = 7677, 7678, 9001, 9443

SETTINGS = f"""
per_listener_settings false
allow_anonymous true
listener {PLAIN} {LOOPBACK}
listener {TLS} {LOOPBACK}
certfile cert.pem
keyfile key.pem
listener {TLS_128} {LOOPBACK}
certfile cert.pem
keyfile key.pem
ciphers_tls1.3 TLS_AES_128_GCM_SHA256
listener {TLS_CHACHA} {LOOPBACK}
certfile cert.pem
keyfile key.pem
ciphers_tls1.3 TLS_CHACHA20_POLY1305_SHA256
listener {WS} {LOOPBACK}
protocol websockets
listener {WSS} {LOOPBACK}
protocol websockets
certfile cert.pem
keyfile key.pem
"""
RETRY_SETTINGS = f"""
allow_anonymous true
listener {RETRY} {LOOPBACK}
certfile cert.pem
keyfile key.pem
"""
ONE_GROUP = """
openssl_conf = conf
[conf]
ssl_conf = ssl
[ssl]
system_default = all
[all]
Groups = P-256
"""
"""Makes a client that offers X25519 first send a second ClientHello."""

CONNECT = bytes.fromhex("101000044d5154540402003c00046b657973")
PUBLISH = bytes.fromhex("300800046b6579732a2a")
CONNACK = bytes.fromhex("20020000")
DISCONNECT = bytes.fromhex("e000")


@contextlib.contextmanager
def running(*command: Any, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a context."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    how = {**quiet, "start_new_session": True, **how}
    with subprocess.Popen([str(word) for word in command], **how) as process:
        try:
            time.sleep(1.5)
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended by itself")
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # a broker's script does not forward it
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()


@contextlib.contextmanager
def capturing(out: Path, ports: range | list[int], *options: str) -> Iterator[None]:
    """Capture some ports of the loopback interface."""
    wanted = " or ".join(f"tcp port {port}" for port in ports)
    with running("dumpcap", "-q", *options, "-i", "lo", "-f", wanted, "-w", out):
        yield
        time.sleep(2)
    out.chmod(0o644)


def make_certificate(work: Path) -> None:
    """Create a key and a certificate that are valid for a day."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=work,
        check=True,
        capture_output=True,
    )


class Context(ssl.SSLContext):
    """A TLS context that can resume its last session, and sends the server name."""

    last: ssl.SSLSession | None = None
    resumes = False

    def wrap_socket(self, *args: Any, **how: Any) -> ssl.SSLSocket:
        """Wrap a socket; resume the last session if `resumes`."""
        how.update(server_hostname=NAME, session=self.last if self.resumes else None)
        return super().wrap_socket(*args, **how)


def context(
    work: Path, keys: Path | None, version: str, ciphers: str = "", options: int = 0
) -> Any:
    result = Context(ssl.PROTOCOL_TLS_CLIENT)
    result.load_verify_locations(work / "cert.pem")
    result.minimum_version = result.maximum_version = getattr(ssl.TLSVersion, version)
    result.options |= options
    result.set_alpn_protocols(["mqtt"])
    if ciphers:
        result.set_ciphers(ciphers)
    if keys is not None:
        result.keylog_filename = str(keys)
    return result


def play(port: int, tls: Any = None, transport: str = "tcp", large: bool = False) -> None:
    """Play the scenario: subscribe, publish at every QoS, receive the messages, and disconnect."""
    arrived: list[mqtt.MQTTMessage] = []
    answered = threading.Event()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, "meter", protocol=mqtt.MQTTv5, transport=transport
    )
    client.on_connect = client.on_subscribe = lambda *_: answered.set()
    client.on_message = lambda _, __, message: arrived.append(message)
    if tls is not None:
        client.tls_set_context(tls)
    client.connect(LOOPBACK, port)
    client.loop_start()
    answered.wait(10)
    answered.clear()
    client.subscribe("meter/+", 2)
    answered.wait(10)
    for qos in (0, 1, 2):
        client.publish(f"meter/{qos}", f"{qos} kWh", qos).wait_for_publish(10)
        while len(arrived) <= qos:
            time.sleep(0.01)
        time.sleep(QUIET_S)
    if large:
        client.publish("large/1", LARGE, 1).wait_for_publish(10)
        time.sleep(QUIET_S)
    if tls is not None:
        tls.last = getattr(client.socket(), "session", None)
    client.disconnect()
    client.loop_stop()
    time.sleep(QUIET_S)


def play_mqtt(work: Path, keys: Path) -> None:
    """Play the scenario over every transport and cipher of mosquitto."""
    play(PLAIN)
    play(PLAIN, large=True)
    tls13 = context(work, keys, "TLSv1_3")
    play(TLS, tls13, large=True)
    tls13.resumes = True
    play(TLS, tls13)
    play(TLS_128, context(work, keys, "TLSv1_3"))
    play(TLS_CHACHA, context(work, keys, "TLSv1_3"))
    play(RETRY, context(work, keys, "TLSv1_3"))
    for suite in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"):
        play(TLS, context(work, keys, "TLSv1_2", f"ECDHE-RSA-{suite}"))
    for suite in ("AES128-SHA", "AES256-SHA256", "ECDHE-RSA-AES256-SHA384"):
        play(TLS, context(work, keys, "TLSv1_2", suite))
        play(TLS, context(work, keys, "TLSv1_2", suite, NO_ENCRYPT_THEN_MAC))
    tls12 = context(work, keys, "TLSv1_2", "ECDHE-RSA-AES128-GCM-SHA256")
    play(TLS, tls12)
    tls12.resumes = True
    play(TLS, tls12)
    play(TLS, context(work, None, "TLSv1_3"))  # without a key log
    play(WS, transport="websockets", large=True)
    play(WSS, context(work, keys, "TLSv1_3"), transport="websockets")


def enter(process: subprocess.Popen[bytes], *parts: bytes) -> None:
    """Write each part to a program separately; to OpenSSL, a line of one letter is a command."""
    assert process.stdin is not None
    for part in parts:
        process.stdin.write(part)
        process.stdin.flush()
        time.sleep(0.3)


def play_openssl(work: Path, keys: Path) -> None:
    """Play what only the OpenSSL programs support: key updates, renegotiation, early data."""
    client = ("openssl", "s_client", "-keylogfile", keys, "-connect")
    with running(
        *client, f"{LOOPBACK}:{TLS}", "-tls1_3", "-servername", NAME, stdin=subprocess.PIPE
    ) as process:
        # K updates the keys of both sides, k those of the client.
        enter(process, CONNECT, b"K\n", PUBLISH, b"k\n", PUBLISH, DISCONNECT)
    address = f"{LOOPBACK}:{OPENSSL}"
    server = ("openssl", "s_server", "-cert", "cert.pem", "-key", "key.pem", "-early_data")
    (work / "early").write_bytes(CONNECT)
    scenarios = (
        (("-tls1_2",), (CONNECT, b"R\n", PUBLISH, DISCONNECT)),
        (("-tls1_3", "-sess_out", "session"), (CONNECT, PUBLISH, DISCONNECT)),
        (("-tls1_3", "-sess_in", "session", "-early_data", "early"), (PUBLISH, DISCONNECT)),
    )
    with running(
        *server, "-client_renegotiation", "-accept", address, cwd=work, stdin=subprocess.PIPE
    ) as broker:
        for options, parts in scenarios:
            with running(*client, address, *options, cwd=work, stdin=subprocess.PIPE) as process:
                enter(broker, CONNACK)
                enter(process, *parts, b"Q\n")


def record_mqtt(work: Path, out: Path) -> None:
    keys, pcap = out / "mqtt.keys", out / "mqtt.pcap"
    (work / "mosquitto.conf").write_text(SETTINGS)
    (work / "retry.conf").write_text(RETRY_SETTINGS)
    (work / "openssl.cnf").write_text(ONE_GROUP)
    environment = {**os.environ, "OPENSSL_CONF": str(work / "openssl.cnf")}
    with (
        running(MOSQUITTO, "-c", "mosquitto.conf", cwd=work),
        running(MOSQUITTO, "-c", "retry.conf", cwd=work, env=environment),
        capturing(pcap, [PLAIN, *range(TLS, OPENSSL + 1)], "-P"),
    ):
        play_mqtt(work, keys)
        play_openssl(work, keys)


def record_websocket(work: Path, out: Path, modules: Path) -> None:
    environment = {**os.environ, "NODE_PATH": str(modules / "node_modules")}
    command = ("node", f"--tls-keylog={out}/websocket.keys", HERE / "websocket_traffic.cjs")
    with capturing(out / "websocket.pcap", [PLAIN, NODE, NODE_TLS], "-P"):
        ports = (str(port) for port in (PLAIN, NODE, NODE_TLS))
        subprocess.run([*map(str, command), *ports, str(work)], env=environment, check=True)


def record_jms(work: Path, out: Path, mq_home: Path, agent: Path) -> None:
    """Play a small scenario of JMS twice: over the service jms, and over ssljms."""
    java, keys, plain = installed_java(), work / "jms.keys", work / "jms.pcap"
    secret = "changeit"
    for command in (
        "openssl pkcs12 -export -in cert.pem -inkey key.pem -name imq -out store.p12"
        f" -passout pass:{secret}",
        f"{java}/bin/keytool -importkeystore -srckeystore store.p12 -destkeystore keystore"
        f" -srcstorepass {secret} -deststorepass {secret} -alias imq",
    ):
        subprocess.run(command.split(), cwd=work, check=True, capture_output=True)
    (work / "passwords").write_text(f"imq.keystore.password={secret}\n")
    settings = {
        "portmapper.hostname": LOOPBACK,
        "hostname": LOOPBACK,
        "service.activelist": "jms,ssljms,admin",
        "jms.tcp.port": MQ_PLAIN,
        "ssljms.tls.port": MQ_TLS,
        "keystore.file.dirpath": work,
        "keystore.file.name": "keystore",
        "passfile.enabled": "true",
        "passfile.dirpath": work,
        "passfile.name": "passwords",
    }
    jars = f"{mq_home}/lib/*"
    source = HERE / "KeyTraffic.java"
    subprocess.run([f"{java}/bin/javac", "-cp", jars, "-d", str(work), str(source)], check=True)
    with running(
        mq_home / "bin" / "imqbrokerd",
        *("-javahome", java, "-varhome", work / "var", "-name", "example", "-tty"),
        *("-port", "7679", *(f"-Dimq.{name}={value}" for name, value in settings.items())),
    ):
        time.sleep(10)
        with capturing(plain, [MQ_PLAIN, MQ_TLS], "-P"):
            for address, *version in (
                (f"mqtcp://{LOOPBACK}:{MQ_PLAIN}/jms",),
                (f"mqssl://{LOOPBACK}:{MQ_TLS}/ssljms", "TLSv1.2"),
                (f"mqssl://{LOOPBACK}:{MQ_TLS}/ssljms", "TLSv1.3"),
            ):
                flags = [f"-Djdk.tls.client.protocols={one}" for one in version]
                # The client sends the release of its kernel to the broker; this replaces it.
                flags += ["-Dos.version=6.1", f"-javaagent:{agent}={keys}", "-cp", f"{jars}:{work}"]
                subprocess.run([f"{java}/bin/java", *flags, "KeyTraffic", address], check=True)
    secrets = ("editcap", "-F", "pcapng", "--inject-secrets", f"tls,{keys}")
    subprocess.run([*secrets, str(plain), str(out / "jms.pcapng")], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path, required=True)
    parser.add_argument("--agent", type=Path, required=True)
    parser.add_argument("--node-modules", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE.parent / "encrypted")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(exist_ok=True)
    for old in out.glob("*.keys"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        work.chmod(0o755)
        make_certificate(work)
        (work / "key.pem").chmod(0o644)  # the broker drops its root rights
        record_mqtt(work, out)
        record_websocket(work, out, arguments.node_modules.resolve())
        record_jms(work, out, arguments.mq_home.resolve(), arguments.agent.resolve())
    for path in sorted(out.iterdir()):
        path.chmod(0o644)
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
