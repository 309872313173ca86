"""Two-level policies: a team object gives one policy for each agent. Each agent has a team object of its own."""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from support import foreign_teams as foreign
from support import playing_policies as playing

import motet
from motet.errors import PolicyFailure, SettingError, SpecError
from motet.evaluation.jobs import JobPool
from motet.isolation.policy import IsolatedPolicy
from motet.policies.entries import as_given, entries
from motet.policies.teams import describe_world, make_policy
from motet.policy import PolicySpec, WorldDescription
from motet.testing import check_policy
from motet.worlds import MatrixGame, Rooms, TreasureHunt

HUNT = partial(TreasureHunt, agents=3, size=9, turns=8)
SCOUTS, COUNTING = "support.foreign_teams:Scouts", "support.playing_policies:Counting"
HOW = [(jobs, isolate, pooled) for isolate in (False, True) for jobs in (1, 2) for pooled in (True, False)]


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


def played(workers, world, policies, how=(1, False, True), **more):
    jobs, isolate, pooled = how
    more = {"episodes": 3, "seed": 5, **more}
    return motet.evaluate(world, policies, jobs=jobs, isolate=isolate, pooled=pooled, workers=workers, **more)


TEAMS = {
    "no chance": (HUNT, ["support.foreign_teams:Walkers", "random"]),
    "chance": (HUNT, ["support.foreign_teams:Rovers", "random"]),
    "torch": (playing.Duet, "support.foreign_teams:Torn"),
    "its own classes": (playing.Duet, "support.foreign_teams:Scouts,translate=support.foreign_teams:Translation"),
    "shared": (HUNT, ["support.foreign_teams:Gossips,shared=yes", "random"]),
}


@pytest.mark.parametrize("team", TEAMS)
def test_agents_of_a_team_play_the_same_isolated_or_not(workers, team):
    """Any jobs, kept between episodes or not, with and without randomness in the team."""
    world, policies = TEAMS[team]
    ways = HOW if team != "torch" else [HOW[0], (2, True, True)]  # a process that loads torch takes seconds
    results = {how: played(workers, world, policies, how) for how in ways}
    first = results[HOW[0]]
    assert not first.failures(), first.episodes[0].failures
    assert len({episode.returns for episode in first.episodes}) > 1
    for how, result in results.items():
        assert result.deterministic() == first.deterministic(), how


def test_seats_that_share_a_process_play_the_same(workers):
    for team in ("support.foreign_teams:Rovers", playing.Team):
        apart, close = (
            played(workers, HUNT, team, (1, True, True), max_processes=processes, episodes=2) for processes in (64, 1)
        )
        assert not apart.failures()
        assert apart.deterministic() == close.deterministic()


@pytest.mark.parametrize("given", ["path", "spec", "class", "kind"])
def test_each_agent_of_a_team_has_a_process_of_its_own(workers, tmp_path, given):
    """Which it keeps from episode to episode."""
    log = tmp_path / "log"
    policy = {
        "path": f"support.foreign_teams:Pids,kw.path={log}",
        "kind": f"support.foreign_teams:Pids,kind=team,kw.path={log}",
        "spec": PolicySpec("support.foreign_teams:Pids", {"path": str(log)}),
        "class": PolicySpec(foreign.Pids, {"path": str(log)}),
    }[given]
    result = played(workers, HUNT, policy, (1, True, True))
    assert not result.failures(), result.episodes[0].failures
    lines = log.read_text().split("\n")[:-1]
    assert sorted(line.split()[1] for line in lines) == ["0", "1", "2"]
    assert len({line.split()[0] for line in lines}) == 3


@pytest.mark.parametrize("shared", ["", ",shared=yes"])
def test_a_shared_team_is_one_process(workers, tmp_path, shared):
    log = tmp_path / "log"
    played(workers, HUNT, f"support.foreign_teams:Pids,kw.path={log}{shared}", (1, True, True))
    made = {line.split()[0] for line in log.read_text().splitlines()}
    assert len(made) == (1 if shared else 3)


