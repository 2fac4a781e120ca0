"""Whole packets as hex, put together by hand from the specification, field by field."""

from __future__ import annotations

from typing import Any, NamedTuple


class Golden(NamedTuple):
    """One packet: its bytes, the fields it has, and the texts made from them."""

    data: bytes
    fields: dict[str, Any]
    texts: dict[str, str | None]


PING = Golden(
    bytes.fromhex(
        "1bffe3c2"  # magic 469754818
        "012d"  # version 301
        "0036"  # packet type 54, PING
        "00000048"  # size 72
        "0000000000000000"  # expiration: never
        "000001018082ea81"  # timestamp
        "00000000000000000000ffff0a000001"  # source IP, mapped 10.0.0.1
        "00001f90"  # source port 8080
        "00000007"  # sequence 7
        "00000048"  # property offset 72: no variable items
        "00000000"  # property size 0
        "05"  # priority
        "00"  # encryption
        "0010"  # flags: A, reply wanted
        "0000000000000003"  # consumer id
    ),
    {
        "version": 301,
        "packet_type": 54,
        "expiration": 0,
        "timestamp": 1105962658433,
        "source_ip": bytes.fromhex("00000000000000000000ffff0a000001"),
        "source_port": 8080,
        "sequence": 7,
        "property_offset": 72,
        "priority": 5,
        "encryption": 0,
        "bit_flags": 0x10,
        "consumer_id": 3,
        "transaction_id": None,
        "destination": None,
        "properties": None,
        "body": None,
    },
    {
        "packet_type_name": "PING",
        "flags": "A",
        "sys_message_id": "7-10.0.0.1-8080-1105962658433",
    },
)

ALL_ITEMS = Golden(
    bytes.fromhex(
        "1bffe3c2"  # magic
        "012d"  # version 301
        "0001"  # TEXT_MESSAGE
        "000000dc"  # size 220
        "00000000000003e8"  # expiration 1000
        "00000000000007d0"  # timestamp 2000
        "ff000000801b2c3d4e05ffffc0a80111"  # source IP: IPv4 with MAC 80:1b:2c:3d:4e:05
        "0000c000"  # source port 49152
        "ffffffff"  # sequence -1
        "000000d8"  # property offset 216
        "00000000"  # property size 0
        "04"  # priority 4
        "ff"  # encryption 255
        "fe05"  # flags Q P B Z I W, and the three reserved bits
        "0000000000000000"  # consumer id
        "0008 0008 8000000000000000"  # transaction id, the least
        "0009 0008 0000000000000009"  # producer id 9
        "000a 0008 7fffffffffffffff"  # delivery time, the greatest (not in the specification)
        "000b 0004 ffffffff"  # delivery count -1 (not in the specification)
        "0001 0002 7130"  # destination q0
        "0002 0005 49443a6d31"  # message id ID:m1
        "0003 0002 c3a9"  # correlation id, one letter of two bytes
        "0004 0000"  # reply to: empty, which is not absent
        "0005 0004 f09f9880"  # JMS type, one character of four bytes
        "0006 001c 636f6d2e73756e2e6d6573736167696e672e42617369635175657565"  # destination class
        "0007 001c 636f6d2e73756e2e6d6573736167696e672e4261736963546f706963"  # reply-to class
        "0000 00"  # end of the list, padding to 216
        "626f6479"  # body
    ),
    {
        "expiration": 1000,
        "timestamp": 2000,
        "source_port": 49152,
        "sequence": -1,
        "property_offset": 216,
        "priority": 4,
        "encryption": 255,
        "bit_flags": 0xFE05,
        "transaction_id": -(2**63),
        "producer_id": 9,
        "delivery_time": 2**63 - 1,
        "delivery_count": -1,
        "destination": "q0",
        "message_id": "ID:m1",
        "correlation_id": "é",
        "reply_to": "",
        "message_type": "😀",
        "destination_class": "com.sun.messaging.BasicQueue",
        "reply_to_class": "com.sun.messaging.BasicTopic",
        "unknown_items": (),
        "properties": None,
        "body": b"body",
    },
    {
        "packet_type_name": "TEXT_MESSAGE",
        "flags": "QPBZIW",
        "sys_message_id": "-1-192.168.1.17(80:1b:2c:3d:4e:5)-49152-2000",
    },
)

