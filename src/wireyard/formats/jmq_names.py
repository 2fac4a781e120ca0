"""Names of JMQ's packet types and flags, for JMQ packets and for those ported onto GPackets."""

from __future__ import annotations

from types import MappingProxyType

FLAGS = MappingProxyType(
    {
        "Q": 0x0001,  # destination is a queue
        "R": 0x0002,  # redelivered
        "P": 0x0004,  # persistent
        "S": 0x0008,  # selectors processed; no shipped code sets it
        "A": 0x0010,  # reply wanted
        "L": 0x0020,  # last of a set
        "F": 0x0040,  # flow paused for the connection
        "T": 0x0080,  # in a transaction; no shipped code sets it
        "C": 0x0100,  # flow paused for the consumer, or producer out of credit
        "B": 0x0200,  # made by the server; no shipped code sets it
        "Z": 0x0400,  # body compressed
        "I": 0x0800,  # idempotent resend
        "W": 0x1000,  # wildcard destination; not in the specification
    }
)
"""Bit of each flag letter, lowest first. 0xE000 is reserved."""

PACKET_TYPES = MappingProxyType(
    {
        1: "TEXT_MESSAGE",
        2: "BYTES_MESSAGE",
        3: "MAP_MESSAGE",
        4: "STREAM_MESSAGE",
        5: "OBJECT_MESSAGE",
        6: "MESSAGE",
        9: "SEND_REPLY",
        10: "HELLO",
        11: "HELLO_REPLY",
        12: "AUTHENTICATE",
        13: "AUTHENTICATE_REPLY",
        14: "ADD_CONSUMER",
        15: "ADD_CONSUMER_REPLY",
        16: "DELETE_CONSUMER",
        17: "DELETE_CONSUMER_REPLY",
        18: "ADD_PRODUCER",
        19: "ADD_PRODUCER_REPLY",
        20: "START",
        22: "STOP",
        23: "STOP_REPLY",
        24: "ACKNOWLEDGE",
        25: "ACKNOWLEDGE_REPLY",
        26: "BROWSE",
        27: "BROWSE_REPLY",
        28: "GOODBYE",
        29: "GOODBYE_REPLY",
        30: "ERROR",
        32: "REDELIVER",
        34: "CREATE_DESTINATION",
        35: "CREATE_DESTINATION_REPLY",
        36: "DESTROY_DESTINATION",
        37: "DESTROY_DESTINATION_REPLY",
        38: "AUTHENTICATE_REQUEST",
        40: "VERIFY_DESTINATION",
        41: "VERIFY_DESTINATION_REPLY",
        42: "DELIVER",
        43: "DELIVER_REPLY",
        44: "START_TRANSACTION",
        45: "START_TRANSACTION_REPLY",
        46: "COMMIT_TRANSACTION",
        47: "COMMIT_TRANSACTION_REPLY",
        48: "ROLLBACK_TRANSACTION",
        49: "ROLLBACK_REPLY",
        50: "SET_CLIENTID",
        51: "SET_CLIENTID_REPLY",
        52: "RESUME_FLOW",
        54: "PING",
        55: "PING_REPLY",
        56: "PREPARE_TRANSACTION",
        57: "PREPARE_TRANSACTION_REPLY",
        58: "END_TRANSACTION",
        59: "END_TRANSACTION_REPLY",
        60: "RECOVER_TRANSACTION",
        61: "RECOVER_TRANSACTION_REPLY",
        62: "GENERATE_UID",
        63: "GENERATE_UID_REPLY",
        64: "FLOW_PAUSED",
        66: "DELETE_PRODUCER",
        67: "DELETE_PRODUCER_REPLY",
        68: "CREATE_SESSION",
        69: "CREATE_SESSION_REPLY",
        70: "DESTROY_SESSION",
        71: "DESTROY_SESSION_REPLY",
        72: "INFO_REQUEST",
        73: "INFO",
        74: "DEBUG",
        76: "GET_LICENSE",
        77: "GET_LICENSE_REPLY",
        78: "VERIFY_TRANSACTION",
        79: "VERIFY_TRANSACTION_REPLY",
    }
)
"""Names of the packet types, as the shipped classes print them."""
PACKET_CODES = MappingProxyType({name: code for code, name in PACKET_TYPES.items()})