def test_roles_drawn_at_construction_agree():
    """Every copy of the team draws the same roles, so that the agents' are a permutation."""
    description = describe(3)
    for episode in range(3):
        roles = []
        for agent in description.agents:
            member = make_policy(
                PolicySpec("support.foreign_teams:Rovers"), {"agent": agent, "description": description}
            )
            member.reset(100 * episode + 7)
            roles.append(member._policy._team._roles)
        assert roles[0] == roles[1] == roles[2]
    assert sorted(roles[0]) == [0, 1, 2]


def test_what_an_agent_draws_depends_on_episode_and_agent():
    description, moods = describe(2), []
    for agent in description.agents:
        member = make_policy(PolicySpec("support.foreign_teams:Rovers"), {"agent": agent, "description": description})
        for seed in (1, 2, 1):
            member.reset(seed)
            moods.append(
                (agent, seed, member._policy._members[agent]._mood, [member.act(np.zeros(2)) for _ in range(20)])
            )
    assert moods[0][2:] == moods[2][2:], "the same seed once more"
    assert moods[0][2:] != moods[1][2:]


def describe(agents=2):
    return WorldDescription.uniform([f"agent_{i}" for i in range(agents)], Box(0, 1, (2,)), Discrete(4))


# ---- the description


class Curious:
    """Keeps what it was made with."""

    def __init__(self, env_description, *, world=None, depth=1):
        self.given, self.world, self.depth = env_description, world, depth
        if env_description.agents[0] != "left":
            raise ValueError(str(env_description))
        assert env_description.observation_spaces["right"].shape == (4,)
        assert env_description.action_names["left"] == ("0", "1", "2")
        assert env_description.settings["turns"] == 12
        assert world["turns"] == 12
        assert depth == 3

    def agent_policy(self, index):
        assert index in (0, 1)
        return foreign.Pid(None)


def test_a_team_is_made_from_a_description_of_the_world(workers):
    for isolate in (False, True):
        result = played(workers, playing.Duet, PolicySpec(Curious, {"depth": 3}), (1, isolate, True))
        assert not result.failures(), result.episodes[0].failures


def test_the_description_names_actions_where_the_world_does():
    rooms = motet.as_world(Rooms("closet"))
    found = describe_world(rooms, {"map": "closet"})
    assert set(found.action_names.values()) == {("up", "down", "left", "right")}
    assert found.agents == rooms.agents
    assert found.settings == {"map": "closet"}
    matrix = describe_world(motet.as_world(MatrixGame(turns=2)))
    assert matrix.action_names == {"player_0": ("0", "1"), "player_1": ("0", "1")}
    duet = describe_world(motet.as_world(playing.Duet(box=True)))
    assert duet.action_names == {"left": (), "right": ("0", "1", "2")}

    class Lettered(playing.Duet):
        action_names = {"left": ["a", "b", "c"], "right": ["x"]}  # noqa: RUF012 - one too few

    assert describe_world(motet.as_world(Lettered())).action_names == {
        "left": ("a", "b", "c"),
        "right": ("0", "1", "2"),
    }


def test_agents_are_numbers_unless_a_name_is_asked_for(workers):
    named, numbered = (played(workers, playing.Duet, team) for team in (foreign.ByName, foreign.Walkers))
    assert not named.failures()
    assert [one.returns for one in named.episodes] == [one.returns for one in numbered.episodes]


def test_a_function_may_make_a_team(workers):
    made, plain = (
        played(workers, playing.Duet, policy, (1, isolate, True))
        for policy, isolate in ((foreign.make_walkers, True), ("support.foreign_teams:Walkers,kw.stride=2", False))
    )
    assert not made.failures()
    assert [one.returns for one in made.episodes] == [one.returns for one in plain.episodes]


