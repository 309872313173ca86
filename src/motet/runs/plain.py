"""Encode plain values as JSON, including those that JSON has no type for: arrays, tuples, bytes, keys of any type."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from motet.errors import SettingError

__all__ = ["decode", "encode"]


def encode(value: Any) -> Any:
    """Encode plain values (nested tuples, lists, dicts, int, float, str, bytes, bool, None, arrays) as JSON.

    >>> decode(encode((1, b"a", {"x": (2.5, None)}, 2**100))) == (1, b"a", {"x": (2.5, None)}, 2**100)
    True
    """
    if isinstance(value, np.ndarray):
        return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str, "shape": value.shape}
    if isinstance(value, np.generic):
        return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str, "shape": None}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise SettingError(f"value must be plain to be saved without pickle, got a {type(value).__name__}")


def decode(value: Any) -> Any:
    """Return the value that :func:`encode` encoded."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        flat = np.frombuffer(base64.b64decode(value["array"]), np.dtype(value["dtype"]))
        return flat[0] if value["shape"] is None else flat.reshape(value["shape"]).copy()
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    return {decode(key): decode(item) for key, item in value["dict"]}
