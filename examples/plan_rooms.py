"""Plan exactly how a robot can free a human, and see what a human who wanders about would lose.

The human is behind a door, the key is on the robot's side. Run: python examples/plan_rooms.py
"""

import numpy as np

from motet.plan import Robot, best_response, enumerate_states, regret, solve
from motet.worlds import Rooms


def main() -> None:
    rooms = Rooms("freeing", horizon=14)

    # Everything that can happen, once: states, joint actions, what may follow.
    graph = enumerate_states(rooms, rewards=True)
    print(graph)

    # The human may want to stand on any tile; the robot serves its power to do so, not any one wish.
    solution = solve(graph, {0: rooms.goals(0)}, robot=Robot(beta=100))
    state = graph.states[0]
    print("the robot first goes", ["up", "down", "left", "right"][solution.policy(state, "robot_0").argmax()])

    # Play it: the human wants to the far corner, the robot does what was planned.
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

    # Rewards instead of goals: what does a human lose who wanders about, while the robot does so too?
    best = best_response(graph, "human_0")
    wandering = regret(np.full((len(graph), 4), 0.25), best)
    print(f"wandering loses {wandering.expected:.2f} of {best.value[0]:.2f} an episode")


if __name__ == "__main__":
    main()
