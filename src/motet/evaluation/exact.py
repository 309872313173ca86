"""Comparison of learned empowerment with the exact solution of the same model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from motet.algorithms.empower import EmpowerBehaviour
from motet.errors import SettingError
from motet.plan import Robot, Solution, enumerate_states, evaluate_robot, solve_robot
from motet.plan.picture import on_the_world, panels_of
from motet.policies.entries import load_policies
from motet.policy import BehaviourPolicy
from motet.world.coded import CodedModel

if TYPE_CHECKING:
    from motet.training.evaluator import Outcome

__all__ = ["EmpowermentGap", "ExactEmpowerment", "behaviour_of", "compare_exact", "share_of_the_way"]

_NEAR = 1.01  # an action counts as good as the best one if their Q_r differ by at most this factor


@dataclass(frozen=True)
class EmpowermentGap:
    """The distance of a learned robot from the exact one. States are weighted by how often the learned robot visits
    them."""

    share: float
    """Exact value V_r of the learned robot in the first state, scaled so that a robot that acts at random has 0 and the
    exact robot has 1."""
    policy_error: float
    """Root mean squared error of the robot's policy pi_r."""
    random_error: float
    """Root mean squared error of the policy of a robot that acts at random."""
    agreement: float
    """Share of the visits in which the likeliest action is within 1 % of the best by the exact Q_r."""
    attainment_error: float
    """Mean absolute error of the attainments V_e over all states and goals, not weighted."""
    power_error: float
    """Mean absolute error of the humans' power X_h over all states and humans, not weighted."""
    value: float
    """Value V_r of the first state, as learned."""
    exact_value: float
    """Value V_r of the first state for the exact robot."""

    def __str__(self) -> str:
        relative = self.policy_error / self.random_error if self.random_error else 0.0
        return (
            f"{self.share:.3f} of the way from a random robot to the exact one; error of the policy "
            f"{self.policy_error:.4f} ({relative:.2f} of a random robot's), of V_e {self.attainment_error:.4f}, "
            f"of X_h {self.power_error:.4f}; agreement {self.agreement:.3f}; V_r {self.value:.3f}, exact "
            f"{self.exact_value:.3f}"
        )


class ExactEmpowerment:
    """The exact solution for a learner's model and settings, to compare versions of the learned policy with.

    Args:
        behaviour: the acting half of a learner.
        max_states: raise if the model has more states than this.
        goals: needed for a model that samples goals: all goals by human. The weight of goal g is then p_g * w_g, its
            probability times the weight that the model draws with it. None: the goals that the model lists.
    """

    def __init__(
        self, behaviour: EmpowerBehaviour, max_states: int = 200_000, goals: Mapping[int, Any] | None = None
    ) -> None:
        self._config, self.coded = behaviour.config, behaviour.coded
        coded: CodedModel = self.coded
        self.graph = enumerate_states(coded.model, max_states=max_states)
        self.codes = np.stack([coded.code(state) for state in self.graph.states])
        config = self._config
        self._settings: Mapping[str, Any] = {
            "gamma": config.nominal_human_gamma,
            "rho": config.nominal_human_rho,
            "achieved": config.achieved,
            "human_agents": coded.humans,
            "robot_agents": coded.robots,
        }
        self._robot = Robot(
            config.nominal_beta, zeta=config.zeta, xi=config.xi, eta=config.eta, gamma=config.nominal_gamma,
            terminal_robot_value=config.terminal_robot_value,
        )  # fmt: skip
        self._goals = {human: list(own) for human, own in coded.listed(goals).items()}
        self.solution = solve_robot(self.graph, self._goals, coded.policy, self._robot, **self._settings)
        random = np.full((len(self.graph), coded.robot_actions), 1 / coded.robot_actions)
        self._random = random, self.evaluated(random)

    def evaluated(self, policy: NDArray[np.float64]) -> Solution:
        """Return the exact values of a policy of the robot, ``[states, robot actions]``."""
        return evaluate_robot(self.graph, policy, self._goals, self.coded.policy, self._robot, **self._settings)

    def gap(self, behaviour: EmpowerBehaviour) -> EmpowermentGap:
        """Compare the version of the policy that the behaviour has loaded with the exact solution."""
        inner, exact = ~self.graph.terminal, self.solution.arrays
        policy, best = behaviour.probabilities(self.codes), exact["robot_policy"]
        found, (random, by_chance) = self.evaluated(policy), self._random
        visits = found.chain().visits()[inner]

        def error(one: NDArray[np.float64]) -> float:
            return float(np.sqrt(np.average(((one - best)[inner] ** 2).mean(1), weights=visits)))

        q = exact["robot_q"][inner]
        chosen = np.take_along_axis(q, policy[inner].argmax(1)[:, None], 1)[:, 0]
        first, last, mine = (float(one.arrays["robot_value"][0]) for one in (by_chance, self.solution, found))
        asked = {human: [goal for goal, _ in own] for human, own in self._goals.items()}
        attained = np.abs(behaviour.attainments(self.codes, asked) - exact["attainment"])[inner]
        powers = np.abs(behaviour.powers(self.codes) - exact["power"])[inner]
        return EmpowermentGap(
            share=(mine - first) / (last - first),
            policy_error=error(policy),
            random_error=error(random),
            agreement=float(np.average(chosen >= q.max(1) * _NEAR, weights=visits)),
            attainment_error=float(attained.mean()),
            power_error=float(powers.mean()),
            value=float(behaviour.powers_and_values(self.codes[:1])[1][0]),
            exact_value=last,
        )

    def picture(self, behaviour: EmpowerBehaviour, path: str | os.PathLike[str] | None = None) -> NDArray[np.uint8]:
        """Draw the humans' power, and the robot's value and policy: the exact ones above the learned ones.

        The picture shows means over the states that the exact robot visits. The model must have ``picture(state)`` and
        ``where(state, agent)``.
        """
        graph, exact = self.solution.graph, self.solution.arrays
        panels = panels_of(graph, exact["power"], exact["robot_value"], exact["robot_policy"], "exact: ")
        panels += panels_of(
            graph, *behaviour.powers_and_values(self.codes), behaviour.probabilities(self.codes), "learned: "
        )
        title = "Means over the states that the exact robot visits"
        return on_the_world(self.coded.model, graph, self.solution.chain().visits(), panels, title, path, rows=2)


