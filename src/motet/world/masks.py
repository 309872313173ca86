"""Which agents of a world have action masks."""

from __future__ import annotations

import numpy as np

from motet.world.contract import World

__all__ = ["masked_agents"]

_PROBED = 5
"""Episodes that are played at most to see who has action masks."""


def masked_agents(world: World) -> set[int]:
    """The agents that have action masks: seen by playing until everybody had a turn, or for a while.

    Agents may be absent from an episode, so it plays more than one if it must.
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
            if mask is not None:
                found.add(agent)
                actions.append(
                    np.asarray(getattr(space, "start", 0) + rng.choice(np.flatnonzero(mask)), space.dtype)[()]
                )
            else:
                actions.append(space.sample())
        world.act(actions)
        world.ended()
    return found
