"""Compute exactly how a robot can free a human, and how much reward a human who moves at random loses.

The human is behind a door, the key is on the robot's side. Run: python examples/plan_rooms.py
"""

import numpy as np

from motet.plan import Robot, best_response, enumerate_states, regret, solve
from motet.worlds import Rooms


def main() -> None:
    rooms = Rooms("freeing", horizon=14)

    # Enumerate all reachable states with their joint actions and successors.
    graph = enumerate_states(rooms, rewards=True)
    print(graph)

    # Every tile is a possible goal of the human; the robot maximises the human's power, not a single goal.
    solution = solve(graph, {0: rooms.goals(0)}, robot=Robot(beta=100))
    state = graph.states[0]
    print("the robot first goes", ["up", "down", "left", "right"][solution.policy(state, "robot_0").argmax()])

    # Play episodes: the human's goal is the far corner, the robot follows the plan.
    policies = {
        "human_0": solution.acting("human_0", "3,5", lambda seen: rooms.state_of(seen, "human_0")),
        "robot_0": solution.acting("robot_0", None, lambda seen: rooms.state_of(seen, "robot_0")),
    }
    arrived = 0
    for episode in range(100):
        observations, _ = rooms.reset(seed=episode)
        for policy in policies.values():
            policy.reset(seed=episode)
        there = False
        while rooms.agents:
            actions = {name: policies[name].act(observations[name]) for name in rooms.agents}
            observations, *_ = rooms.step(actions)
            there = there or rooms.where(rooms.get_state(), 0) == (3, 5)
        arrived += there
    exact = solution.attainment(state, "human_0", "3,5")
    print(f"the human got there in {arrived} of 100 episodes; the plan says {exact:.0%}")

    # Rewards instead of goals: how much does a human that moves at random lose, beside a robot that also moves at
    # random?
    best = best_response(graph, "human_0")
    wandering = regret(np.full((len(graph), 4), 0.25), best)
    print(f"random moves lose {wandering.expected:.2f} of {best.value[0]:.2f} per episode")


if __name__ == "__main__":
    main()
