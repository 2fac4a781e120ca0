"""Memory access for kernels: big-endian fields, words, copies, UTF-8 and decimal text.

These functions are called from kernels as ``piece(array, position, ...)`` on uint8 arrays, take and
return 64-bit signed integers, and check no bounds: the kernel has checked that the bytes exist.
Functions that write text may write up to `SLACK` bytes past the position that they return, so
output arrays are longer than their text by that much.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wireyard.accelerate import inlined, instruction
from wireyard.arrays import Bytes

SLACK: Final = 64
"""Bytes that an output array needs after the last text written to it."""

BLOCK: Final = 32
"""Bytes that are copied at once: one vector register, and longer than most names."""

LINE: Final = 64
"""Bytes of a cache line."""

AHEAD_BYTES: Final = 4096
"""Prefetch distance while packets are framed. The start of the next packet depends on a size that
is not cached yet; this is the data that arrives from memory in the time of one such miss."""

HIGH_BITS: Final = -0x7F7F7F7F7F7F7F80
"""The high bit of each byte of a word, which is set in bytes that are not ASCII."""

_LOW_BITS: Final = 0x0101010101010101
_GATHER: Final = 0x0102040810204080
"""Factor that gathers the low bits of the bytes of a word in its highest byte, in order."""
_POSITIVE: Final = 0x7FFFFFFFFFFFFFFF

ASCII_ZEROS: Final = 0x3030303030303030
"""Added to a word of eight digits to make them ASCII."""


# --- instructions ---------------------------------------------------------------------------


def _emit_load(width: int, *, signed: bool, swapped: bool = True) -> Any:
    def emit(ir: Any, builder: Any, data: Any, at: Any) -> Any:
        kind, word = ir.IntType(8 * width), ir.IntType(64)
        place = builder.bitcast(builder.gep(data, [at]), kind.as_pointer())
        value = builder.load(place, align=1)
        if swapped and width > 1:
            value = builder.bswap(value)
        if kind.width == word.width:
            return value
        return (builder.sext if signed else builder.zext)(value, word)

    return emit


def _emit_store_word(ir: Any, builder: Any, out: Any, at: Any, word: Any) -> None:
    place = builder.bitcast(builder.gep(out, [at]), ir.IntType(64).as_pointer())
    builder.store(word, place, align=1)


def _emit_copy_bytes(
    ir: Any, builder: Any, out: Any, out_at: Any, data: Any, at: Any, size: Any
) -> None:
    pointer = ir.IntType(8).as_pointer()
    move = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
    target, source = builder.gep(out, [out_at]), builder.gep(data, [at])
    builder.call(move, [target, source, size, ir.Constant(ir.IntType(1), 0)])


def _emit_copy_block(ir: Any, builder: Any, out: Any, out_at: Any, data: Any, at: Any) -> Any:
    block = ir.VectorType(ir.IntType(8), BLOCK)
    source = builder.bitcast(builder.gep(data, [at]), block.as_pointer())
    target = builder.bitcast(builder.gep(out, [out_at]), block.as_pointer())
    value = builder.load(source, align=1)
    builder.store(value, target, align=1)
    odd = builder.icmp_signed("<", value, ir.Constant(block, [1] * BLOCK))
    return builder.zext(builder.bitcast(odd, ir.IntType(BLOCK)), ir.IntType(64))


def _emit_prefetch(writes: int) -> Any:
    def emit(ir: Any, builder: Any, data: Any, at: Any) -> None:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(fetch, [builder.gep(data, [at]), word(writes), word(3), word(1)])

    return emit


def _emit_count_zero_bytes(ir: Any, builder: Any, word: Any) -> Any:
    zeros = builder.cttz(word, ir.Constant(ir.IntType(1), 0))
    return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))


def _emit_bit_length(ir: Any, builder: Any, value: Any) -> Any:
    return builder.sub(
        ir.Constant(ir.IntType(64), 64), builder.ctlz(value, ir.Constant(ir.IntType(1), 0))
    )


def _emit_divide(ir: Any, builder: Any, value: Any, divisor: Any) -> Any:
    return builder.udiv(value, divisor)


def _integer(data: Bytes, at: int, width: int, *, signed: bool) -> int:
    return int.from_bytes(data[at : at + width].tobytes(), "big", signed=signed)


@instruction(_emit_load(1, signed=False))
def load_u8(data: Bytes, at: int) -> int:
    """Read one byte."""
    return int(data[at])


@instruction(_emit_load(1, signed=True))
def load_i8(data: Bytes, at: int) -> int:
    """Read one signed byte."""
    return _integer(data, at, 1, signed=True)


@instruction(_emit_load(2, signed=True))
def load_i16(data: Bytes, at: int) -> int:
    """Read a signed big-endian 16-bit integer."""
    return _integer(data, at, 2, signed=True)


@instruction(_emit_load(2, signed=False))
def load_u16(data: Bytes, at: int) -> int:
    """Read an unsigned big-endian 16-bit integer."""
    return _integer(data, at, 2, signed=False)


@instruction(_emit_load(4, signed=True))
def load_i32(data: Bytes, at: int) -> int:
    """Read a signed big-endian 32-bit integer."""
    return _integer(data, at, 4, signed=True)


@instruction(_emit_load(4, signed=False))
def load_u32(data: Bytes, at: int) -> int:
    """Read an unsigned big-endian 32-bit integer."""
    return _integer(data, at, 4, signed=False)


@instruction(_emit_load(8, signed=True))
def load_i64(data: Bytes, at: int) -> int:
    """Read a signed big-endian 64-bit integer."""
    return _integer(data, at, 8, signed=True)


@instruction(_emit_load(8, signed=True, swapped=False))
def load_word(data: Bytes, at: int) -> int:
    """Read eight bytes in the machine's own (little-endian) order."""
    return int.from_bytes(data[at : at + 8].tobytes(), "little", signed=True)


