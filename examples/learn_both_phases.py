"""Learn how two humans pursue their goals, then a robot that empowers them, and compare both with the exact plan."""

import functools
import sys
import tempfile
from pathlib import Path

import numpy as np

from motet import Settings, train
from motet.algorithms import AttainConfig, EmpowerConfig
from motet.evaluation.exact import compare_exact
from motet.plan import Humans, enumerate_states, solve
from motet.policies.entries import load_policies
from motet.policies.humans import learned_humans
from motet.worlds import Bushes, OneMind

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
bushes = functools.partial(Bushes, horizon=4)
settings = Settings(steps=steps, actors=2, updates_per_step=1.0)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        train(bushes, AttainConfig(), settings, run=runs / "humans")
        humans = learned_humans(runs / "humans")
        model = bushes()
        goals = {human: model.goals(human) for human in model.human_agent_indices}
        exact = solve(enumerate_states(model), goals, Humans(beta=10.0, gamma=0.95), robot=None)
        differences = [
            np.abs(humans.policy(state, human, goal) - exact.policy(state, human, goal)).sum() / 2
            for state in exact.graph.states
            if state[0] < model.horizon
            for human, own in goals.items()
            for goal, _ in own
        ]
        print(f"total variation between learned and exact policies of the humans: {np.mean(differences):.3f}")

        world = functools.partial(OneMind, bushes, humans=humans)
        result = train(world, EmpowerConfig(), settings, run=runs / "robot")
        print(f"done after {result.steps:,} steps and {result.updates['robot_0']:,} updates of the robot")
        print(compare_exact(load_policies(runs / "robot", world=world)["robot_0"]))
