from collections.abc import Callable

import pytest


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str, bytes)


@pytest.fixture
def is_plain() -> Callable[[object], bool]:
    """Whether a snapshot can be saved without pickle: nested tuples of plain values, nothing else."""
    return _is_plain