@instruction(_emit_store_word)
def store_word(out: Bytes, at: int, word: int) -> None:
    """Write eight bytes in the machine's own (little-endian) order."""
    out[at : at + 8] = np.frombuffer(word.to_bytes(8, "little", signed=True), np.uint8)


@instruction(_emit_copy_bytes)
def copy_bytes(out: Bytes, out_at: int, data: Bytes, at: int, size: int) -> None:
    """Copy exactly `size` bytes between arrays that do not overlap."""
    out[out_at : out_at + size] = data[at : at + size]


@instruction(_emit_copy_block)
def copy_block(out: Bytes, out_at: int, data: Bytes, at: int) -> int:
    """Copy `BLOCK` bytes; return a bit for each that is NUL or not ASCII, the first lowest."""
    moved = data[at : at + BLOCK].copy()
    out[out_at : out_at + BLOCK] = moved
    odd = np.packbits(moved.view(np.int8) < 1, bitorder="little")
    return int.from_bytes(odd.tobytes(), "little")


@instruction(_emit_prefetch(0))
def prefetch(data: Bytes, at: int) -> None:
    """Prefetch the cache line of a byte that will be read soon."""


@instruction(_emit_prefetch(1))
def prefetch_to_write(out: Bytes, at: int) -> None:
    """Prefetch the cache line of a byte that will be written soon; it may be past the end."""


@inlined
def prefetch_lines(data: Bytes, start: int, stop: int) -> int:
    """Prefetch the cache lines from `start` to `stop`; return the start of the next one."""
    while start < stop:
        prefetch(data, start)
        start += LINE
    return start


@instruction(_emit_count_zero_bytes)
def count_zero_bytes(word: int) -> int:
    """Return the number of leading zero bytes of `word`, in memory order."""
    return 8 if word == 0 else ((word & -word).bit_length() - 1) >> 3


@instruction(_emit_bit_length)
def bit_length(value: int) -> int:
    """Return the number of bits of a `value` that is not negative."""
    return int(value).bit_length()


@instruction(_emit_divide)
def divide(value: int, divisor: int) -> int:
    """Divide two integers that are not negative, without the sign tests of floor division."""
    return value // divisor


# --- indices and bits -----------------------------------------------------------------------


@inlined
def place_of(row: int) -> int:
    """Return `row`, which is not negative, in a form that shows that to the compiler.

    Else every array access would test for a negative index, which counts from the end.
    """
    return row & _POSITIVE


@inlined
def bit_column(word: int, place: int) -> int:
    """Return bit `place` of each of the eight bytes of `word` as one byte, the first lowest."""
    return (word >> place & _LOW_BITS) * _GATHER >> 56 & 0xFF


# --- text -----------------------------------------------------------------------------------


@inlined
def copy_text(out: Bytes, out_at: int, data: Bytes, at: int, size: int, stop: int) -> int:
    """Copy `size` bytes by blocks; return non-zero if one of them is NUL or not ASCII.

    Up to `BLOCK` bytes more are written to `out`; nothing at or after `stop` is read from `data`.
    A text of up to `BLOCK` bytes takes no loop, whose count the processor could not predict.
    """
    flags = 0
    while size > BLOCK and at + BLOCK <= stop:
        flags |= copy_block(out, out_at, data, at)
        out_at += BLOCK
        at += BLOCK
        size -= BLOCK
    if at + BLOCK <= stop:
        return flags | copy_block(out, out_at, data, at) & ((1 << size) - 1)
    copy_bytes(out, out_at, data, at, size)
    for place in range(size):
        byte = load_u8(data, at + place)
        flags |= (byte | byte - 1) & 0x80
    return flags


