"""The simulation behind the scaling guide: where everything is simple, it says what arithmetic says."""

from dataclasses import replace

import pytest

from benchmarks.ray_scale import Costs, Plan, simulate

FREE = Costs(
    send_s=0, take_s=0, row_s=0, look_s=0, shown_s=0, row_bytes=0, weights_bytes=0, state_bytes=0, look_bytes=0,
    update_s=0.001,
)  # fmt: skip


def test_if_messages_cost_nothing_worlds_and_learners_decide():
    found = simulate(Plan(4, 2, 2), FREE, 10)
    assert found["steps/s"] == pytest.approx(500, rel=0.01)
    assert found["updates/s"] == pytest.approx(500, rel=0.01)  # two agents, 1 ms each: a core is full
    assert found["learner"] == pytest.approx(1.0, rel=0.01)
    slow = simulate(Plan(4, 2, 2), replace(FREE, update_s=0.002), 10)
    assert slow["steps/s"] == pytest.approx(500, rel=0.01) and slow["updates/s"] == pytest.approx(250, rel=0.01)


def test_time_for_messages_reduces_the_steps():
    costs = replace(FREE, send_s=0.002, take_s=0.001, update_s=0.0001)
    found = simulate(Plan(4, 2, 4, block_age_s=0.05), costs, 10)
    blocks_s = 1 / 0.053  # of each of eight links, about
    assert found["actor"] == pytest.approx(4 * blocks_s * 0.002, rel=0.1)
    assert found["steps/s"] == pytest.approx(500 * (1 - found["actor"]), rel=0.02)
    assert found["messages/s"] == pytest.approx(8 * blocks_s + 60, rel=0.1)
    drowned = simulate(Plan(40, 2, 40, block_age_s=0.01), costs, 5)
    assert drowned["actor"] == pytest.approx(1.0, abs=0.01) and drowned["steps/s"] < 10


def test_networks_carry_rows_versions_and_states():
    costs = replace(FREE, row_bytes=1000, network_bytes_s=1e7, cores=1, update_s=1e-6)
    found = simulate(Plan(2, 1, 1, steps_s=1000), costs, 10)
    assert found["network out of"] == pytest.approx(2 * 1000 * 1000 / 1e7, rel=0.05)
    home = simulate(Plan(2, 1, 1, keep_every_s=1.0), replace(costs, row_bytes=0, state_bytes=10**6), 10)
    assert home["network into driver"] == pytest.approx(2e6 / 1e7, rel=0.15)
