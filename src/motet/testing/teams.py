"""Check that the agents of a team share no memory.

They are played alone, beside agents of other team objects, and from one team object. Their actions must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from motet.errors import SpecError
from motet.nest import Nest, equal_nests, map_nest
from motet.policies.teams import TeamPolicy, team_policy
from motet.policy import PolicySpec, WorldDescription
from motet.seeds import seed_for
from motet.streams import Streams, StreamUser, streams_returned

__all__ = ["check_separate"]


class _Apart(TeamPolicy):
    """Agents of one team object, each with a separate random stream. Any other difference comes from shared memory."""

    def reset(self, seed: int) -> None:
        self._each = {agent: Streams(StreamUser(agent)) for agent in self._agents}
        self._spaces = dict[str, Any]()  # by agent: the state of the generator of the spaces
        for agent, index in self._agents.items():
            self._each[agent].begin(seed_for(seed, index))
            self._seed_spaces(seed_for(seed, index))
            self._keep(agent)
        with self._of(next(iter(self._agents))):
            self._reset_team()
        for agent, member in self._members.items():
            with self._of(agent):
                member.reset()

    def _keep(self, agent: str) -> None:
        if self._rng is not None:
            self._spaces[agent] = self._rng.bit_generator.state

    @contextmanager
    def _of(self, agent: str) -> Iterator[None]:
        """Draw from the streams of one agent within the block."""
        if self._rng is not None:
            self._rng.bit_generator.state = self._spaces[agent]
        with streams_returned():
            self._each[agent].enter()
            yield
        self._keep(agent)

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        actions = {}
        for agent, observation in observations.items():
            with self._of(agent):
                actions[agent] = self._step(agent, observation, masks.get(agent))
        return actions


def check_separate(spec: PolicySpec, description: WorldDescription, observations: list[Nest], masks: list[Any]) -> None:
    """Raise a SpecError if agents act differently alone, beside agents of other team objects, or in the same object."""
    everybody = {agent: index for index, agent in enumerate(description.agents)}

    def seen(index: int, step: int) -> tuple[Nest, Any]:
        """Return the observation and mask of an agent in a step, different ones for each agent."""
        which = (step * len(everybody) + index) % len(observations)
        return observations[which], masks[which]

    def actions(policies: Mapping[str, _Apart]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {agent: [] for agent in policies}
        for policy in dict.fromkeys(policies.values()):
            policy.reset(1)
        for step in range(len(observations)):
            for agent, policy in policies.items():
                observation, mask = seen(everybody[agent], step)
                observation = map_nest(np.copy, observation)
                given = {} if mask is None else {agent: mask}
                found[agent].append(policy.act_jointly({agent: observation}, given)[agent])
        return found

    def team(*agents: str) -> _Apart:
        made = team_policy(spec, description, {agent: everybody[agent] for agent in agents}, kind=_Apart)
        assert isinstance(made, _Apart)
        return made

    alone, again = ({agent: actions({agent: team(agent)})[agent] for agent in everybody} for _ in range(2))
    if not equal_nests(alone, again):
        return  # an agent is not deterministic even when alone: another clause covers that
    one = team(*everybody)
    for how, together in (
        ("beside agents of other team objects", actions({agent: team(agent) for agent in everybody})),
        ("beside agents of the same team object", actions(dict.fromkeys(everybody, one))),
    ):
        for agent in everybody:
            if not equal_nests(alone[agent], together[agent]):
                raise SpecError(
                    f"broken clause: the agents of a team share no memory. {agent} does not act {how} as it does "
                    "alone; fix: keep an agent's memory in the object that agent_policy returns, or declare the team "
                    "as shared, with shared=yes or PolicySpec(…, shared=True)"
                )
