import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from motet.errors import SpecError
from motet.masks import mask_form, sampling_mask
from motet.nest import equal_nests, map_nest
from motet.policies.scripted import Noop, constant
from motet.policy import RandomPolicy
from motet.testing import check_policy
from motet.testing.algorithm import random_mask

SPACES = {
    "discrete": Discrete(3, start=2),
    "multi-discrete": MultiDiscrete([2, 3], start=[0, 7]),
    "two axes": MultiDiscrete([[2, 3], [1, 4]]),
    "bits": MultiBinary(3),
    "bits, two axes": MultiBinary((2, 2)),
    "nested": Dict(b=Box(0, 1, (2,)), a=Discrete(3), c=Tuple([MultiBinary(2), MultiDiscrete([2, 2], start=[5, 6])])),
}


@pytest.mark.parametrize("name", SPACES)
def test_flat_masks_and_those_of_gymnasium_say_the_same(name):
    space, rng = SPACES[name], np.random.default_rng(0)
    form = mask_form(space)
    space.seed(0)
    for _ in range(100):
        mask = random_mask(form, rng)
        flat, out = form.flat(mask), np.zeros(form.size, np.bool_)
        form.put(mask, out)
        assert np.array_equal(flat, out)
        assert equal_nests(form.nest(flat), mask)
        assert np.array_equal(form.flat(flat), flat)  # worlds may also give the flat array
        assert form.allows(mask, space.sample(mask=sampling_mask(mask)))
        near = form.nearest(mask, space.sample())
        assert form.allows(mask, near)
        assert space.contains(near)
        allowed = space.sample(mask=sampling_mask(mask))
        assert equal_nests(form.nearest(mask, allowed), allowed)
    assert form.flat(None).all()
    masks = [random_mask(form, rng) for _ in range(4)]
    together = form.nest(np.stack([form.flat(mask) for mask in masks]))  # as policies for many worlds get them
    for i, mask in enumerate(masks):
        assert equal_nests(map_nest(lambda part: None if part is None else part[i], together), mask)  # noqa: B023


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_allowed_just_when_gymnasium_samples_them(name):
    space, free = SPACES[name], {"b": 0} if name == "nested" else {}  # what cannot be masked does not count
    form = mask_form(space)
    mask = random_mask(form, np.random.default_rng(1), share=0.0)  # exactly one action
    only = space.sample(mask=sampling_mask(mask))
    for _ in range(50):
        action = space.sample()
        same = equal_nests({**action, **free}, {**only, **free}) if free else np.array_equal(action, only)
        assert form.allows(mask, action) == same


@pytest.mark.parametrize(
    ("space", "mask", "message"),
    [
        (Discrete(3), [1, 0], r"mask must have one entry for each of 3 actions, got shape \[2\]"),
        (Discrete(3), np.zeros(3), "mask must allow at least one action, got none"),
        (Discrete(3), [0, 2, 0], r"mask must be an array of 0 and 1, got array\(\[0, 2, 0\]\)"),
        (Discrete(3), ["a", "b", "c"], r"mask must be an array of 0 and 1, got \['a'"),
        (Discrete(2), [0.0, -np.inf], "mask must be an array of 0 and 1"),
        (MultiDiscrete([2, 3]), np.ones(4), r"mask must be a tuple of 2 masks, got an array of shape \[4\]"),
        (MultiDiscrete([2, 3]), (np.ones(2),), "mask must be a tuple of 2 masks, got "),
        (MultiDiscrete([2, 3]), {"a": 1}, "mask must be a tuple of 2 masks, got {'a': 1}"),
        (MultiDiscrete([2, 3]), (np.ones(2), np.ones(2)), r"mask\[1\] must have one entry for each of 3 actions"),
        (MultiDiscrete([2, 3]), (np.ones(2), np.zeros(3)), r"mask\[1\] must allow at least one action, got none"),
        (MultiBinary(2), np.ones(3), r"mask must have shape \[2\], as the action .*, got shape \[3\]"),
        (MultiBinary(2), [0, 3], "mask must be an array of 0, 1 and 2"),
        (MultiBinary(2), [0, 0, 1, 1], "mask must allow 0 or 1 for each bit, got neither for one"),
        (
            Dict(a=Discrete(2)),
            {"b": np.ones(2)},
            r"mask must be a dict with a mask for each of \['a'\], got keys \['b'\]",
        ),
        (Dict(a=Discrete(2)), {"a": np.zeros(2)}, r"mask\['a'\] must allow at least one action"),
        (Tuple([Box(0, 1, (2,))]), (np.ones(2),), r"mask\[0\] must be None, because continuous actions cannot be"),
    ],
)
def test_masks_that_do_not_fit_are_refused(space, mask, message):
    with pytest.raises(SpecError, match=message):
        mask_form(space).flat(mask)


def test_lists_and_other_numbers_are_masks_too():
    form = mask_form(MultiDiscrete([2, 3]))
    expected = [True, False, False, True, True]
    for mask in (([1, 0], [0, 1, 1]), [np.array([1.0, 0.0]), np.array([0, 1, 1], np.int8)], np.array(expected, "f4")):
        assert form.flat(mask).tolist() == expected
    square = mask_form(MultiDiscrete([2, 2])).flat(np.array([[1, 0], [1, 1]]))
    assert square.tolist() == [True, False, True, True]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_shipped_policies_act_in_all_spaces(name, masked):
    space = SPACES[name]
    space.seed(3)
    fixed = space.sample()
    for make in (lambda: RandomPolicy(space), lambda: Noop(space), lambda: constant(fixed, space)):
        check_policy(make, Box(0, 1, (2,)), space, masked=masked)


def test_a_random_policy_refuses_a_mask_that_allows_nothing():
    with pytest.raises(SpecError, match=r"mask\[1\] must allow at least one action, got none"):
        RandomPolicy(MultiDiscrete([2, 2])).act(None, (np.ones(2), np.zeros(2)))
