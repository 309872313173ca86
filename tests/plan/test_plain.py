"""Plain values as bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.errors import CorruptionError, ModelError
from motet.plan.plain import decoded, encoded

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple),
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@given(plain)
def test_values_are_decoded_with_their_types(value):
    assert same(decoded(encoded(value)), value)


@given(plain, st.integers(0, 30))
def test_damage_is_noticed_or_gives_another_plain_value(value, cut):
    data = encoded(value)
    if cut < len(data):
        with pytest.raises(CorruptionError):
            decoded(data[:cut])
    with pytest.raises(CorruptionError):
        decoded(data + b"\x00")


@pytest.mark.parametrize("strange", [[1], {1}, 1j, object()])
def test_values_that_are_not_plain_are_refused(strange):
    with pytest.raises(ModelError, match="expected nested tuples"):
        encoded((1, strange))