@inlined
def copy_long(out: Bytes, out_at: int, data: Bytes, at: int, size: int, stop: int) -> None:
    """Copy `size` bytes by pairs of blocks.

    Fewer than two blocks more are written to `out`; nothing at or after `stop` is read from `data`.
    """
    if at + size + 2 * BLOCK > stop:
        copy_bytes(out, out_at, data, at, size)
        return
    for done in range(0, size, 2 * BLOCK):
        prefetch_to_write(out, out_at + done + AHEAD_BYTES)
        copy_block(out, out_at + done, data, at + done)
        copy_block(out, out_at + done + BLOCK, data, at + done + BLOCK)


@inlined
def valid_utf8(data: Bytes, at: int, size: int) -> bool:
    """Return whether `size` bytes are UTF-8: no overlong forms, surrogates or planes above 16."""
    stop = at + size
    while at < stop:
        while at + 16 <= stop and (load_word(data, at) | load_word(data, at + 8)) & HIGH_BITS == 0:
            at += 16
        if at + 8 <= stop and load_word(data, at) & HIGH_BITS == 0:
            at += 8
        while at < stop and load_u8(data, at) < 0x80:
            at += 1
        while at < stop:
            first = load_u8(data, at)
            if first < 0x80:
                break
            width = _sequence_width(data, at, first, stop)
            if width == 0:
                return False
            at += width
    return True


@inlined
def _sequence_width(data: Bytes, at: int, first: int, stop: int) -> int:
    """Return the bytes of the sequence that begins with `first`, 0 if it is invalid (RFC 3629)."""
    width = 2 + (first >= 0xE0) + (first >= 0xF0)
    if first < 0xC2 or first > 0xF4 or at + width > stop:
        return 0
    # The second byte excludes overlong forms, surrogates, and code points above U+10FFFF.
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    second = load_u8(data, at + 1)
    if second < low or second > high:
        return 0
    for place in range(2, width):
        if load_u8(data, at + place) & 0xC0 != 0x80:
            return 0
    return width


# --- decimal text ---------------------------------------------------------------------------


@inlined
def spread_digits(value: int) -> int:
    """Return `value`, less than 10**8, as the eight digits of a word, the first one first."""
    top = divide(value, 10_000)
    fours = top | (value - 10_000 * top) << 32
    # Each step halves lanes by a multiplication with a rounded reciprocal, exact in its range:
    # x * 10486 >> 20 is x // 100 below 10 000, x * 103 >> 10 is x // 10 below 100.
    hundreds = (fours * 10_486 >> 20) & 0x0000007F_0000007F
    twos = hundreds + ((fours - 100 * hundreds) << 16)
    tens = (twos * 103 >> 10) & 0x000F000F_000F000F
    return tens + ((twos - 10 * tens) << 8)


@inlined
def put_leading(out: Bytes, at: int, value: int) -> int:
    """Write `value`, less than 10**8, without leading zeros."""
    if value < 10:
        store_word(out, at, 0x30 + value)
        return at + 1
    digits = spread_digits(value)
    skip = count_zero_bytes(digits)
    store_word(out, at, (digits + ASCII_ZEROS) >> (8 * skip))
    return at + 8 - skip


@inlined
def put_i64(out: Bytes, at: int, value: int) -> int:
    """Write `value` in decimal and return the position after it."""
    store_word(out, at, 0x2D)  # overwritten unless the value is negative
    if value < 0:
        value = -value  # the least integer stays negative, which is right as unsigned
        at += 1
    if 0 <= value < 100_000_000:
        return put_leading(out, at, value)
    if 0 <= value < 10_000_000_000_000_000:
        high = divide(value, 100_000_000)
        at = put_leading(out, at, high)
    else:
        highest = divide(value, 10_000_000_000_000_000)
        at = put_leading(out, at, highest)
        value -= highest * 10_000_000_000_000_000
        high = divide(value, 100_000_000)
        store_word(out, at, spread_digits(high) + ASCII_ZEROS)
        at += 8
    store_word(out, at, spread_digits(value - high * 100_000_000) + ASCII_ZEROS)
    return at + 8
