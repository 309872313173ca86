"""Single agents in files and flags: their algorithms, and the policies of those that do not learn."""

import json

import jsonschema
import pytest
from rich.console import Console

from motet import Partner
from motet.algorithms import DQNConfig, IQNConfig
from motet.cli.experiment import experiment_schema
from motet.cli.flags import parse
from motet.errors import SettingError
from motet.policies.limits import PolicyLimits
from motet.reports.groups import group
from motet.runs.directory import RunDirectory
from motet.runs.display import History, frame, line
from motet.runs.history import read_run
from motet.runs.snapshot import AgentRow, PartnerRow, Snapshot
from motet.runs.status import snapshot_from

FILE = """
[world]
name = "treasure_hunt"
agents = 3

[agents.agent_1]
policy = "forager"

[agents.agent_2]
policy = "mine:Policy"
isolate = true
max_failures = 3
limits = { decision_s = 0.5 }
"""


def test_file_and_flags_mean_the_same(tmp_path):
    (tmp_path / "a.toml").write_text(FILE)
    from_file = parse([str(tmp_path / "a.toml")])
    flags = [
        *("--agents.agent_1.policy", "forager", "--agents.agent_2.policy=mine:Policy", "--agents.agent_2.isolate"),
        *("true", "--agents.agent_2.max-failures", "3", "--agents.agent_2.limits.decision-s", "0.5"),
    ]
    from_flags = parse(["treasure_hunt", "--agents", "3", *flags])
    assert from_file.configs == from_flags.configs
    assert from_file.configs["agent_1"] == Partner("forager")
    assert from_file.configs["agent_2"] == Partner(
        "mine:Policy", isolate=True, max_failures=3, limits=PolicyLimits(decision_s=0.5)
    )
    assert isinstance(from_file.configs["agent_0"], DQNConfig)
    assert from_file.algorithm == "dqn"


def test_flags_set_algorithms_of_single_agents():
    agents = ["--agents.agent_1.algorithm", "iqn", "--agents.agent_1.batch-size", "16"]
    asked = parse(["treasure_hunt", *agents, "--agents.agent_1.epsilon=linear:1:0.1:500", "--agents.agent_0.gamma=0.5"])
    assert isinstance(asked.configs["agent_1"], IQNConfig)
    assert asked.configs["agent_1"].batch_size == 16 and asked.configs["agent_1"].epsilon.steps == 500
    assert asked.configs["agent_0"].gamma == 0.5
    assert asked.algorithm == "mixed"


def test_flags_change_the_agents_of_a_file(tmp_path):
    (tmp_path / "a.toml").write_text(FILE)
    asked = parse([str(tmp_path / "a.toml"), "--agents.agent_1.policy", "random"])
    assert asked.configs["agent_1"] == Partner("random")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--agents.agent_9.policy", "random"], "agents must be some of agent_0, agent_1, got agent_9"),
        (
            ["--agents.agent_1.policy", "random", "--agents.agent_1.algorithm", "dqn"],
            "an algorithm or a policy, got both",
        ),
        (
            ["--agents.agent_1.policy", "random", "--agents.agent_1.isolat", "true"],
            r"isolat \(did you mean isolate\?\)",
        ),
        (["--agents.agent_1.policy", "random", "--agents.agent_1.copy", "x"], "keys must be some of isolate, limits,"),
        (["--agents.agent_1.policy"], "must have a value, got none"),
        (["--agents.agent_1", "random"], "must be --agents.NAME.KEY"),
        (["--agents.agent_1.policy", "random", "--agents.agent_1.max-failures", "-1"], "max_failures must be"),
    ],
)
def test_agents_that_do_not_fit_are_refused(flags, error):
    with pytest.raises(SettingError, match=error):
        parse(["treasure_hunt", *flags])


def test_schema_knows_partners():
    agents = {"agent_1": {"policy": "random", "isolate": True, "limits": {"decision_s": 1.0}}}
    jsonschema.validate({"world": {"name": "matrix"}, "agents": agents}, experiment_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"world": {"name": "matrix"}, "agents": {"a": {"policy": 3}}}, experiment_schema())


def snapshot(**more):
    learner = AgentRow("agent_0", 100, 10, 5, 2.5, 20.0, 50.0, 5.0, 0.1, 1.0, 3, 0, 0, 0)
    partners = [PartnerRow("agent_1", "old:agent_0", 5, 4.0, 20.0, **more)]
    return Snapshot(1.0, 100, 200, 50.0, 2.0, [learner], [], partners=partners)


def shown(thing):
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(thing)
    return captured.get()


def test_tables_show_partners_as_fixed():
    text = shown(frame(snapshot(), History(), width=100))
    assert "agent_1        4  fixed: old:agent_0" in text
    assert "replaced 2 times" in shown(frame(snapshot(failures=2), History(), width=100))
    assert "replaced" not in line(snapshot(), History())
    assert "agent_1: partner old:agent_0, replaced 1 time" in line(snapshot(failures=1), History())


def test_snapshots_of_older_runs_have_no_partners():
    plain = json.loads(json.dumps(snapshot().as_dict()))
    assert snapshot_from(plain) == snapshot()
    del plain["partners"]
    assert snapshot_from(plain).partners == []


def test_reports_know_the_partners_of_a_run(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run")
    run.begin({"world": {}, "agents": {"agent_0": {}, "agent_1": {}}, "settings": {}})
    run.append_line("metrics.jsonl", snapshot().as_dict())
    run.write_json("status.json", snapshot().as_dict())
    (only,) = group([read_run(tmp_path / "run")])
    assert only.agents == ["agent_0"] and only.partners == {"agent_1": "old:agent_0"}
