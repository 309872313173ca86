"""Partners: given policies act for some agents in training, in evaluations and in resumed runs, while others learn."""

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from support.drawing import Noisy
from support.given_policies import Cycler, Dice, Vectorised

import motet
from motet import Partner, Settings, resume, train
from motet.algorithms import DQNConfig
from motet.arrays import ArraySpec
from motet.errors import ChildError, PolicyFailure, SettingError
from motet.isolation import PolicyLimits
from motet.isolation.policy import sandbox_gaps
from motet.plan import Robot, enumerate_states, solve
from motet.policies.partner import as_partner
from motet.policy import PolicySpec
from motet.reports.summary import episode_gif
from motet.runs.directory import RunDirectory
from motet.system.memory import Segment
from motet.system.supervisor import RestartLimits
from motet.training.roster import make_roster
from motet.worlds import MatrixGame, Rooms, TreasureHunt

GIVEN = "support.given_policies"
DQN = DQNConfig(hidden=(8,), min_rows=32, batch_size=8, capacity=1000)
SERIAL = Settings(steps=120, engine="serial")
HUNT = partial(TreasureHunt, agents=3, turns=20)
GAME = partial(MatrixGame, turns=10)


def game(partner, settings=SERIAL, **more):
    return train(GAME, {"player_0": DQN, "player_1": partner}, settings, **more)


def same(a, b):
    return all(np.array_equal(a.agents[name]["state"], b.agents[name]["state"]) for name in a.agents)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run in which both players learned."""
    path = tmp_path_factory.mktemp("runs") / "old"
    train(GAME, DQN, SERIAL, run=path)
    return path


KINDS = {
    "built-in": "random",
    "class by path": Partner(f"{GIVEN}:Cycler,kw.stride=3"),
    "spec": Partner(PolicySpec(f"{GIVEN}:Cycler", {"stride": 2})),
    "class": Partner(Cycler),
    "batch": Partner(f"{GIVEN}:Vectorised"),
    "team": Partner(f"{GIVEN}:Squad"),
    "joint": Partner(f"class={GIVEN}:Leader,kind=joint"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_partner_of_each_kind_acts_while_the_other_agent_learns(kind, tmp_path):
    settings = replace(SERIAL, worlds_per_actor=2, evaluate_every=60, evaluate_episodes=2)
    result = game(KINDS[kind], settings, run=tmp_path / "run")
    assert (
        result.updates["player_0"] > 0 and list(result.updates) == ["player_0"] and list(result.agents) == ["player_0"]
    )
    assert result.returns["player_1"] is not None
    lines = [json.loads(line) for line in (tmp_path / "run/evaluation.jsonl").read_text().splitlines()]
    assert list(lines[0]["agents"]) == ["player_0"] and list(lines[0]["partners"]) == ["player_1"]
    longer = resume(tmp_path / "run", steps=60, trust=True)
    assert longer.steps >= 180 and longer.returns["player_1"] is not None


def test_actions_of_a_partner_reach_the_world():
    """The payoffs of the prisoners' dilemma tell which actions were played."""
    tempted = game("constant,kw.action=0").returns  # the partner always cooperates
    assert tempted["player_0"] >= 30 and tempted["player_1"] <= 30
    betrayed = game("constant,kw.action=1").returns
    assert betrayed["player_0"] <= 10 and betrayed["player_1"] >= 10


