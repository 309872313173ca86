"""Encode plain values as bytes and decode them: nested tuples of int, float, str, bytes, bool and None, without pickle.

A value is one tag byte, followed by its contents: a length, an integer (seven bits per byte, the sign in the lowest
bit), the eight bytes of a float, or the bytes themselves. Equal values of equal types have equal bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from motet.errors import CorruptionError, ModelError

__all__ = ["decoded", "encoded"]

_NONE, _FALSE, _TRUE, _INT, _FLOAT, _STR, _BYTES, _TUPLE = range(8)


def encoded(value: Any) -> bytes:
    """Encode a plain value as bytes.

    >>> decoded(encoded((1, -2.5, ("door", b"x", True, None))))
    (1, -2.5, ('door', b'x', True, None))
    """
    out = bytearray()
    _put(out, value)
    return bytes(out)


def decoded(data: bytes | memoryview) -> Any:
    """Return the value that ``encoded`` was given."""
    try:
        value, end = _get(bytes(data), 0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"data must be one complete encoded value, got {len(data)} bytes that cannot be decoded: the file is "
            "damaged"
        ) from error
    if end != len(data):
        raise CorruptionError(
            f"data must be one complete encoded value, got {len(data)} bytes, of which {end} hold a value: the file is "
            "damaged"
        )
    return value


def _put(out: bytearray, value: Any) -> None:
    kind = type(value)
    if kind is int:
        out.append(_INT)
        _put_whole(out, value << 1 if value >= 0 else (-value << 1) - 1)
    elif kind is tuple:
        out.append(_TUPLE)
        _put_whole(out, len(value))
        for part in value:
            _put(out, part)
    elif value is None or kind is bool:
        out.append(_NONE if value is None else _FALSE + value)
    elif kind is float:
        out.append(_FLOAT)
        out += struct.pack("<d", value)
    elif kind is str or kind is bytes:
        data = value.encode() if kind is str else value
        out.append(_STR if kind is str else _BYTES)
        _put_whole(out, len(data))
        out += data
    else:
        raise ModelError(
            f"{value!r} in a state is a {kind.__module__}.{kind.__qualname__}; expected nested tuples of int, float, "
            "str, bytes, bool and None, or a model with encode_state(state) -> bytes and decode_state(bytes) -> state"
        )


def _put_whole(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _get(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag in (_NONE, _FALSE, _TRUE):
        return (None if tag == _NONE else tag == _TRUE), at
    if tag == _FLOAT:
        return struct.unpack_from("<d", data, at)[0], at + 8
    number, at = _get_whole(data, at)
    if tag == _INT:
        return (-(number + 1 >> 1) if number & 1 else number >> 1), at
    if tag == _TUPLE:
        parts = []
        for _ in range(number):
            part, at = _get(data, at)
            parts.append(part)
        return tuple(parts), at
    if tag not in (_STR, _BYTES) or at + number > len(data):
        raise IndexError
    raw = data[at : at + number]
    return (raw.decode() if tag == _STR else raw), at + number


def _get_whole(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
