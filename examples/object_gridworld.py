"""Train in an object gridworld with its own ``take_turn``: agents walk along a line and freeze if they meet."""

import random
import sys
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import motet
from motet.world import from_objects


class Walker:
    def pov(self, world):
        return [self.at / world.size, *(self.at == other.at for other in world.walkers)]

    def get_action(self, state):  # motet replaces this method: its body does not run
        return random.randrange(3)

    def transition(self, world):
        state = self.pov(world)
        action = self.get_action(state)
        self.at = min(max(self.at + action - 1, 0), world.size - 1)
        self.frozen = 3 * (sum(other.at == self.at for other in world.walkers) > 1)
        self.add_memory(state, action, float(self.at == world.size - 1), False)

    def add_memory(self, state, action, reward, done):
        """Store a row; motet reads the same arguments."""


class Environment:
    max_turns = 50

    def __init__(self):
        self.world, self.agents = SimpleNamespace(size=6), [Walker() for _ in range(3)]

    def reset(self):
        self.world.walkers = self.agents
        for agent in self.agents:
            agent.at, agent.frozen = random.randrange(self.world.size), 0

    def take_turn(self):
        for agent in random.sample(self.agents, len(self.agents)):
            if agent.frozen:
                agent.frozen -= 1
            else:
                agent.transition(self.world)


def make():
    return from_objects(Environment(), actions=3)


if __name__ == "__main__":
    run, steps = Path(mkdtemp(prefix="motet-")) / "run", int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    result = motet.train(make, "dqn", motet.Settings(steps=steps, updates_per_step=0.25), run=run)
    print(f"{result.state} after {result.steps:,} steps")
    for who in ("random", run):
        print("return of all agents:", who, round(motet.evaluate(make, who, episodes=20).team().mean, 1))