def test_run_acts_as_it_was_when_the_training_began(old, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(old, copy)
    first = game(str(copy), replace(SERIAL, steps=80, keep_replay=True), run=tmp_path / "a")
    shutil.rmtree(copy)
    resumed = resume(tmp_path / "a", steps=40)
    whole = game(str(old), SERIAL)
    assert first.steps == 80 and same(resumed, whole)
    policies = motet.load_policies(tmp_path / "a")
    policies["player_1"].reset(0)
    assert policies["player_1"].act(np.zeros(5, np.uint8)) in (0, 1)


@pytest.mark.parametrize("inner", ["class by path", "built-in", "run", "isolated"])
def test_partner_of_an_earlier_run_acts_without_that_run(inner, old, tmp_path):
    """The earlier run is given for an agent that did not learn in it."""
    isolated = Partner(f"{GIVEN}:Cycler,kw.stride=2", isolate=True)
    partner = {**KINDS, "run": str(old), "isolated": isolated}[inner]
    game(partner, replace(SERIAL, steps=20), run=tmp_path / "earlier")
    first = game(str(tmp_path / "earlier"), replace(SERIAL, steps=80, keep_replay=True), run=tmp_path / "run")
    shutil.rmtree(tmp_path / "earlier")
    config = json.loads((tmp_path / "run/config.json").read_text())["agents"]["player_1"]
    assert config["isolate"] == (inner == "isolated")
    resumed = resume(tmp_path / "run", steps=40, trust=True)
    assert first.steps == 80 and resumed.steps == 120
    if inner in ("built-in", "run"):  # the others cannot save their state
        assert same(resumed, game(partner, SERIAL))


@pytest.mark.skipif(bool(sandbox_gaps()), reason="; ".join(sandbox_gaps()))
def test_partner_of_an_earlier_run_keeps_its_sandbox(tmp_path):
    limits = PolicyLimits(decision_s=5.0)
    partner = Partner(f"{GIVEN}:Sandboxed", isolate=True, sandbox="strict", limits=limits, max_failures=0)
    earlier, run = tmp_path / "earlier", tmp_path / "run"
    game(partner, replace(SERIAL, steps=20), run=earlier)
    result = motet.evaluate("matrix", {"player_0": "random", "player_1": str(earlier)}, episodes=2, trust=True)
    assert not result.failures() and result.measured.isolated["earlier"]
    game(Partner(str(earlier), trust=True, max_failures=0), replace(SERIAL, steps=20), run=run)
    stored = json.loads((run / "config.json").read_text())["agents"]["player_1"]
    assert stored["sandbox"] == "strict" and stored["limits"]["decision_s"] == 5.0


def test_run_directory_with_partners_can_be_moved(old, tmp_path):
    game(Partner(f"{old},agent=player_0"), replace(SERIAL, steps=40), run=tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert resume(tmp_path / "there", steps=40).steps == 80


def test_partners_act_on_a_batch_where_they_can(old):
    Vectorised.calls = 0
    game(Partner(f"{GIVEN}:Vectorised"), replace(SERIAL, worlds_per_actor=4))
    assert Vectorised.calls == 30


@pytest.mark.parametrize("kind", ["built-in", "class by path", "team", "joint", "batch that draws", "run", "object"])
def test_lockstep_equals_serial_with_partners(kind, old):
    others = {"batch that draws": Partner(f"{GIVEN}:Dice"), "run": str(old), "object": Partner(Dice())}
    partner = (KINDS | others)[kind]
    settings = Settings(steps=120, actors=2, worlds_per_actor=2, updates_per_step=0.5, slack=0)
    processes = game(partner, settings)
    serial = game(partner, replace(settings, engine="serial", slack=None))
    assert same(processes, serial) and processes.returns == serial.returns


@pytest.mark.parametrize("partner", ["random", Partner(f"{GIVEN}:Dice"), "drawing run"])
def test_exact_resume_with_a_partner_that_draws(partner, tmp_path):
    """Also if it acts in all worlds at once, and draws from the global generators."""
    if partner == "drawing run":
        train(GAME, Noisy(), replace(SERIAL, steps=20), run=tmp_path / "old")
        partner = Partner(str(tmp_path / "old"), trust=True)
    settings = replace(SERIAL, keep_replay=True, updates_per_step=0.5, worlds_per_actor=2)
    whole = game(partner, settings)
    game(partner, replace(settings, steps=76), run=tmp_path / "run")
    assert same(resume(tmp_path / "run", steps=44, trust=True), whole)


def test_resume_starts_new_episodes_where_a_partner_cannot_save_its_state(tmp_path):
    said = []
    game(Partner(f"{GIVEN}:Cycler"), replace(SERIAL, keep_replay=True, steps=75), run=tmp_path / "run")
    resume(tmp_path / "run", steps=45, trust=True, on_message=said.append)
    assert any("partner cannot save its state" in line for line in said)


def test_joint_partner_decides_for_its_agents_at_once():
    leader = Partner(f"class={GIVEN}:Leader,kind=joint")
    roster = make_roster(HUNT, {"agent_0": DQN, "agent_1": leader, "agent_2": leader}, SERIAL)
    (fixed,) = roster.partners
    assert fixed.agents == (1, 2) and [agent.policy for agent in roster.agents] == [0, None, None]
    result = train(HUNT, {"agent_0": DQN, "agent_1": leader, "agent_2": leader}, SERIAL)
    assert sorted(result.returns) == ["agent_0", "agent_1", "agent_2"]


def test_joint_spec_is_one_object_after_a_resume(tmp_path):
    leader = Partner(PolicySpec(f"{GIVEN}:Leader", kind="joint"))
    train(HUNT, {"agent_0": DQN, "agent_1": leader, "agent_2": leader}, replace(SERIAL, steps=40), run=tmp_path / "run")
    assert resume(tmp_path / "run", steps=40, trust=True).steps == 80


def test_object_acts_by_copies_and_must_be_given_again(tmp_path):
    given = Cycler(MatrixGame().action_space("player_1"))
    game(Partner(given), run=tmp_path / "run")
    assert not hasattr(given, "count")
    with pytest.raises(SettingError, match=r"player_1.*motet.resume\(run, algorithm=…\)"):
        resume(tmp_path / "run", steps=40, trust=True)
    again = resume(tmp_path / "run", steps=40, algorithm={"player_0": DQN, "player_1": Partner(given)})
    assert again.steps == 160


def test_foreign_class_in_a_config_needs_trust(tmp_path):
    game(Partner(f"{GIVEN}:Cycler"), run=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")  # so that it is not known as a run of this user
    with pytest.raises(SettingError, match="trust"):
        resume(tmp_path / "moved", steps=40)
    with pytest.raises(SettingError, match="trust"):
        motet.load_policies(tmp_path / "moved", world=GAME)


def test_run_of_this_user_with_a_foreign_partner_needs_no_trust(tmp_path):
    game(Partner(f"{GIVEN}:Cycler"), run=tmp_path / "run")
    assert resume(tmp_path / "run", steps=40).steps == 160


def test_copy_outside_of_the_run_directory_is_refused(old, tmp_path):
    game(str(old), run=tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    config = directory.config()
    config["agents"]["player_1"]["copy"] = "../elsewhere"
    directory.write_json("config.json", config)
    with pytest.raises(SettingError, match="in the run directory"):
        resume(tmp_path / "run", steps=40)


def test_partner_that_raises_ends_the_run_with_its_name():
    with pytest.raises(PolicyFailure, match="partner Fragile of player_1: ValueError: the table of moves is empty"):
        game(Partner(f"{GIVEN}:Fragile"))
    with pytest.raises(PolicyFailure, match="partner Fragile of player_1: the action is 9"):
        game(Partner(f"{GIVEN}:Fragile,kw.how=nonsense"))


def test_partner_that_raises_in_an_actor_ends_the_run_with_its_name():
    with pytest.raises(ChildError, match="partner Fragile of player_1: ValueError: the table of moves is empty"):
        game(Partner(f"{GIVEN}:Fragile"), Settings(steps=120))


def test_partner_that_hangs_is_named():
    said = []
    limits = RestartLimits(hang_s=4.0, restarts=0)
    with pytest.raises(ChildError, match="while it asked partner Fragile of player_1"):
        game(Partner(f"{GIVEN}:Fragile,kw.how=hang"), Settings(steps=120, limits=limits), on_message=said.append)


def test_partner_that_cannot_be_made_is_reported_before_the_run_starts(old, tmp_path):
    with pytest.raises(SettingError, match=r"agent player_1.*no module"):
        game(Partner("nowhere_at_all:Policy"), run=tmp_path / "run")
    with pytest.raises(SettingError, match=r"agent agent_1.*trained in another world"):
        train(HUNT, {"agent_0": DQN, "agent_1": f"{old},agent=player_0", "agent_2": DQN}, SERIAL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["raise", "die", "hang", "nonsense"])
def test_isolated_partner_that_fails_breaks_off_its_episode_and_is_replaced(how, tmp_path):
    fragile = Partner(f"{GIVEN}:Fragile,kw.how={how},kw.after=15", isolate=True, limits=PolicyLimits(decision_s=0.3))
    shown = []
    result = game(fragile, replace(SERIAL, steps=45), on_update=shown.append)
    (row,) = shown[-1].partners
    assert result.steps == 45 and row.failures == 3 and row.policy == "Fragile"
    assert shown[-1].agents[0].broken == 3
    assert row.episodes == 3  # one whole episode for each process: ten turns of fifteen


def test_isolated_partner_that_fails_too_often_ends_the_run_with_its_name():
    fragile = Partner(f"{GIVEN}:Fragile,isolate=yes", max_failures=1)
    with pytest.raises(PolicyFailure, match=r"partner Fragile of player_1(.|\n)*failed 2 times, and max_failures is 1"):
        game(fragile)


def test_isolated_partner_is_replaced_in_evaluations(tmp_path):
    fragile = Partner(f"{GIVEN}:Fragile,kw.after=25", isolate=True)
    game(fragile, replace(SERIAL, steps=40, evaluate_every=20, evaluate_episodes=2), run=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/evaluation.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["partners"]["player_1"]["mean"] >= 0 for line in lines)


@pytest.mark.parametrize("sandbox", ["no", "best-effort"])
@pytest.mark.filterwarnings("ignore:the sandbox is incomplete")
def test_isolated_partner_acts_in_processes(sandbox, tmp_path):
    settings = Settings(steps=40, evaluate_every=20, evaluate_episodes=2, updates_per_step=0.5, slack=0)
    partner = Partner(f"{GIVEN}:Cycler,isolate=yes", sandbox=sandbox)
    processes = game(partner, settings, run=tmp_path / "run")
    serial = game(Partner(f"{GIVEN}:Cycler"), replace(settings, engine="serial", slack=None))
    assert same(processes, serial)
    assert len((tmp_path / "run/evaluation.jsonl").read_text().splitlines()) == 2


def test_isolated_partner_is_replaced_in_an_actor(tmp_path):
    said = []
    fragile = Partner(f"{GIVEN}:Fragile,kw.how=die,kw.after=15", isolate=True)
    settings = Settings(steps=45, updates_per_step=0.5, slack=0)
    assert game(fragile, settings, run=tmp_path / "run", on_message=said.append).state == "done"
    assert any("partner Fragile of player_1 has failed" in line for line in said)
    assert "partner Fragile of player_1" in (tmp_path / "run/logs/actor-0.log").read_text()


def test_isolated_partner_acts_as_the_same_policy_in_the_process():
    alone, isolated = (game(Partner(f"{GIVEN}:Cycler", isolate=isolate)) for isolate in (False, True))
    assert same(alone, isolated) and alone.returns == isolated.returns


def test_scores_count_only_agents_that_learn(tmp_path):
    """The partner always defects, so it earns at least 1 a turn; the learner earns at most that."""
    settings = replace(SERIAL, evaluate_every=40, evaluate_episodes=2, until_return=10.5)
    result = game("constant,kw.action=1", settings, run=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/evaluation.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["team"] == line["score"] == line["agents"]["player_0"]["mean"] <= 10
        assert line["partners"]["player_1"]["mean"] >= 10
    assert result.state == "done"


def test_partners_are_refused_in_self_play():
    with pytest.raises(SettingError, match=r"partners are not valid in self-play.*league.anchors"):
        train("hockey", {"player": "hockey_weak"}, Settings(self_play=True, engine="serial"))


def test_at_least_one_agent_learns():
    with pytest.raises(SettingError, match="at least one agent must learn"):
        train(GAME, {"player_0": "random", "player_1": "noop"}, SERIAL)


def test_mapping_recognises_built_in_names_and_runs_only(old):
    assert as_partner("random") and as_partner(old) and as_partner(f"{old},agent=player_0")
    assert as_partner("dqn") is None and as_partner("some.module:Config") is None and as_partner(DQN) is None


@pytest.mark.parametrize(
    ("partner", "error"),
    [
        (Partner("random,seat=player_0"), "seat is only valid in evaluations"),
        (Partner("random,proportion=2"), "proportion is only valid in evaluations"),
        (Partner("random", limits=PolicyLimits()), "only valid with isolate=True"),
        (Partner("random", sandbox="strict"), "only valid with isolate=True"),
    ],
)
def test_options_that_do_not_fit_are_refused(partner, error):
    with pytest.raises(SettingError, match=error):
        make_roster(GAME, {"player_0": DQN, "player_1": partner}, SERIAL)


def test_evaluation_of_a_run_takes_its_partners_too(tmp_path):
    game("constant,kw.action=1", run=tmp_path / "run")
    result = motet.evaluate(GAME, str(tmp_path / "run"), motet.EvaluationSettings(episodes=2, jobs=1))
    assert all(episode.returns[1] >= 10 for episode in result.episodes)


def test_isolated_partner_is_not_imported_by_the_caller(tmp_path):
    """Not by training, and not by the film or the evaluation after it."""
    (tmp_path / "unseen_partner.py").write_text(
        "import support.given_policies as given\n"
        "import os, pathlib\n"
        f"pathlib.Path({str(tmp_path)!r}, 'importers').open('a').write(f'{{os.getpid()}}\\n')\n"
        "Policy = given.Cycler\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        game(Partner("unseen_partner:Policy,isolate=yes"), replace(SERIAL, steps=30), run=tmp_path / "run")
        assert episode_gif(tmp_path / "run", trust=True) is not None
        with pytest.raises(SettingError, match="isolated, so it is not loaded into this process"):
            motet.load_policies(tmp_path / "run", trust=True)
    importers = (tmp_path / "importers").read_text().split()
    assert importers and str(os.getpid()) not in importers


def test_film_shows_partners_whatever_their_signature(tmp_path):
    leader = Partner(f"class={GIVEN}:Leader,kind=joint")
    agents = {"agent_0": DQN, "agent_1": leader, "agent_2": leader}
    train(HUNT, agents, replace(SERIAL, steps=30), run=tmp_path / "joint")
    game(Partner(f"{GIVEN}:Cycler"), replace(SERIAL, steps=30), run=tmp_path / "single")
    for name in ("joint", "single"):
        assert episode_gif(tmp_path / name, trust=True).stat().st_size > 0
        assert len(motet.load_policies(tmp_path / name, trust=True)) == (3 if name == "joint" else 2)


def test_memory_of_a_run_is_hidden_from_forked_processes():
    segment = Segment({"word": ArraySpec((8,), "uint64")})
    segment["word"][:] = 7
    address = segment["word"].ctypes.data
    segment.hide_from_children()
    pid = os.fork()
    if pid == 0:
        maps = Path("/proc/self/maps").read_text().splitlines()
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
        os._exit(int(any(low <= address < high for low, high in ranges)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Doors(ParallelEnv):
    """Two agents choose among three doors, of which one is closed in each turn."""

    metadata: ClassVar = {"name": "doors"}

    def __init__(self):
        self.possible_agents = ["agent_0", "agent_1"]
        seen = spaces.Dict({"observation": spaces.Box(0, 1, (3,)), "action_mask": spaces.Box(0, 1, (3,), np.int8)})
        self.observation_spaces = dict.fromkeys(self.possible_agents, seen)
        self.action_spaces = {name: spaces.Discrete(3) for name in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.agents, self.turn = list(self.possible_agents), 0
        return self._seen(), {name: {} for name in self.agents}

    def _seen(self):
        mask = np.ones(3, np.int8)
        mask[self.turn % 3] = 0
        return {a: {"observation": np.ones(3, np.float32), "action_mask": mask.copy()} for a in self.possible_agents}

    def step(self, actions):
        assert all(action != self.turn % 3 for action in actions.values()), "a closed door"
        self.turn += 1
        flags = dict.fromkeys(self.possible_agents, self.turn == 10)
        self.agents = [] if self.turn == 10 else self.agents
        rewards = dict.fromkeys(self.possible_agents, 1.0)
        return self._seen(), rewards, flags, dict.fromkeys(flags, False), {name: {} for name in flags}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]


def test_partner_gets_the_mask_and_must_keep_to_it():
    class Last:
        def reset(self, seed):
            pass

        def act(self, observation, mask):
            return int(np.flatnonzero(mask)[-1])

    assert make_roster(Doors, {"agent_0": DQN, "agent_1": "random"}, SERIAL).masked == [True, True]
    for partner in ("random", "noop", Partner(Last)):
        assert train(Doors, {"agent_0": DQN, "agent_1": partner}, SERIAL).returns["agent_1"] == 10
    with pytest.raises(PolicyFailure, match=r"partner Cycler of agent_1: the action is ., which the mask does not"):
        train(Doors, {"agent_0": DQN, "agent_1": Partner(Cycler)}, SERIAL)


def test_partner_that_lifts_its_mask_is_held_to_it():
    class Lifts:
        def reset(self, seed):
            pass

        def act(self, observation, mask):
            forbidden = int(np.argmin(mask))
            mask[:] = True
            return forbidden

    class LiftsAll(Lifts):
        def act_many(self, observations, masks):
            return [self.act(observation, mask) for observation, mask in zip(observations, masks, strict=True)]

    for partner in (Lifts, LiftsAll):
        with pytest.raises(PolicyFailure, match="which the mask does not allow"):
            train(Doors, {"agent_0": DQN, "agent_1": Partner(partner)}, SERIAL)


def test_last_action_of_a_broken_episode_is_allowed_by_the_mask():
    partner = Partner(f"{GIVEN}:Fragile,isolate=yes,kw.after=0")
    with pytest.raises(PolicyFailure, match="max_failures is 10"):
        train(Doors, {"agent_0": DQN, "agent_1": partner}, SERIAL)


def test_plan_acts_as_a_partner(tmp_path):
    """The robot acts by its plan; the human learns, and the robot's policy is the one that an evaluation plays."""
    rooms = partial(Rooms, map="closet")
    model = rooms()
    goals = {human: model.goals(human) for human in model.human_agent_indices}
    solve(enumerate_states(model, workers=1), goals, robot=Robot(), workers=1).save(tmp_path / "plan")
    learner, planned = (name for name in model.possible_agents for kind in ("human", "robot") if kind in name)
    agents = {learner: DQN, planned: Partner(str(tmp_path / "plan"))}
    result = train(rooms, agents, replace(SERIAL, steps=40, evaluate_every=20), run=tmp_path / "run")
    assert list(result.updates) == [learner]
    assert resume(tmp_path / "run", steps=10).steps == 50
