"""``check_model``: checks a user's model, as it is used for planning and as a world."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from motet.errors import ModelError, SettingError
from motet.testing.world import check_world
from motet.world.goal_sampler import GoalSampler, goal_numbers
from motet.world.model import ModelWorld, agents_and_actions, is_model, optional_attribute

__all__ = ["check_model"]

_SAMPLED, _DRAWS = 20, 8  # states in which goals are drawn, and goals of a human in each of them
_JOINTS = 64  # maximum number of joint actions to check in a state; if there are more, some are drawn at random


def check_model(factory: Callable[[], Any], *, states: int = 100, episodes: int = 2, seed: int = 0) -> None:
    """Raise a ModelError if the model that ``factory()`` makes breaks the contract of models.

    Checks the transitions of the first ``states`` states that are found from the initial state, and everything else
    that the model has: rewards, durations, goals, a sampler of goals, encodings, pictures. Then plays ``episodes``
    episodes of its world (:class:`~motet.world.ModelWorld`) through ``check_world``.

    >>> from motet.worlds import Bushes
    >>> check_model(Bushes)
    """
    if states < 1:
        raise SettingError(f"states must be an int >= 1, got {states}")
    model, other = factory(), factory()
    if not (is_model(model) and is_model(other)) or model is other:
        raise SettingError(
            "the factory must make a new model, with get_state, set_state and transition_probabilities, at each call, "
            f"got {model!r} and {other!r}"
        )
    found = list(itertools.islice(_ModelCheck(model, other, seed).walk(), states))
    _check_codes(model, found)
    _check_sampler(model, found)
    _check_pictures(model, found)
    check_world(lambda: ModelWorld(factory()), episodes, seed)


class _ModelCheck:
    """Asks a model, and another one of the same factory, for the transitions of the states that it finds."""

    def __init__(self, model: Any, other: Any, seed: int) -> None:
        self.model, self.other = model, other
        self.keys, self.names, self.actions = agents_and_actions(model)
        agents_and_actions(other)
        self.rng = np.random.default_rng(seed)
        self.root = model.get_state()
        self.joints = list(itertools.product(*map(range, self.actions))) if math.prod(self.actions) <= _JOINTS else []

    def walk(self) -> Iterator[Any]:
        """The states, breadth first, each of them checked."""
        self._check_root()
        known, queue = {self.root}, [self.root]
        for state in queue:
            yield state
            for successor in self._follow_up(state):
                if successor not in known:
                    known.add(successor)
                    queue.append(successor)

    def _check_root(self) -> None:
        try:
            hash(self.root)
        except TypeError:
            _broken("hashable states", f"{self.root!r} cannot be hashed", "use tuples of numbers, strings or tuples")
        self.model.set_state(self.root)
        if self.model.get_state() != self.root:
            _broken("get_state and set_state", f"{self.root!r} became {self.model.get_state()!r}", "keep what is set")
        if self.other.get_state() != self.root:
            _broken(
                "one initial state",
                f"reset() led to {self.root!r}, and in another model to {self.other.get_state()!r}",
                "begin in the same state, or derive it from the seed of reset(seed=…)",
            )

    def _follow_up(self, state: Any) -> list[Any]:
        joints: Sequence[Sequence[int]] = self.joints or [
            [int(self.rng.integers(count)) for count in self.actions] for _ in range(_JOINTS)
        ]
        answers = [self._ask(state, list(joint)) for joint in joints]
        ends = [answer is None for answer in answers]
        if any(ends) and not all(ends):
            _broken(
                "terminal states",
                f"in {state!r} transition_probabilities is None for {sum(ends)} of {len(ends)} joint actions",
                "return None for all joint actions of a terminal state, or for none",
            )
        return [successor for answer in answers if answer for p, successor in answer if p > 0]

    def _ask(self, state: Any, joint: list[int]) -> Any:
        at = f"in {state!r} with actions {joint}"
        given = joint[:]
        answer = self.model.transition_probabilities(state, given)
        if given != joint:
            _broken("arguments stay as they are", f"{at} the actions became {given}", "copy them before changing them")
        self.model.set_state(self.root)
        self.other.set_state(state)
        for name, again in (
            ("a second call", self.model.transition_probabilities(state, joint[:])),
            ("another model", self.other.transition_probabilities(state, joint[:])),
        ):
            if again != answer:
                _broken(
                    "transitions depend on the state alone",
                    f"{at} the first answer is {answer!r}, that of {name} is {again!r}",
                    "use the arguments, not the model's current state or a random stream",
                )
        if answer is not None:
            self._check_chances(answer, at)
            self._check_extras(state, joint, answer, at)
        return answer

    def _check_chances(self, answer: Any, at: str) -> None:
        chances = [float(p) for p, _ in answer]
        if any(not p >= 0 for p in chances) or abs(math.fsum(chances) - 1) > 1e-9:
            _broken("probabilities", f"{at} they are {chances}", "return probabilities >= 0 with the sum 1")
        for _, successor in answer:
            if type(successor) is not type(self.root):
                _broken(
                    "one type of state",
                    f"{at} a successor is a {type(successor).__name__}, the first state a {type(self.root).__name__}",
                    "use one hashable type for all states",
                )

    def _check_extras(self, state: Any, joint: list[int], answer: Any, at: str) -> None:
        for name in ("transition_rewards", "transition_durations"):
            ask = getattr(self.model, name, None)
            if ask is None:
                continue
            values = ask(state, joint[:], answer)
            if len(values) != len(answer):
                _broken(name, f"{at} it gave {len(values)} values for {len(answer)} transitions", "give one for each")
            shape = (len(answer), len(self.keys)) if name == "transition_rewards" else (len(answer),)
            array = np.asarray(values, np.float64)
            if array.shape != shape or not np.isfinite(array).all():
                _broken(name, f"{at} it gave {values!r}", f"return finite numbers of shape {list(shape)}")
            if name == "transition_durations" and (array < 0).any():
                _broken(name, f"{at} it gave {values!r}", "return durations >= 0")


def _check_codes(model: Any, states: Sequence[Any]) -> None:
    """Check that everything that encodes a state has an inverse, if it needs one, and keeps its shape."""
    for there, back in (("encode_state", "decode_state"), ("encode", "decode")):
        if not hasattr(model, there):
            continue
        coded_states = [getattr(model, there)(state) for state in states]
        if there == "encode":
            for state, coded in zip(states, coded_states, strict=True):
                _check_same_shape(np.asarray(coded), np.asarray(coded_states[0]), state)
        for state, coded in zip(states, coded_states, strict=True):
            if hasattr(model, back) and (decoded := getattr(model, back)(coded)) != state:
                _broken(f"{there} and {back}", f"{state!r} became {decoded!r}", f"make {back} the inverse of {there}")
    if not (hasattr(model, "observe") and hasattr(model, "state_of")):
        return
    for state in states:
        model.set_state(state)
        for key in getattr(model, "possible_agents", model.agents):
            if (shown := model.state_of(model.observe(key), key)) != state:
                _broken("observe and state_of", f"{state!r} became {shown!r} for {key!r}", "make them inverse")


def _check_sampler(model: Any, states: Sequence[Any]) -> None:
    """Check that the goals that a model draws have weights and numbers, and are the same for the same seed."""
    given = optional_attribute(model, "possible_goal_sampler")
    if given is None:
        return
    sampler = GoalSampler(given, optional_attribute(model, "human_agent_indices") or (), agents_and_actions(model)[1])
    size = None
    for seed, state in enumerate(states[:_SAMPLED]):
        drawn, again = (
            [(goal_numbers(model, goal), weight) for own in sampler.draw(state, _DRAWS, seed) for goal, weight in own]
            for _ in range(2)
        )
        for (numbers, weight), (others, other) in zip(drawn, again, strict=True):
            size = len(numbers) if size is None else size
            if not len(numbers) == len(others) == size:
                _broken(
                    "encode_goal", f"goals of {state!r} have {len(numbers)} numbers, the first one has {size}",
                    "encode all goals alike",
                )  # fmt: skip
            if weight != other or not np.array_equal(numbers, others):
                _broken(
                    "a sampler draws by the seed alone",
                    f"in {state!r} it drew {numbers.tolist()} and then {others.tolist()} from one seed",
                    "draw from a parameter rng, from random or from numpy.random, and keep no generator",
                )


def _check_same_shape(array: Any, first: Any, state: Any) -> None:
    if (array.shape, array.dtype) != (first.shape, first.dtype):
        _broken(
            "encode",
            f"{state!r} is encoded as {array.dtype} {list(array.shape)}, the first state as {first.dtype} "
            f"{list(first.shape)}",
            "return arrays of one shape and dtype",
        )


def _check_pictures(model: Any, states: Sequence[Any]) -> None:
    if not hasattr(model, "picture"):
        return
    for state in (states[0], states[-1]):
        picture = model.picture(state)
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            _broken("picture", f"that of {state!r} is {type(picture).__name__}", "return uint8 [height, width, 3]")
        if hasattr(model, "where"):
            _check_position(model, state, picture)


def _check_position(model: Any, state: Any, picture: Any) -> None:
    size = getattr(model, "tile_pixels", 16)
    for agent in range(len(getattr(model, "possible_agents", model.agents))):
        row, column = model.where(state, agent)
        if not (0 <= row < picture.shape[0] // size and 0 <= column < picture.shape[1] // size):
            _broken("where", f"agent {agent} in {state!r} is at {(row, column)}", "return a tile of the picture")


def _broken(clause: str, what: str, mend: str) -> NoReturn:
    raise ModelError(f"broken clause '{clause}': {what}; fix: {mend}")
