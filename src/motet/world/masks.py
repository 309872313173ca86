"""Find out which agents of a world have action masks."""

from __future__ import annotations

import numpy as np

from motet.masks import is_discrete, sampling_mask
from motet.world.contract import World

__all__ = ["masked_agents"]

_PROBED = 5
"""Maximum number of episodes played to find the agents that have action masks."""


def masked_agents(world: World) -> set[int]:
    """Return the agents that have action masks.

    Play random actions until every agent has had a turn, for at most five episodes and 1000 steps. One episode may not
    be enough, because agents may be absent from it.
    """
    seen: set[int] = set()
    found: set[int] = set()
    rng = np.random.default_rng(0)
    episodes = 1
    for _ in range(1000):
        if len(seen) == len(world.agents):
            break
        if not (group := world.group()):
            if episodes == _PROBED:
                break
            episodes += 1
            world.reset(episodes)
            continue
        actions = []
        for agent in group:
            seen.add(agent)
            mask, space = world.mask(agent), world.action_spaces[agent]
            if mask is None:
                actions.append(space.sample())
                continue
            found.add(agent)
            if is_discrete(space):
                actions.append(
                    np.asarray(getattr(space, "start", 0) + rng.choice(np.flatnonzero(mask)), space.dtype)[()]
                )
            else:
                actions.append(space.sample(mask=sampling_mask(mask)))
        world.act(actions)
        world.ended()
    return found
