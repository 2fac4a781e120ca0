// MQTT over TCP and over WebSocket, against the broker aedes; the same packets every time.
// usage: node websocket_traffic.cjs TCP_PORT WS_PORT WSS_PORT FOLDER    (FOLDER has key.pem, cert.pem)
"use strict";
const fs = require("fs"), http = require("http"), https = require("https"), net = require("net");
const { Aedes } = require("aedes");
const WebSocket = require("ws");
const packets = require("mqtt-packet");

const HOST = "127.0.0.1";
const [tcpPort, wsPort, wssPort] = process.argv.slice(2, 5).map(Number);
const folder = process.argv[5];
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const DEFLATE = { threshold: 0 };

const SCENARIO = [
  { cmd: "connect", protocolId: "MQTT", protocolVersion: 4, clean: true, clientId: "meter", keepalive: 60 },
  { cmd: "subscribe", messageId: 1, subscriptions: [{ topic: "meter/+", qos: 1 }] },
  { cmd: "publish", topic: "meter/1", payload: "1 kWh", qos: 0 },
  { cmd: "publish", topic: "meter/2", payload: "2 kWh ".repeat(200), qos: 1, messageId: 2 },
  { cmd: "publish", topic: "large/3", payload: "0123456789abcdef".repeat(1100), qos: 1, messageId: 3 },
  { cmd: "pingreq" },
  { cmd: "disconnect" },
].map((packet) => packets.generate(packet));

async function overTcp() {
  const socket = net.connect(tcpPort, HOST);
  socket.on("data", () => {});
  for (const packet of SCENARIO) {
    socket.write(packet);
    await sleep(150);
  }
  socket.destroy();
  await sleep(150);
}

async function overWebSocket(url, deflate, send) {
  const socket = new WebSocket(url, ["mqtt"], { perMessageDeflate: deflate, rejectUnauthorized: false });
  socket.on("message", () => {});
  await new Promise((done) => socket.on("open", done));
  for (const packet of SCENARIO) {
    await send(socket, packet);
    await sleep(150);
  }
  socket.close();
  await sleep(150);
}

const whole = async (socket, packet) => socket.send(packet);

// Three fragments, a ping between them, and a pong that nobody asked for.
async function fragments(socket, packet) {
  const cuts = [0, 1, Math.ceil(packet.length / 2), packet.length];
  for (let at = 0; at < 3; at++) {
    socket.send(packet.subarray(cuts[at], cuts[at + 1]), { fin: at === 2, binary: true });
    if (at === 0) socket.ping("are you there");
    if (at === 1) socket.pong();
  }
}

async function main() {
  const aedes = await Aedes.createBroker({ id: "example" });
  const tcp = net.createServer(aedes.handle).listen(tcpPort, HOST);
  const certificate = { key: fs.readFileSync(`${folder}/key.pem`), cert: fs.readFileSync(`${folder}/cert.pem`) };
  const servers = [http.createServer().listen(wsPort, HOST), https.createServer(certificate).listen(wssPort, HOST)];
  for (const server of servers) {
    const listener = new WebSocket.Server({ server, perMessageDeflate: DEFLATE });
    listener.on("connection", (socket) => aedes.handle(WebSocket.createWebSocketStream(socket)));
    server.on("request", (_, answer) => answer.end("this is no broker\n"));
  }
  await sleep(300);
  await overTcp();
  const url = `ws://${HOST}:${wsPort}/mqtt`;
  await overWebSocket(url, false, whole);
  await overWebSocket(url, false, fragments);
  await overWebSocket(url, DEFLATE, whole);
  await overWebSocket(url, DEFLATE, fragments);
  const forgetful = { clientNoContextTakeover: true, serverNoContextTakeover: true, ...DEFLATE };
  await overWebSocket(url, forgetful, whole);
  await overWebSocket(`wss://localhost:${wssPort}/mqtt`, DEFLATE, fragments);
  await new Promise((done) => http.get(`http://${HOST}:${wsPort}/index.html`, (answer) => answer.resume().on("end", done)));
  await sleep(200);
  process.exit(0);
}

main();
