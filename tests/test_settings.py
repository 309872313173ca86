"""Settings are declared once: the check, its words, the tables and the schema come from the annotations."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jsonschema  # comes with ray
import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval, Len, MinLen
from support import ROOT

from motet.algorithm import ReaderSettings
from motet.algorithms.catalogue import ALGORITHMS, algorithm_config
from motet.cli.experiment import experiment_schema
from motet.cli.flags import parse
from motet.cli.reference import PAGES
from motet.errors import SettingError
from motet.evaluation import EvaluationSettings
from motet.isolation import PolicyLimits
from motet.pace import Pace
from motet.placement import Cluster
from motet.plan import Humans, Robot
from motet.replay import Field, ReplaySpec
from motet.schedule import Exponential, Linear, Schedule, Staged, Stages
from motet.settings import FINITE, bounds_of, check_fields, check_value, describe_settings, kinds_of
from motet.system.supervisor import RestartLimits
from motet.training import League, Settings

CONFIGS = [type(algorithm_config(name)) for name in ALGORITHMS]
CLASSES = [
    Settings, League, RestartLimits, Cluster, Pace, EvaluationSettings, PolicyLimits, ReaderSettings, ReplaySpec, Field,
    Linear, Exponential, Stages, Humans, Robot, *CONFIGS,
]  # fmt: skip

COUNT, SHARE = Annotated[int, Ge(1)], Annotated[float, Interval(ge=0, le=1)]
WIDTHS = Annotated[tuple[COUNT, ...], MinLen(1)]
RATE = Annotated[Schedule, Interval(ge=0, le=1)]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "expected"),
    [
        (int, [1, np.int64(3)], [1.0, "1", None, True], "an int"),
        (float, [1, 2.5, np.float32(1), math.inf], ["1", None, False], "a number"),
        (bool, [True], [1, None], "True or False"),
        (str, [""], [1, None, b""], "a string"),
        (COUNT, [1], [0, 1.5, "many"], "an int >= 1"),
        (COUNT | None, [1, None], [0, "many"], "an int >= 1 or None"),
        (Annotated[float, Gt(0)], [1e-9, math.inf], [0, -1, math.nan], "a number > 0"),
        (Annotated[float, Gt(0), FINITE], [1], [0, math.inf, math.nan], "a finite number > 0"),
        (Annotated[float, FINITE], [-1], [-math.inf, math.nan], "a finite number"),
        (SHARE, [0, 1], [-0.1, 1.1, math.nan], "a number from 0 to 1"),
        (Annotated[float, Interval(ge=0, lt=1)], [0], [1, -1], "a number >= 0 and < 1"),
        (Annotated[float, Interval(gt=0, le=1)], [1], [0, 2], "a number > 0 and <= 1"),
        (Literal["a", "b", "c"], ["a"], ["d", None, ["a"]], "'a', 'b' or 'c'"),
        (Literal["a"] | None, [None], ["d"], "'a' or None"),
        (tuple[int, ...], [(), [1], np.array([1])], ["12", 1, (1.5,), {1: 1}], "a tuple of ints"),
        (WIDTHS, [(1,)], [(), (0,), (1, "2")], "a tuple of one or more ints >= 1"),
        (Annotated[tuple[str, ...], Len(1)], [("a",)], [(), (1,), "a"], "a tuple of one or more strings"),
        (tuple[tuple[str, COUNT | None], ...], [(("a", 1), ("b", None))], [(("a", 0),), (("a",),)], None),
        (Mapping[str, COUNT], [{}, {"a": 1}], [{"a": 0}, {1: 1}, 3], "a mapping from strings to ints >= 1"),
        (League, [League()], [{}, None, League], "a League"),
        (RATE, [0.5, Linear(0, 1, 5), Staged({"a": 1.0})], ["fast", None], "a number from 0 to 1 or a schedule"),
        (RATE, [0], [-1.0, 2, math.nan], "a number from 0 to 1"),
        (Any, [1, None, "a"], [], None),
    ],
)
def test_values_have_their_type_and_keep_their_bounds(kind, good, bad, expected):
    for value in good:
        check_value("name", value, kind)
    for value in bad:
        words = f"name must be {expected}, got {value!r}" if expected else "name must be "
        with pytest.raises(SettingError, match=re.escape(words)):
            check_value("name", value, kind)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Linear(2.0, 1.0, 5), "rate at its start must be a number from 0 to 1, got 2.0"),
        (Exponential(0.5, -1.0, 5), "rate at its end must be a number from 0 to 1, got -1.0"),
        (Staged({"a": 0.5, "b": 3.0}), "rate in b must be a number from 0 to 1, got 3.0"),
        (Staged({"a": Linear(0, 7, 5)}), "rate in a at its end must be a number from 0 to 1, got 7"),
    ],
)
def test_the_bounds_of_a_schedule_hold_for_all_its_values(schedule, words):
    with pytest.raises(SettingError, match=f"^{re.escape(words)}$"):
        check_value("rate", schedule, RATE)


def _outside(bound: Any) -> list[float]:
    limits = dataclasses.asdict(bound)
    below, above = [limits[name] - 1 for name in ("ge", "gt") if name in limits], []
    above = [limits[name] + 1 for name in ("le", "lt") if name in limits]
    on = [limits[name] for name in ("gt", "lt") if name in limits]
    return below + above + on


def _bounds(kind: Any) -> list[Any]:
    """Every single bound of numbers in an annotation."""
    if typing.get_origin(kind) is Annotated:
        bare, *notes = typing.get_args(kind)
        return _bounds(bare) + [one for note in notes for one in (note if isinstance(note, Interval) else [note])]
    if typing.get_origin(kind) in (typing.Union, type(int | None)):
        return [bound for one in typing.get_args(kind) for bound in _bounds(one)]
    return []


CASES = [
    (cls, name, value)
    for cls in CLASSES
    for name, kind in kinds_of(cls).items()
    for bound in _bounds(kind)
    for value in (
        [math.inf, math.nan] if bound == FINITE else _outside(bound) if not isinstance(bound, MinLen) else [()]
    )
]
NEEDED = {
    ReaderSettings: {"batch_size": 1}, ReplaySpec: {"observation": Field(), "action": Field(), "capacity": 4},
    Linear: {"start": 0.0, "end": 1.0, "steps": 5}, Exponential: {"start": 0.0, "end": 1.0, "half_life": 5.0},
}  # fmt: skip


@pytest.mark.parametrize(("cls", "name", "value"), CASES, ids=[f"{c.__name__}.{n}={v}" for c, n, v in CASES])
def test_every_declared_bound_is_checked_when_settings_are_made(cls, name, value):
    with pytest.raises(SettingError, match=rf"{name} must be .*, got {re.escape(repr(value))}"):
        cls(**{**NEEDED.get(cls, {}), name: value})


def test_there_are_as_many_bounds_as_there_were_checks():
    assert len({(cls, name) for cls, name, _ in CASES}) >= 150


BY_HAND = {
    "steps": 0, "seed": -1, "actors": 0, "worlds_per_actor": 0, "learner_processes": 0, "updates_per_step": 0.0,
    "slack": -1.0, "publish_every": 0, "sync_interval": 0, "max_lag_versions": -1, "max_lag_steps": -1, "seconds": 0.0,
    "evaluate_every": 0, "evaluate_episodes": 0, "checkpoint_every": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_no_bound_of_training_is_lost(name):
    with pytest.raises(SettingError, match=f"{name} must be .*, got {BY_HAND[name]}"):
        Settings(**{name: BY_HAND[name]})


@pytest.mark.parametrize("cls", CLASSES)
def test_annotations_can_be_read_and_every_field_has_a_text(cls):
    unread = [name for name, kind in kinds_of(cls).items() if kind is Any]
    expected = {ReplaySpec: ["observation", "action"]}  # nests
    assert unread == expected.get(cls, [])
    lacking = [row.name for row in describe_settings(cls) if not row.text]
    assert lacking == []


def test_a_name_for_type_checkers_costs_the_check_of_its_field_alone():
    @dataclasses.dataclass
    class Some:
        steps: Annotated[int, Ge(1)] = 1
        model: "Elsewhere" = None  # noqa: F821

    check_fields(Some(model=3))
    with pytest.raises(SettingError, match="steps must be an int >= 1, got 0"):
        check_fields(Some(steps=0))


def test_rules_between_fields_say_with_what():
    for bad, words in (
        (
            {"cluster": Cluster(actor_cpus=2.0), "engine": "serial"},
            "cluster is only valid with engine='ray' (got engine='serial')",
        ),
        ({"league": League(pool=3)}, "league is only valid with self_play=True (got self_play=False)"),
        ({"until_return": 3.0}, "until_return is only valid with evaluate_every"),
    ):
        with pytest.raises(SettingError, match=re.escape(words)):
            Settings(**bad)


@pytest.mark.parametrize("page", PAGES)
def test_made_pages_are_up_to_date(page):
    assert (ROOT / "docs" / page).read_text() == PAGES[page](), "make reference writes it"


def test_a_table_says_what_is_declared():
    rows = {row.name: row for row in describe_settings(Settings)}
    assert rows["seed"][1:4] == ("int", "0", ">= 0") and rows["seconds"][1:4] == ("float | None", "None", "> 0")
    assert bounds_of(kinds_of(CONFIGS[0])["hidden"]) == "1 or more, each >= 1"
    assert rows["publish"].text.startswith("How many slots in shared memory hold the versions of a policy.")


def test_the_help_text_says_the_bounds(capsys):
    with pytest.raises(SystemExit):
        parse(["matrix", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("--seed INT Random seed.", "(default: 10; >= 1)", "(default: 0.99; from 0 to 1)"):
        assert words in said
    assert parse(["matrix", "--steps", "7", "--seconds", "2.5", "--dqn.hidden", "8", "9"]).settings.steps == 7


def test_the_schema_takes_the_examples_and_refuses_what_the_checks_refuse():
    jsonschema.Draft202012Validator.check_schema(experiment_schema())
    check = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "experiment.schema.json").read_text()))
    examples = sorted((ROOT / "examples").glob("*.toml"))
    for path in examples:
        check.validate(tomllib.loads(path.read_text()))
    assert len(examples) >= 2
    for bad in (
        "steps = 0", "steps = 1.5", "engine = 'thread'", "stepps = 3", "seconds = 0", "[league]\npools = 3",
        "[dqn]\ngamma = 1.5", "[dqn]\nhidden = []", "[dqn]\nhidden = [0]", "[td3]\nnoise_memory = 1.0",
        "[dqn]\nepsilon = { start = 1.0, end = 0.0 }", "[dqn.stages]\nlengths = [['a', 0], ['b']]", "[world]\nsize = 3",
    ):  # fmt: skip
        plain = tomllib.loads(bad)
        assert not check.is_valid(plain | ({} if "world" in plain else {"world": {"name": "matrix"}})), bad


def test_settings_are_read_without_torch():
    code = "import sys, motet.training.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
