"""One mind: all robots of a model as one agent, beside humans who have goals and act by given policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from motet.errors import SettingError
from motet.seeds import freeze_rng, thaw_rng
from motet.world import End, ModelWorld, World
from motet.world.coded import CodedModel
from motet.worlds.contract import real

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OneMind", "UniformHumans"]

ByStage = float | Mapping[str, float]
"""A number, or a number for each stage of the robot by the stage's name."""


class OneMind(World):
    """The robots of a model as one agent, whose action is one action of each robot.

    The humans act inside the world. At the reset each of them draws a goal by weight, and acts by its policy for it.
    The agent observes the code of the state (:class:`~motet.world.coded.CodedModel`). It gets a reward of 1 for each
    human at the first step that leads to a state in which the human's goal holds. The world is made by algorithms that
    need a model (``motet train bushes --algorithm empower``), or by hand.

    Args:
        model: the model, or a factory of one.
        humans: the policies of the humans: a function ``(state, human, goal) -> probabilities``, or an object whose
            method ``policy`` is such a function, for example a solution of a plan. None: the model's
            ``towards(state, human, goal)``.
        goals: the humans' goals with weights, as in ``motet.plan.solve``. None: those of the model.
        human_epsilon: probability with which a human takes a random action; or its value in each stage of the robot,
            by the name of the stage. Without a stage, as in evaluations, the last value is used.
        goal_resample_prob: probability with which a human whose goal does not hold draws a new goal after a step; or
            its value in each stage. A new goal changes how the human acts. It does not change the reward, which is for
            the goals drawn at the reset.
        achieved_resample_prob: probability with which a human whose goal holds draws a new goal after a step; or its
            value in each stage.
        turns: truncate episodes after this many steps. None: no limit.
        human_agents: indices of the humans; None: those of the model.
        robot_agents: indices of the robots; None: those of the model. Other agents take action 0.
        believed_others_policy: what humans whose policies are learned (``attain``) believe about the actions of the
            others, as in ``motet.plan.Humans``: a function ``(state, agent, action) -> [(probability, profile)]``. A
            solution of a plan: they believe that the others act by the priors of this solution. None: they believe that
            the others act uniformly.

    >>> from motet.worlds import Bushes
    >>> world = OneMind(Bushes(horizon=3))
    >>> world.reset(seed=0)
    >>> world.agents, world.action_spaces, world.observe(0).tolist()
    (('robot_0',), (Discrete(5),), [0, 2, 0, 6, 1, 1, 1, 1, 1, 1, 1])
    """

    can_save = True

    def __init__(
        self,
        model: Any,
        humans: Any = None,
        goals: Any = None,
        human_epsilon: ByStage = 0.1,
        turns: int | None = None,
        human_agents: Sequence[int] | None = None,
        robot_agents: Sequence[int] | None = None,
        believed_others_policy: Any = None,
        goal_resample_prob: ByStage = 0.0,
        achieved_resample_prob: ByStage = 0.0,
    ) -> None:
        self.coded = coded = CodedModel(model, humans, goals, human_agents, robot_agents, believed_others_policy)
        self._world = ModelWorld(coded.model, goals=coded.given_goals, turns=turns)
        self._by_stage: dict[str, dict[str, float]] = {}
        self.human_epsilon = self._staged("human_epsilon", human_epsilon)
        self.goal_resample_prob = self._staged("goal_resample_prob", goal_resample_prob)
        self.achieved_resample_prob = self._staged("achieved_resample_prob", achieved_resample_prob)
        self._goals_change = any(map(_ever, (goal_resample_prob, achieved_resample_prob)))
        self._redrawn: dict[int, tuple[Any, int, Any]] = {}  # new goals by human, with state and seed of the draw
        self.agents = (coded.names[coded.robots[0]] if len(coded.robots) == 1 else "robots",)
        self.observation_spaces = (coded.space,)
        self.action_spaces = (gymnasium.spaces.Discrete(coded.robot_actions),)
        self._rng = np.random.default_rng()
        if not self._world.can_save:
            raise SettingError(f"the states of a {type(coded.model).__name__} must be plain values to be coded")

    @property
    def state(self) -> Any:
        """The state of the model now."""
        return self._world.state

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode, and draw the humans' goals."""
        if seed is not None:
            self._rng = np.random.default_rng([seed, 1])
        self._world.reset(seed)
        self._redrawn.clear()

    def _staged(self, name: str, given: ByStage) -> float:
        """Check a probability that may differ between stages; return its value in the last stage."""
        by_stage = given if isinstance(given, Mapping) else {"": given}
        if not by_stage:
            raise SettingError(f"{name} must have a value for each stage, got none")
        values = {stage: real(name, value, 0, 1) for stage, value in by_stage.items()}
        if isinstance(given, Mapping):
            self._by_stage[name] = values
        return list(values.values())[-1]

    def set_stage(self, stage: str) -> None:
        """Use the probabilities of a stage of the robot, as far as they differ between stages."""
        for name, values in self._by_stage.items():
            if stage not in values:
                raise SettingError(f"{name} must have a value for each stage, got {', '.join(values)} without {stage}")
            setattr(self, name, values[stage])

    @property
    def goals(self) -> dict[int, Any]:
        """The goals by which the humans act now."""
        return self._world.drawn_goals | {human: goal for human, (_, _, goal) in self._redrawn.items()}

    def _draw(self, human: int, state: Any, seed: int) -> None:
        """Draw a new goal for a human."""
        drawn = self.coded.sampler.draw(state, 1, seed)[self.coded.humans.index(human)]
        self._redrawn[human] = state, seed, drawn[0][0]

    def _redraw(self, goals: Mapping[int, Any]) -> None:
        """Let some humans draw new goals after a step."""
        for human in self.coded.humans:
            holds = goals[human].is_achieved(self.state)
            if self._rng.random() < (self.achieved_resample_prob if holds else self.goal_resample_prob):
                self._draw(human, self.state, int(self._rng.integers(2**63)))

    def group(self) -> Sequence[int]:
        """The mind, while the episode runs."""
        return (0,) if self._world.group() else ()

    def observe(self, agent: int) -> NDArray[Any]:
        """Return the code of the state."""
        return self.coded.code(self.state)

    def act(self, actions: Sequence[Any]) -> None:
        """Draw the next state, given the action of the mind."""
        coded, state = self.coded, self.state
        goals, profile = self.goals, []
        for human in coded.humans:
            draws = self._rng.random(2)
            shares = coded.policy(state, human, goals[human])
            if draws[0] < self.human_epsilon:
                shares = np.full(len(shares), 1 / len(shares))
            profile.append(min(int(np.searchsorted(shares.cumsum(), draws[1], "right")), len(shares) - 1))
        joint = coded.joint(profile, int(actions[0]))
        self._world.act([joint[agent] for agent in self._world.group()])
        if self._goals_change:
            self._redraw(goals)

    def reward(self, agent: int) -> float:
        """Return the number of humans whose goal was reached since the last call."""
        return self._world.reward(self.coded.robots[0])

    def ended(self) -> Sequence[End]:
        """Return the end of the mind, once, when the episode is over."""
        return [end._replace(agent=0) for end in self._world.ended()[:1]]

    def get_state(self) -> Any:
        """Return everything that determines what happens next, as plain values."""
        redrawn = tuple((human, where, seed) for human, (where, seed, _) in self._redrawn.items())
        return (self._world.get_state(), freeze_rng(self._rng), redrawn)

    def set_state(self, state: Any) -> None:
        """Continue from what :meth:`get_state` returned."""
        world, stream, *redrawn = state  # earlier versions did not save the latter
        self._world.set_state(world)
        self._rng = thaw_rng(stream)
        self._redrawn.clear()
        for drawn in (drawn for part in redrawn for drawn in part):
            self._draw(*drawn)

    @property
    def metadata(self) -> Any:
        """The model's metadata, for the speed of films."""
        return self._world.metadata

    def render(self) -> NDArray[np.uint8] | None:
        """Return the model's picture of the state; None if it draws none."""
        return self._world.render()

    def close(self) -> None:
        """Close the model, if it can be closed."""
        self._world.close()


def _ever(given: ByStage) -> bool:
    """Whether a probability is above 0 in any stage."""
    return any(given.values()) if isinstance(given, Mapping) else bool(given)


class UniformHumans(OneMind):
    """The robots of a model as one agent, beside humans who act at random, to learn policies of the humans.

    The algorithm ``attain`` learns in this world. The arguments are those of :class:`OneMind`.
    """

    def __init__(
        self,
        model: Any,
        goals: Any = None,
        turns: int | None = None,
        human_agents: Sequence[int] | None = None,
        robot_agents: Sequence[int] | None = None,
        believed_others_policy: Any = None,
    ) -> None:
        super().__init__(model, "uniform", goals, 0.0, turns, human_agents, robot_agents, believed_others_policy)
