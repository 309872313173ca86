"""Where a run on a cluster meets its limit: bytes, messages and seconds per second, from costs that were measured.

Every number can be replaced by one's own; `motet bench ray` and `motet bench train` measure some of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Measured on two cores, Ray 2.60: simple_spread, DQN, networks of 64-64. The last two are chosen."""

    row_bytes: int = 96  # 18 floats, action, reward, meta word
    weights_bytes: int = 4 * 5_712  # of a policy
    state_bytes: int = 4 * 22_848  # weights, target, two moments
    message_s: float = 0.001  # of a core, on either side, for one block or look, Ray's own threads included
    row_s: float = 0.6e-6  # of a core, for one row through a remote writer
    update_s: float = 0.0005  # of a core, for one update of one agent in a stack
    network_bytes_s: float = 1.25e8  # of a node: 1 Gbit/s
    cores: int = 16  # of a node


def load(
    agents: int, costs: Costs, actors: int, learners: int, steps_s: float, age_s: float, keep_s: float = 2.0
) -> dict[str, float]:
    """Load by part, as a share of what it can do; ``steps_s``: of each agent, in all worlds together."""
    places, nodes = actors + learners, max(1.0, (actors + learners) / costs.cores)
    blocks_s = actors * learners / age_s
    rows_s = agents * steps_s
    edition = costs.weights_bytes * agents / learners
    to_learner = rows_s / learners * costs.row_bytes
    versions = (
        nodes * edition * min(steps_s / 10, 1 / age_s)
    )  # every ten updates, at most one a block; once for each node, whoever asks there
    updates = agents / learners * steps_s * costs.update_s
    return {
        "a learner's core": updates + blocks_s / learners * costs.message_s + rows_s / learners * costs.row_s,
        "a learner's network": (to_learner + versions) / costs.network_bytes_s,
        "an actor's core, for sending": blocks_s / actors * costs.message_s,
        "the driver's core": min(places / max(0.1, 0.002 * places), 500.0) * costs.message_s,
        "the driver's network": agents * costs.state_bytes / keep_s / costs.network_bytes_s,
        "messages in all, per second": blocks_s,
    }


AGES = {10: 0.02, 100: 0.1, 1000: 1.0}  # block_age_s: with many learners an actor sends to all of them


def main() -> None:
    """Three sizes: a few machines, and many."""
    costs = Costs()
    plans = {10: (2, 5, 500.0), 100: (8, 50, 500.0), 1000: (16, 500, 500.0)}
    for agents, (actors, learners, steps_s) in plans.items():
        print(
            f"{agents} agents, {actors} actors, {learners} learners, {steps_s:g} steps/s, blocks of {AGES[agents]:g} s"
        )
        loads = load(agents, costs, actors, learners, steps_s, age_s=AGES[agents])
        for part, share in loads.items():
            print(f"  {part:30} {share:,.0f}" if "messages" in part else f"  {part:30} {share:6.1%}")
        first = max((part for part in loads if "messages" not in part), key=lambda part: loads[part])
        print(f"  the limit is {first}")


if __name__ == "__main__":
    main()
