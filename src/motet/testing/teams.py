"""Whether the agents of a team share memory: found by playing them alone, side by side, and from one team object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from motet.errors import SpecError
from motet.nest import Nest, map_nest
from motet.policies.teams import Streams, TeamPolicy, team_policy
from motet.policy import PolicySpec, WorldDescription
from motet.seeds import seed_for

__all__ = ["check_separate"]


class _Apart(TeamPolicy):
    """Agents that come from one team object, but draw as if each had its own: whatever else differs is memory."""

    def reset(self, seed: int) -> None:
        self._each = {agent: Streams(seed_for(seed, index), self._rng) for agent, index in self._agents.items()}
        with next(iter(self._each.values())).taken():
            self._reset_team()
        for agent, member in self._members.items():
            with self._each[agent].taken():
                member.reset()

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        actions = {}
        for agent, observation in observations.items():
            with self._each[agent].taken():
                actions[agent] = self._step(agent, observation, masks.get(agent))
        return actions


def check_separate(spec: PolicySpec, description: WorldDescription, observations: list[Nest], masks: list[Any]) -> None:
    """The agents of a team act alike alone, beside others from team objects of their own, and from the same object."""
    everybody = {agent: index for index, agent in enumerate(description.agents)}

    def seen(index: int, step: int) -> tuple[Nest, Any]:
        """Each sees something else."""
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
    if not all(map(_same, alone.values(), again.values())):
        return  # not even alone does an agent act twice alike: that is another clause
    one = team(*everybody)
    for how, together in (
        ("beside agents of other team objects", actions({agent: team(agent) for agent in everybody})),
        ("beside agents of the same team object", actions(dict.fromkeys(everybody, one))),
    ):
        for agent in everybody:
            if not all(map(_same, alone[agent], together[agent])):
                raise SpecError(
                    f"the agents of a team share no memory: broken; {agent} acts otherwise {how} than alone. Keep what "
                    "an agent knows in the object that agent_policy gives, or say that the team is shared: shared=yes, "
                    "PolicySpec(…, shared=True)"
                )


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b))