def test_an_object_is_copied_for_each_agent(workers):
    description = WorldDescription.uniform(("left", "right"), Box(0, 1, (4,)), Discrete(3))
    team = foreign.Gossips(description)
    given, apart, shared = (
        played(workers, playing.Duet, policy, (1, isolate, True))
        for policy, isolate in (
            (team, True),
            (foreign.Gossips, False),
            ("support.foreign_teams:Gossips,shared=yes", False),
        )
    )
    assert [one.returns for one in given.episodes] == [one.returns for one in apart.episodes]
    assert [one.returns for one in given.episodes] != [one.returns for one in shared.episodes]
    assert not team._board


# ---- what is shared


def test_results_and_tables_say_what_is_shared(workers, capsys):
    from motet.cli.eval import show

    policies = [
        "support.foreign_teams:Walkers", "support.foreign_teams:Gossips,shared=yes", playing.Joint, foreign.OneCall,
        PolicySpec("support.foreign_teams:Openly", shared=True),
        PolicySpec("support.playing_policies:Joint", kind="joint", name="two"),
    ]  # fmt: skip
    agents = ["agent_0", "agent_1", "agent_2"]
    assert [entry.shared for entry in entries(policies, agents)] == [False, True, True, True, True, True]
    result = played(workers, HUNT, policies, episodes=8)
    assert not result.failures(), [episode.failures for episode in result.episodes]
    shared = [one.get("shared", False) or one["kind"] == "joint" for one in result.policies]
    assert shared == [False, True, True, True, True, True]
    show(result)
    table = capsys.readouterr().out
    assert "Gossips, Joint, OneCall, Openly, two" in " ".join(table.split())
    assert "shared" in table
    assert "shared" in result.html()
    alone = played(workers, HUNT, "support.foreign_teams:Walkers")
    show(alone)
    assert "shared" not in capsys.readouterr().out


def test_the_table_of_a_tournament_says_what_is_shared(workers, capsys):
    from motet.cli.tournament import show

    result = motet.tournament(
        playing.Duet,
        ["support.foreign_teams:Gossips,shared=yes", "support.foreign_teams:Walkers"],
        rounds=1,
        workers=workers,
    )
    show(result, None)
    assert "Gossips" in capsys.readouterr().out.partition("shared")[0].splitlines()[-1]


def test_the_result_does_not_depend_on_where_a_team_is_recognised(workers):
    by_path, said = (
        played(workers, playing.Duet, f"support.foreign_teams:Rovers{kind}", (1, isolate, True))
        for kind, isolate in (("", False), (",kind=team", True))
    )
    assert [one.returns for one in by_path.episodes] == [one.returns for one in said.episodes]
    in_process, isolated = (
        played(workers, playing.Duet, "support.foreign_teams:Rovers", (1, how, True)) for how in (False, True)
    )
    assert in_process.deterministic() == isolated.deterministic()


def test_the_evaluating_process_imports_no_team(workers):
    for isolate in (True, False):
        policy = "support.unseen_team:Team,translate=support.unseen_team:Translation"
        result = played(workers, playing.Duet, policy, (1, isolate, True), episodes=1)
        assert not result.failures(), result.episodes[0].failures
    assert "support.unseen_team" not in sys.modules


# ---- what cannot be


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    ("policy", "cause", "why"),
    [
        (SCOUTS, "start", "needs an EnvInterface"),
        (f"{SCOUTS},translate=support.foreign_teams:Move", "start", "translate must be"),
        (f"{SCOUTS},translate=support.foreign_teams:Nothing", "start", "foreign_teams has no Nothing"),
        (f"{COUNTING},translate=support.foreign_teams:Translation", "start", "only valid for a team"),
        ("motet.policy:ConstantPolicy,kw.action=1,kind=team", "start", "must be a team"),
        (f"{COUNTING},shared=yes", "start", "shared=yes is only valid for"),
        ("support.playing_policies:Joint", "start", "kind=joint"),
        ("support.foreign_teams:Nobody", "start", "which has no step"),
        ("support.foreign_teams:MultiAgentPolicy,kw.mood=3", "start", "unexpected arguments"),
    ],
)  # fmt: skip
def test_faulty_teams_are_named(workers, policy, cause, why, isolate):
    result = played(workers, playing.Duet, policy, (1, isolate, True), episodes=1)
    causes = {failure.cause for failure in result.episodes[0].failures}
    assert causes == {cause}, result.episodes[0].failures
    assert all(why in failure.detail for failure in result.episodes[0].failures), result.episodes[0].failures