_exact = WeakKeyDictionary[CodedModel, ExactEmpowerment]()
"""The exact solutions of the models whose evaluations this process plays."""


def share_of_the_way(outcome: Outcome) -> float:
    """Return the share of the way to the exact robot: a score for the evaluations of a run of ``empower``.

    Its line in ``evaluation.jsonl`` also gets the other numbers of the comparison, as ``exact``::

        motet train bushes --algorithm empower --evaluate-every 2000 --score motet.evaluation.exact:share_of_the_way
    """
    behaviour = next(iter(outcome.behaviours), None)
    if not isinstance(behaviour, EmpowerBehaviour):
        raise SettingError(f"score must be of a run of the algorithm empower, got one that learns {behaviour!r}")
    if behaviour.coded not in _exact:
        _exact[behaviour.coded] = ExactEmpowerment(behaviour)
    gap = _exact[behaviour.coded].gap(behaviour)
    outcome.notes["exact"] = asdict(gap)
    return gap.share


def compare_exact(
    run: str | os.PathLike[str] | BehaviourPolicy,
    *,
    trust: bool = False,
    picture: str | os.PathLike[str] | None = None,
) -> EmpowermentGap:
    """Compare a run of ``empower``, or its policy, with the exact solution of its model.

    ::

        print(compare_exact("runs/bushes-empower-1", picture="exact.png"))

    Args:
        run: the run directory, one of its checkpoints, or a policy of ``load_policies``.
        trust: allow the run to name a model outside of motet, whose code is then imported and run.
        picture: file for a picture of power, value and policy, the exact ones above the learned ones. The model must
            have ``picture(state)`` and ``where(state, agent)``.
    """
    behaviour = behaviour_of(run, trust=trust)
    exact = ExactEmpowerment(behaviour)
    if picture is not None:
        exact.picture(behaviour, picture)
    return exact.gap(behaviour)


def behaviour_of(run: str | os.PathLike[str] | BehaviourPolicy, *, trust: bool = False) -> EmpowerBehaviour:
    """Return the acting half of a run of ``empower``, with its newest weights."""
    policies = [run] if isinstance(run, BehaviourPolicy) else list(load_policies(run, trust=trust).values())
    behaviour = policies[0].behaviour if isinstance(policies[0], BehaviourPolicy) else None
    if not isinstance(behaviour, EmpowerBehaviour):
        raise SettingError(f"run must be a run of the algorithm empower, got {run!r}")
    return behaviour
