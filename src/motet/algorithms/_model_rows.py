"""Rows that hold transitions of a model: the successors of all robot actions, under profiles of human actions.

A *profile* is one action of each human. The acting halves of ``empower`` and ``attain`` query the model and cache the
answers. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Field
from motet.errors import ModelError, SettingError
from motet.world.coded import Bounded, CodedModel, Facts

__all__ = ["Answer", "AsksModel", "ModelQueries", "RowLayout"]

_MOST_PROFILES = 32


class AsksModel(Protocol):
    """Settings of an algorithm whose rows hold transitions of the model."""

    @property
    def profiles(self) -> Literal["drawn", "all"]:
        """Profiles of human actions in a row. ``drawn``: one drawn profile. ``all``: all profiles."""
        ...

    @property
    def successors(self) -> int:
        """Largest number of successors of a joint action."""
        ...

    @property
    def cache(self) -> int:
        """Number of queries of the model whose answers an actor remembers."""
        ...


class RowLayout(NamedTuple):
    """Sizes of the fields of a row.

    The distinct successors under a profile are numbered from 0. For each robot action there is a list of these numbers.
    """

    profiles: int
    robot_actions: int
    listed: int
    """Length of the list of each action."""
    distinct: int
    """Largest number of distinct successors of a profile."""
    size: int
    """Length of the code of a state."""
    dtype: str
    goals: int
    hold_bytes: int
    timed: bool
    """Whether transitions have durations."""
    drawn: int
    """Number of goals of each human that are drawn for a row; 0: all goals are listed."""

    @classmethod
    def of(cls, config: AsksModel, coded: CodedModel, drawn: int = 0) -> RowLayout:
        """Return the layout for a model; raise if the model cannot be learned with these settings.

        Args:
            config: the settings.
            coded: the model.
            drawn: number of goals of each human that are drawn for a row; 0: all goals are listed.
        """
        goals = len(coded.humans) * drawn if drawn else len(coded.weights)
        if not goals:
            raise SettingError(
                f"goals must be listed for this algorithm, got a sampler, a {type(coded.sampler.sampler).__name__}: "
                "use the algorithm empower_sampled"
            )
        profiles = math.prod(coded.actions[human] for human in coded.humans)
        if config.profiles == "all" and profiles > _MOST_PROFILES:
            raise SettingError(
                f"profiles must be 'drawn' where the humans have more than {_MOST_PROFILES} profiles of actions, got "
                f"'all' with {profiles}"
            )
        distinct = config.successors * coded.robot_actions
        if distinct > 255:
            raise SettingError(
                f"successors must be at most {255 // coded.robot_actions} with {coded.robot_actions} robot actions, "
                f"got {config.successors}"
            )
        return cls(
            profiles if config.profiles == "all" else 1, coded.robot_actions, config.successors, distinct, coded.size,
            coded.space.dtype.name, goals, -(-goals // 8), coded.timed, drawn,
        )  # fmt: skip

    def fields(self) -> dict[str, Field]:
        """Return the fields that hold the transitions."""
        p, r, s, k = self.profiles, self.robot_actions, self.listed, self.distinct
        durations = {"duration": Field((p, r, s), "float32")} if self.timed else {}
        return durations | {
            "successor": Field((p, k, self.size), self.dtype),  # the code of each distinct successor
            "count": Field((p,), "uint8"),  # number of distinct successors
            "ended": Field((p, k), "bool"),  # whether each successor is terminal
            "holds": Field((p, k, self.hold_bytes), "uint8"),  # which goals hold in each successor
            "number": Field((p, r, s), "uint8"),  # the successors of each robot action, by number
            "probability": Field((p, r, s), "float32"),
        }


class Answer(NamedTuple):
    """The answer of the model for a state and a profile."""

    fields: dict[str, npt.NDArray[Any]]
    """The fields of a row."""
    successors: list[Any]
    """The distinct successors, by number."""


class ModelQueries:
    """Queries of the model. Answers are cached by state and profile, up to a maximum number.

    Args:
        config: the settings.
        coded: the model.
        layout: sizes of the answers.
    """

    def __init__(self, config: AsksModel, coded: CodedModel, layout: RowLayout) -> None:
        self.coded, self.layout = coded, layout
        self.profiles = list(product(*(range(coded.actions[human]) for human in coded.humans)))
        """All profiles of the humans' actions."""
        self._goals = [] if layout.drawn else [goal for own in coded.goals for goal, _ in own]
        self.answers, self.facts = Bounded(config.cache), Bounded(config.cache)

    @property
    def known(self) -> float:
        """Share of the queries so far that were answered from the cache."""
        return self.answers.found / max(self.answers.asked, 1)

    def ask(self, key: bytes, state: Any, profile: Sequence[int]) -> Answer:
        """Return the successors of all robot actions under a profile. ``key``: the state's code as bytes."""
        answer: Answer = self.answers.made((key, tuple(profile)), lambda: self._query(state, profile))
        return answer

    def _query(self, state: Any, profile: Sequence[int]) -> Answer:
        coded, layout = self.coded, self.layout
        numbers: dict[Any, int] = {}
        number = np.zeros((layout.robot_actions, layout.listed), np.uint8)
        probability, lasts = (np.zeros((layout.robot_actions, layout.listed), np.float32) for _ in range(2))
        for action in range(layout.robot_actions):
            found = coded.outcomes(state, coded.joint(profile, action), layout.listed)
            for i, (p, successor, duration) in enumerate(found):
                number[action, i] = numbers.setdefault(successor, len(numbers))
                probability[action, i], lasts[action, i] = p, duration
        facts: list[Facts] = []
        for i, one in enumerate(numbers):
            try:
                facts.append(self.facts.made(one, lambda: coded.facts(one, self._goals)))  # noqa: B023
            except ModelError as error:
                action = int(np.argwhere((number == i) & (probability > 0))[0, 0])
                raise ModelError(f"{error} (after state {state!r}, actions {coded.joint(profile, action)})") from error
        code = np.zeros((layout.distinct, layout.size), layout.dtype)
        ended = np.zeros(layout.distinct, np.bool_)
        holds = np.zeros((layout.distinct, layout.hold_bytes), np.uint8)
        for i, one in enumerate(facts):
            code[i], ended[i] = one.code, one.ended
            holds[i, : len(one.holds)] = one.holds  # for listed goals
        count = np.array(len(facts), np.uint8)
        fields = {"successor": code, "count": count, "ended": ended, "holds": holds, "number": number,
                  "probability": probability}  # fmt: skip
        if layout.timed:
            fields["duration"] = lasts
        return Answer(fields, list(numbers))
