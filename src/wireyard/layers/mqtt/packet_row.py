"""Types of the rows that the first stage reads: packets, and streams with their context.

A row is a plain dictionary, as readers return it; the types here list its keys. A null field is
treated as an absent one, so fields are read with ``get``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

__all__ = ["FilterRow", "PacketRow", "Properties"]


class FilterRow(TypedDict, total=False):
    """A topic filter of SUBSCRIBE or UNSUBSCRIBE."""

    filter: Required[str]
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int


class ErrorRow(TypedDict, total=False):
    """The error of bytes that are no packet, or the rule that a packet violates."""

    code: str
    message: str


class Properties(TypedDict, total=False):
    """The properties of a packet that sessions and messages depend on."""

    assigned_client_identifier: str
    correlation_data: bytes
    maximum_packet_size: int
    message_expiry_interval: int
    receive_maximum: int
    reason_string: str
    response_topic: str
    server_keep_alive: int
    session_expiry_interval: int
    subscription_identifier: list[int]
    topic_alias: int
    topic_alias_maximum: int
    will_delay_interval: int


class PacketRow(TypedDict, total=False):
    """A control packet; or other bytes, then without a packet type."""

    source: Required[str]
    stream: Required[str]
    offset: Required[int]
    length: Required[int]
    status: str
    error: ErrorRow
    captured_ns: int
    frame: int
    src_addr: str
    src_port: int
    dst_addr: str
    dst_port: int
    packet: int
    """Its index among the packets that are tracked by columns."""
    packet_type: int
    verdict: str
    version_in_force: int
    protocol_version: int
    dup: bool
    qos: int
    retain: bool
    packet_id: int
    topic: str
    payload: bytes
    properties: Sequence[Mapping[str, Any]]
    return_code: int
    return_codes: Sequence[int]
    filters: list[FilterRow]
    session_present: bool
    client_id: str
    username: str
    keep_alive: int
    clean_start: bool
    will_topic: str
    will_payload: bytes
    will_qos: int
    will_retain: bool
    will_properties: Sequence[Mapping[str, Any]]
