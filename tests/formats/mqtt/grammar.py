"""Control packets of every version, byte by byte from the pages and the standards.

What a version leaves to the sender is random: flags nobody looks at, bytes of Remaining Length, the
order of properties, what may be left out.
"""

from __future__ import annotations

from random import Random

from tests.grammar import bits, odd_bytes, strict_text
from wireyard.conform.packets import NAMES, binary, text, variable

__all__ = ["random_mqtt"]

_UNKNOWN, _PAGE, _OLD, _NEW = 0, 2, 3, 5
_ANSWERS = (2, 4, 5, 6, 7, 9, 11, 14, 15)
_EVERY = (1, 3, *_ANSWERS, 8, 10, 16)
_PLACES = {
    1: ("bool", (3, 16)), 2: ("4", (3, 16)), 3: ("text", (3, 16)), 8: ("topic", (3, 16)),
    9: ("bytes", (3, 16)), 11: ("variable", (3, 8)), 17: ("4", (1, 2, 14)), 18: ("text", (2,)),
    19: ("2", (2,)), 21: ("text", (1, 2, 15)), 22: ("bytes", (1, 2, 15)), 23: ("bool", (1,)),
    24: ("4", (16,)), 25: ("bool", (1,)), 26: ("text", (2,)), 28: ("text", (2, 14)),
    31: ("text", _ANSWERS), 33: ("2+", (1, 2)), 34: ("2", (1, 2)), 35: ("2+", (3,)),
    36: ("bool", (2,)), 37: ("bool", (2,)), 38: ("pair", _EVERY), 39: ("4+", (1, 2)),
    40: ("bool", (2,)), 41: ("bool", (2,)), 42: ("bool", (2,)),
}  # fmt: skip
"""What each property holds, and where it may stand (MQTT 5.0, 2.2.2.2); 16 is a will."""
_CODES = {
    2: (0, 128, 133, 159), 4: (0, 16, 128, 153), 5: (0, 16, 151), 6: (0, 146), 7: (0, 146),
    9: (0, 1, 2, 128, 162), 11: (0, 17, 145), 14: (0, 4, 130, 162), 15: (0, 24, 25),
}  # fmt: skip
_KINDS = (1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)


def random_mqtt(rng: Random, version: int, msb_first: bool = False) -> bytes:
    """Return a well-formed packet of a version, 0 while it is unknown."""
    maker = _Maker(rng, version, msb_first)
    kind = rng.choice((*_KINDS, 15) if version == _NEW else _KINDS)
    if kind == 1 and version == _UNKNOWN:
        kind = 3
    flags, body = maker.packet(kind)
    least = 1 if version == _NEW else rng.choice((1, 1, 1, 1, 1, 2, 3, 4))
    return bytes([kind << 4 | flags]) + variable(len(body), least) + body


