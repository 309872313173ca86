"""A reproducible run gives the same bits when its learners are killed, wherever that happens."""

import functools
from dataclasses import replace

import pytest
from support.dying import DyingDQN, DyingLoss, DyingPPO, DyingStandIn
from test_lockstep import HUNT, LOSS, MEMORY, ONCE, SMALL, fingerprint

from motet.schedule import Stages
from motet.system.supervisor import RestartLimits
from motet.training.run import train
from motet.training.settings import Settings

AT_ONCE = RestartLimits(restarts=10_000, back_off_s=0.001)
CLEARED = Stages({"early": 100, "late": None}, clear_replay_on_stage=("late",))
ALGORITHMS = {
    "stand-in": DyingStandIn(),
    "stand-in, prioritised": DyingStandIn(prioritised=True),
    "sequences": DyingStandIn(length=6, burn_in=2, n_step=2, prioritised=True, capacity=400),
    "prioritised": DyingDQN(**SMALL, prioritised=True, n_step=3),
    "cleared": DyingDQN(hidden=(16,), min_rows=16, batch_size=16, prioritised=True, stages=CLEARED),
    "own loss": DyingLoss(**LOSS),
    "dqn, memory": DyingDQN(**SMALL, **MEMORY, memory="gru", prioritised=True),
    "once": DyingPPO(**{**ONCE, "length": 8, "batch_size": 1}, hidden=(16,)),
    "memory": DyingPPO(
        **{**ONCE, "length": 8, "batch_size": 1}, hidden=(16,), memory="gru", memory_size=8, sequence_length=4
    ),
}
LAST = 31  # the version of the last phase: 600 rounds are 30 periods


def run(algorithm, engine="processes", **more):
    ratio = None if isinstance(algorithm, DyingPPO) else 0.5
    settings = {"steps": 200, "period": 20, "updates_per_step": ratio, "limits": AT_ONCE, **more}
    return train(HUNT, algorithm, Settings(engine=engine, **settings))


@functools.cache
def undisturbed(name):
    result = run(ALGORITHMS[name], "serial")
    return fingerprint(result), max(result.updates.values())


DEATHS = {
    "in the first phase": ["within vault:2"],
    "in the last phase": ["before update:LAST"],
    "twice in one phase": ["before update:9", "before update:10", "before update:9"],
    "before the first version": ["within vault:1", "within publication:1", "after publication:1"],
    "between slot and announcement of the vault": ["within vault:9", "within vault:LAST"],
    "between slot and announcement of a publication": ["within publication:10", "within publication:LAST"],
    "between vault and publication": ["after vault:9", "after vault:LAST"],
    "after the publication": ["after publication:12", "after publication:LAST"],
}


EVERYWHERE = ["within vault:2", "before update:9", "after vault:9", "within publication:10", "within vault:LAST"]


def check(name, given, folder):
    bits, updates = undisturbed(name)
    last = {"update": updates, "vault": LAST, "publication": LAST}
    deaths = [death.replace("LAST", str(last[death.split()[-1].split(":")[0]])) for death in given]
    result = run(replace(ALGORITHMS[name], deaths=tuple(deaths), folder=str(folder)))
    assert len(list(folder.iterdir())) == len(deaths), "a learner did not die where it should"
    assert result.restarts >= len(deaths) and result.state == "done"
    assert fingerprint(result) == bits


@pytest.mark.parametrize("where", DEATHS)
def test_learners_killed_at_a_point_give_the_same_bits(where, tmp_path, no_leaks):
    check("stand-in", DEATHS[where], tmp_path)


@pytest.mark.parametrize("where", ["in the first phase", "in the last phase", "twice in one phase"])
def test_learners_with_priorities_killed_at_a_point_give_the_same_bits(where, tmp_path, no_leaks):
    check("stand-in, prioritised", DEATHS[where], tmp_path)


@pytest.mark.parametrize("name", ["sequences", "prioritised", "own loss", "dqn, memory", "once", "memory"])
def test_learners_killed_everywhere_give_the_same_bits(name, tmp_path, no_leaks):
    check(name, EVERYWHERE, tmp_path)


def test_learners_killed_when_the_replay_is_cleared_give_the_same_bits(tmp_path, no_leaks):
    """The stage begins in phase 14, whose version is number 16. Rows of period 15 are forgotten in the next phase."""
    check("cleared", ["within vault:16", "after vault:16", "within vault:17"], tmp_path)