ALL_PROPERTIES = Golden(
    bytes.fromhex(
        "1bffe3c2 012d 0006"  # magic, version 301, MESSAGE
        "000000bc"  # size 188
        "0000000000000000 0000000000000000"  # expiration, timestamp
        "20010db800000000000000000000002a"  # an IPv6 address
        "00000000 00000000"  # port, sequence
        "00000048 00000074"  # property offset 72, property size 116
        "05 00 0000"  # priority, encryption, flags
        "0000000000000000"  # consumer id
        "00000001 00000009"  # property version 1, nine properties
        "0002 6231 0001 01"  # b1 BOOLEAN true
        "0002 6232 0002 80"  # b2 BYTE -128
        "0002 7333 0003 7fff"  # s3 SHORT 32767
        "0002 6934 0004 80000000"  # i4 INTEGER, the least
        "0002 6c35 0005 ffffffffffffffff"  # l5 LONG -1
        "0002 6636 0006 3fc00000"  # f6 FLOAT 1.5
        "0002 6437 0007 3fb999999999999a"  # d7 DOUBLE 0.1
        "0002 7338 0008 000a 61 c080 62 eda0bdedb880"  # s8 STRING: a, NUL, b, U+1F600
        "0002 6f39 0009 0000000a aced0005740001780000"  # o9 OBJECT: 8 bytes and 2 of slack
    ),
    {
        "properties": {
            "b1": ("boolean", True),
            "b2": ("byte", -128),
            "s3": ("short", 32767),
            "i4": ("integer", -(2**31)),
            "l5": ("long", -1),
            "f6": ("float", 1.5),
            "d7": ("double", 0.1),
            "s8": ("string", "a\0b😀"),
            "o9": ("object", bytes.fromhex("aced0005740001780000")),
        },
        "body": None,
    },
    {
        "packet_type_name": "MESSAGE",
        "flags": "",
        "sys_message_id": "0-2001:db8:0:0:0:0:0:2a-0-0",
    },
)

_HASHTABLE = (
    "aced0005 73 72"  # a stream; an object of a class described here:
    "0013 6a6176612e7574696c2e486173687461626c65"  # java.util.Hashtable
    "13bb0f25214ae4b8 03 0002"  # its version, serializable with writeObject, two fields:
    "46 000a 6c6f6164466163746f72"  # float loadFactor
    "49 0009 7468726573686f6c64"  # int threshold
    "78 70 3f400000 00000008"  # no superclass; 0.75, 8
    "77 08 0000000b 00000001"  # 11 buckets, one entry:
    "74 0001 6e"  # the string n
    "73 72 0011 6a6176612e6c616e672e496e7465676572"  # an object: java.lang.Integer
    "12e2a0a4f7818738 02 0001 49 0005 76616c7565 78"  # one field, int value
    "72 0010 6a6176612e6c616e672e4e756d626572"  # whose superclass is java.lang.Number
    "86ac951d0b94e08b 02 0000 78 70 fffffff9"  # no fields; -7
    "78"  # end of the entries
)

VERSION_200 = Golden(
    bytes.fromhex(
        "1bffe3c2 00c8 0002"  # magic, version 200, BYTES_MESSAGE
        "000000ff"  # size 255
        "0000000000000000 ffffffffffffffff"  # expiration, timestamp -1
        "00000000000000000000000000000000"  # all zero is IPv6
        "ffffffff 00000001"  # port -1, sequence
        "00000058 000000a5"  # property offset 88, property size 165
        "05 00 0001 0000000000000000"  # priority, encryption, flags, consumer id
        "0008 0008 0000000000000005 0000"
        "0000" + _HASHTABLE + "00ff"  # transaction id, end, padding  # body
    ),
    {
        "version": 200,
        "timestamp": -1,
        "source_port": -1,
        "property_offset": 88,
        "transaction_id": 5,
        "properties": {"n": ("integer", -7)},
        "body": b"\x00\xff",
    },
    {
        "packet_type_name": "BYTES_MESSAGE",
        "flags": "Q",
        "sys_message_id": "1-0:0:0:0:0:0:0:0--1--1",
    },
)

VERSION_103 = Golden(
    bytes.fromhex(
        "1bffe3c2 0067 0008"  # magic, version 103, a type nobody knows
        "000000ed"  # size 237
        "fffffffb"  # transaction id -5
        "0000000000000001 0000000000000002"  # expiration, timestamp
        "00000000000000000000ffffc0a80111"  # address
        "00000003 00000004"  # port, sequence
        "00000048 000000a5"  # property offset 72, property size 165
        "06 00 0015"  # priority, encryption, flags Q P A
        "fffffffa" + _HASHTABLE  # consumer id -6
    ),
    {
        "version": 103,
        "packet_type": 8,
        "transaction_id": -5,
        "expiration": 1,
        "timestamp": 2,
        "source_port": 3,
        "sequence": 4,
        "property_offset": 72,
        "priority": 6,
        "bit_flags": 0x15,
        "consumer_id": -6,
        "properties": {"n": ("integer", -7)},
        "body": None,
    },
    {
        "packet_type_name": None,
        "flags": "QPA",
        "sys_message_id": "4-192.168.1.17-3-2",
    },
)

GOLDEN = {
    "ping": PING,
    "all items": ALL_ITEMS,
    "all properties": ALL_PROPERTIES,
    "version 200": VERSION_200,
    "version 103": VERSION_103,
}