class _Maker:
    def __init__(self, rng: Random, version: int, msb_first: bool) -> None:
        self.rng = rng
        self.version = version
        self.lax = version in (_UNKNOWN, _PAGE, _OLD)
        """Whether the low nibble and reserved bits are not looked at."""
        self.order = "little" if version == _PAGE and not msb_first else "big"

    def packet(self, kind: int) -> tuple[int, bytes]:
        """Return the low nibble and what follows Remaining Length."""
        if kind == 3:
            return self.publish()
        flags = 2 if kind in (6, 8, 10) else 0
        if self.lax and self.rng.random() < 0.3:
            flags = self.rng.randrange(16)
        match kind:
            case 1:
                return flags, self.connect()
            case 2:
                return flags, self.connack()
            case 4 | 5 | 6 | 7:
                return flags, self.word(bits(self.rng, 16)) + self.reason(kind)
            case 8 | 10:
                return flags, self.filters(kind)
            case 9 | 11:
                return flags, self.codes(kind)
            case 14:
                return flags, self.reason(kind)
            case 15:
                return flags, self.auth()
        return flags, b""

    # --- parts ------------------------------------------------------------------------------

    def word(self, value: int) -> bytes:
        return value.to_bytes(2, "big" if self.order == "big" else "little")

    def number(self) -> bytes:
        """Return a packet identifier, which is not 0."""
        return self.word(bits(self.rng, 16) or 1)

    def text(self, most: int = 12, least: str = "") -> bytes:
        found = strict_text(self.rng, most) or least
        if self.rng.random() < 0.05 and self.lax and self.version:
            found += "\0"
        if self.version != _PAGE:
            return text(found)
        pairs = found.encode("utf-16-be", "surrogatepass")
        units = [pairs[at : at + 2] for at in range(0, len(pairs), 2)]
        raw = b"".join(each.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass")
                       for each in units)  # fmt: skip
        return text(raw.replace(b"\0", b"\xc0\x80"))

    def properties(self, place: int, must: tuple[int, ...] = ()) -> bytes:
        """Return Property Length and properties in any order, if the version has them."""
        if self.version != _NEW:
            return b""
        rng = self.rng
        codes = [code for code, (_, places) in _PLACES.items() if place in places]
        chosen = {*must, *rng.sample(codes, min(rng.choice((0, 0, 1, 2, 99)), len(codes)))}
        if place == 1 and 22 in chosen:
            chosen.add(21)
        listed = [*chosen, *[38] * rng.choice((0, 0, 2)), *[11] * (2 * (place == 3))]
        rng.shuffle(listed)
        made = b"".join(bytes([code]) + self.value(_PLACES[code][0]) for code in listed)
        return variable(len(made)) + made

    def value(self, kind: str) -> bytes:
        rng = self.rng
        match kind:
            case "bool":
                return bytes([rng.randrange(2)])
            case "text" | "topic":
                return self.text()
            case "pair":
                return self.text() + self.text()
            case "bytes":
                return binary(odd_bytes(rng, (0, 1, 9)))
            case "variable":
                return variable(min(bits(rng, 28) or 1, 268_435_455))
        width = int(kind[0])
        return (bits(rng, 8 * width) or kind.endswith("+")).to_bytes(width, "big")

    # --- packets ----------------------------------------------------------------------------

    def connect(self) -> bytes:
        rng, version = self.rng, self.version
        will = rng.random() < 0.4
        user = rng.random() < 0.5
        password = (user and rng.random() < 0.6) or (version == _NEW and rng.random() < 0.2)
        clean = rng.random() < 0.5
        client = strict_text(rng, 12)
        if version in (_PAGE, _OLD) or not (clean or version == _NEW):
            client = client or "c"
        flags = clean << 1 | will << 2 | user << 7 | password << 6
        if will:
            flags |= rng.randrange(3) << 3 | rng.randrange(2) << 5
        elif version in (_PAGE, _OLD) and rng.random() < 0.2:
            flags |= rng.choice((0x38, 0x08, 0x20))
        if version in (_PAGE, _OLD):
            flags |= rng.random() < 0.2
        left_out = version == _OLD and user and rng.random() < 0.3
        parts = [text(NAMES[version]), bytes([version, flags]), self.word(bits(rng, 16))]
        parts += [self.properties(1), text(client.encode()) if version != _PAGE else b""]
        if version == _PAGE:
            parts.append(text("page-client"[: rng.randint(1, 11)]))
        if will:
            topic = self.text(least="w")
            parts += [self.properties(16), topic, binary(odd_bytes(rng, (0, 1, 30)))]
        if version != _PAGE and not left_out:
            parts += [self.text() if user else b"", binary(b"secret") if password else b""]
        elif left_out and password and rng.random() < 0.5:
            parts.append(self.text())  # the user name alone
        return b"".join(parts)

    def connack(self) -> bytes:
        rng = self.rng
        if self.version in (_UNKNOWN, _PAGE, _OLD):
            flags, most = rng.choice((0, 0, 1, bits(rng, 8))), 4 if self.version == _PAGE else 6
            return bytes([flags, rng.randrange(most)])
        code = rng.choice((0, *(_CODES[2] if self.version == _NEW else range(6))))
        return bytes([0 if code else rng.randrange(2), code]) + self.properties(2)

    def publish(self) -> tuple[int, bytes]:
        rng = self.rng
        qos = rng.randrange(3)
        dup = rng.random() < 0.3 and (qos > 0 or self.lax)
        head = self.properties(3)
        topic = self.text(least="t")
        if self.version == _NEW and rng.random() < 0.1:
            topic, head = text(""), self.properties(3, (35,))
        body = topic + (self.number() if qos else b"") + head
        payload = odd_bytes(rng, (0, 0, 1, 20, 130, 300))
        return dup << 3 | qos << 1 | rng.randrange(2), body + payload

    def reason(self, kind: int) -> bytes:
        if self.version != _NEW or self.rng.random() < 0.4:
            return b""
        code = bytes([self.rng.choice(_CODES[kind])])
        return code if self.rng.random() < 0.4 else code + self.properties(kind)

    def auth(self) -> bytes:
        if self.rng.random() < 0.2:
            return b""
        return bytes([self.rng.choice(_CODES[15])]) + self.properties(15, (21,))

    def filters(self, kind: int) -> bytes:
        rng = self.rng
        parts = [self.number(), self.properties(kind)]
        for _ in range(rng.choice((1, 1, 2, 5))):
            levels = [self.text(6)[2:] for _ in range(rng.randint(1, 3))]
            if self.version != _PAGE:
                levels[rng.randrange(len(levels))] = rng.choice((b"+", b"level"))
                levels += [b"#"] * rng.randrange(2)
            shared = self.version == _NEW and rng.random() < 0.2
            whole = b"/".join((b"$share", b"g", *levels) if shared else levels)
            parts.append(text(whole))
            if kind == 8:
                parts.append(bytes([self.options(shared)]))
        return b"".join(parts)

    def options(self, shared: bool) -> int:
        rng = self.rng
        if self.version == _NEW:
            no_local = 0 if shared else rng.randrange(2)
            return rng.randrange(3) | no_local << 2 | rng.randrange(2) << 3 | rng.randrange(3) << 4
        return rng.randrange(3) | (bits(rng, 6) << 2 if self.lax and rng.random() < 0.3 else 0)

    def codes(self, kind: int) -> bytes:
        rng = self.rng
        parts = [self.word(bits(rng, 16)), self.properties(kind)]
        if kind == 9 or self.version == _NEW:
            known = _CODES[kind] if self.version == _NEW else (0, 1, 2, 128)
            codes = range(256) if self.lax else known
            parts.append(bytes(rng.choices(codes, k=rng.choice((0, 1, 1, 3)))))
        return b"".join(parts)
