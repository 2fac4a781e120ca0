"""Topics: moved and looked through in one go; pieces of ``wireyard.formats.mqtt.kernels``."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from wireyard.accelerate import instruction, piece
from wireyard.memory import BLOCK, Bytes, copy_bytes, load_u8

__all__ = ["copy_topic", "is_odd"]


def _emit_copy_topic(builder: Any, out: Any, out_at: Any, data: Any, at: Any) -> Any:
    block = ir.VectorType(ir.IntType(8), BLOCK)
    source = builder.bitcast(builder.gep(data, [at]), block.as_pointer())
    target = builder.bitcast(builder.gep(out, [out_at]), block.as_pointer())
    value = builder.load(source, align=1)
    builder.store(value, target, align=1)
    found = builder.icmp_signed("<", value, ir.Constant(block, None))
    for char in b"+#\0":
        same = builder.icmp_signed("==", value, ir.Constant(block, [char] * BLOCK))
        found = builder.or_(found, same)
    return builder.zext(builder.bitcast(found, ir.IntType(BLOCK)), ir.IntType(64))


@instruction(_emit_copy_topic)
def copy_topic_block(out: Bytes, out_at: int, data: Bytes, at: int) -> int:
    """Move `BLOCK` bytes; return a bit for each to look at: no ASCII, a wildcard, U+0000."""
    moved = data[at : at + BLOCK].copy()
    out[out_at : out_at + BLOCK] = moved
    odd = (moved >= 0x80) | (moved == 0x2B) | (moved == 0x23) | (moved == 0)
    return int.from_bytes(np.packbits(odd, bitorder="little").tobytes(), "little")


@piece
def copy_topic(out: Bytes, out_at: int, data: Bytes, at: int, size: int, stop: int) -> int:
    """Move a topic by blocks and return non-zero if any of its bytes has to be looked at."""
    odd = 0
    while size > BLOCK and at + BLOCK <= stop:
        odd |= copy_topic_block(out, out_at, data, at)
        out_at += BLOCK
        at += BLOCK
        size -= BLOCK
    if at + BLOCK <= stop:
        return odd | copy_topic_block(out, out_at, data, at) & ((1 << size) - 1)
    copy_bytes(out, out_at, data, at, size)
    return odd | is_odd(data, at, size) | (not is_ascii(data, at, size))


@piece
def is_ascii(data: Bytes, at: int, size: int) -> bool:
    """Tell whether all bytes are ASCII."""
    high = 0
    for place in range(size):
        high |= load_u8(data, at + place)
    return high < 0x80


@piece
def is_odd(data: Bytes, at: int, size: int) -> bool:
    """Tell whether a topic has a wildcard or U+0000."""
    found = False
    for place in range(size):
        char = load_u8(data, at + place)
        found = found or char == 0x2B or char == 0x23 or char == 0
    return found