def test_options_of_teams_are_checked_when_given():
    entry = as_given("my:Team,shared=yes,translate=my.module:Words")
    assert (entry.shared, entry.spec.shared, entry.spec.translate) == (True, True, "my.module:Words")
    assert as_given("my:Team,kind=joint").shared
    for text, why in {
        "my:Team,kind=joint,shared=no": "kind=joint implies shared=yes",
        "my:Team,kind=agent,shared=yes": "kind=agent",
        "my:Team,shared=perhaps": "yes or no",
        "my:Team,translate=words": "translate must be 'package.module:attribute', got 'words'",
        "random,translate=a:b,kind=joint": "translate is only valid for a team",
    }.items():
        with pytest.raises(SettingError, match=why):
            as_given(text)
    one, other = entries(["my:Team", "my:Team,shared=yes"], ["a", "b"])
    assert one.key != other.key
    with pytest.raises(SettingError, match="kind must be"):
        PolicySpec("my:Team", kind="crowd")


def test_a_team_in_a_process_of_its_own_needs_the_description():
    spec = PolicySpec("support.foreign_teams:Walkers")
    with IsolatedPolicy(spec, Box(0, 1, (2,)), Discrete(4), agent="agent_1", description=describe()) as policy:
        policy.reset(3)
        assert policy.act(np.zeros(2, np.float32)) in range(4)
    with (
        IsolatedPolicy(spec, Box(0, 1, (2,)), Discrete(4), agent="agent_1") as policy,
        pytest.raises(PolicyFailure, match="description=WorldDescription"),
    ):
        policy.answer()


# ---- for users' own tests


@pytest.mark.parametrize("team", ["Walkers", "Rovers", "Torn", "make_walkers", "Scouts"])
def test_honest_teams_keep_the_contract(team):
    translate = "support.foreign_teams:Translation" if team == "Scouts" else ""
    spec = PolicySpec(f"support.foreign_teams:{team}", translate=translate)
    check_policy(spec, Box(0, 1, (2,)), Discrete(3))
    check_policy(replace(spec, shared=True), Box(0, 1, (2,)), Discrete(3))


@pytest.mark.parametrize(
    "team",
    [foreign.Gossips, foreign.Openly, foreign.Wiped, foreign.InTurn, lambda info: foreign.Gossips(info)],
)
def test_teams_that_share_memory_without_saying_so_are_found(team):
    with pytest.raises(SpecError, match=r"agents of a team share no memory.*shared=yes"):
        check_policy(team, Box(0, 1, (2,)), Discrete(3))
    if team is not foreign.Wiped:  # one object disturbs another, shared or not
        check_policy(PolicySpec(team, shared=True), Box(0, 1, (2,)), Discrete(3))


def test_teams_that_break_the_contract_of_policies_are_found():
    class Late(foreign.Walkers):
        """An episode goes on where the last one ended."""

        def agent_policy(self, agent_id):
            member = super().agent_policy(agent_id)
            member.reset = lambda: None
            return member

    class Moody(foreign.Walkers):
        """Chance that no seed decides."""

        def __init__(self, info):
            super().__init__(info, stride=int(np.random.default_rng().integers(2**40)))

    for team in (Late, Moody):
        with pytest.raises(SpecError, match="same seed"):
            check_policy(team, Box(0, 1, (2,)), Discrete(3))
