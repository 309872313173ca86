"""Experiment files: TOML with the settings of ``motet train``, and separate algorithms for single agents.

::

    algorithm = "dqn"              # for all agents without a table below
    steps = 50_000                 # any field of Settings, as on the command line

    [limits]                       # as --limits.hang-s
    hang_s = 30

    [world]
    name = "treasure_hunt"         # or "package.module:make_env"
    agents = 3                     # settings of the world, as --agents and --world.size
    size = 15

    [dqn]                          # for all agents that use DQN, as --dqn.learning-rate
    learning_rate = 3e-4
    epsilon = { start = 1.0, end = 0.05, steps = 20_000 }    # or "package.module:function", or
                                                              # { warm_up = 1.0, full = 0.1 } with

    [dqn.stages]
    lengths = [["warm_up", 5_000], ["full"]]

    [agents.agent_2]               # for this agent only, as --agents.agent_2.algorithm
    algorithm = "iqn"
    batch_size = 128
    publish_every = 1              # publish, publish_every and device may differ from those of the run

    [agents.agent_1]               # an agent that does not learn: it acts by a given policy, as in motet eval -p
    policy = "runs/old"

``docs/experiment.schema.json`` is the JSON Schema of such files, for editors (:func:`experiment_schema`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.algorithm import AlgorithmConfig
from motet.algorithms.catalogue import ALGORITHMS, algorithm_config, short_name
from motet.algorithms.source import SHIPPED, NetworkSetting, Source
from motet.cli.hints import unknown_keys
from motet.errors import SettingError
from motet.schedule import Exponential, Linear, Staged
from motet.settings import check_value, json_schema, kinds_of, takes_function
from motet.system.imports import import_function
from motet.text import nearest
from motet.training.settings import OWN, AgentSettings, Settings
from motet.worlds.catalogue import suggestions, world_factory

if TYPE_CHECKING:
    from motet.policies.partner import Partner

__all__ = ["Experiment", "experiment_schema", "read"]


@dataclass
class Experiment:
    """The contents of an experiment file, or the defaults if a world is named instead. Flags change them."""

    world: str
    world_settings: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "dqn"
    settings: Settings = field(default_factory=Settings)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings by algorithm, for all agents that use it."""
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Algorithm and settings of single agents, or their policy and its settings if they do not learn, by agent."""

    def config(self, algorithm: str) -> AlgorithmConfig:
        """The config of an algorithm, with the settings that the file has for it."""
        given = algorithm_config(algorithm, suggestions(world_factory(self.world)) if self.world else {})
        config: AlgorithmConfig = changed(given, self.tables.get(short_name(algorithm), {}), short_name(algorithm))
        return config

    def of_agent(self, name: str, default: AlgorithmConfig) -> AlgorithmConfig | AgentSettings | Partner:
        """The config of an agent: from its table in the file, or the default; or its partner, if it does not learn.

        The config is returned with the settings that hold for this agent alone, if the table has some.
        """
        if name not in self.agents:
            return default
        own = dict(self.agents[name])
        if "policy" in own:
            return _partner(own, f"agents.{name}")
        algorithm = own.pop("algorithm", self.algorithm)
        base = default if algorithm == self.algorithm else self.config(algorithm)
        of_run = {key: own.pop(key) for key in OWN if key in own}
        config: AlgorithmConfig = changed(base, own, f"agents.{name}", OWN)
        return changed(AgentSettings(config), of_run, f"agents.{name}") if of_run else config


def _partner(own: dict[str, Any], where: str) -> Partner:
    """The partner that the table of an agent describes."""
    from motet.policies.limits import PolicyLimits  # imported here, so that --help is fast
    from motet.policies.partner import Partner

    if "algorithm" in own:
        raise SettingError(f"{where}: an agent must have an algorithm or a policy, got both; a policy does not learn")
    if not isinstance(policy := own.pop("policy"), str):
        raise SettingError(f"{where}: policy must be a string, as in motet eval -p, got {policy!r}")
    settable = {item.name for item in fields(Partner)} - {"policy", "copy"}
    if unknown := sorted(set(own) - settable):
        raise SettingError(f"{where}: {unknown_keys(unknown, {'policy', *settable}, '')}")
    if isinstance(limits := own.get("limits"), Mapping):
        own["limits"] = changed(PolicyLimits(), limits, f"{where}.limits")
    try:
        return Partner(policy, **own)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error


def read(path: Path) -> Experiment:
    """Read an experiment file."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"experiment must be a file that can be read, got {str(path)!r}: {why}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"experiment must be a TOML file, got {str(path)!r}: {error}") from error
    where = str(path)
    world = _table(given.pop("world", {}), f"{where}: world", 'a table: [world], and below it name = "treasure_hunt"')
    if "name" not in world:
        given_there = (
            ", ".join(key + " (did you mean name?)" * bool(nearest(key, ["name"])) for key in sorted(world))
            or "nothing"
        )
        raise SettingError(f'{where}: world must have a name, as in name = "treasure_hunt", got {given_there}')
    if not isinstance(name := world.pop("name"), str):
        raise SettingError(f"{where}: world.name must be the name of a world, or 'module:attribute', got {name!r}")
    algorithm = given.pop("algorithm", "dqn")
    if not isinstance(algorithm, str):
        raise SettingError(
            f"{where}: algorithm must be a name, or 'module:Config', got {algorithm!r}"
            + '; write algorithm = "dqn", and its settings below [dqn]' * isinstance(algorithm, dict)
        )
    agents = _table(given.pop("agents", {}), f"{where}: agents", "tables [agents.NAME]")
    for agent, own in agents.items():
        _table(own, f"{where}: agents.{agent}", "a table")
    used = {algorithm, *(own.get("algorithm", algorithm) for own in agents.values() if "policy" not in own)}
    known = {short_name(str(one)) for one in used}
    tables = {key: _table(given.pop(key), f"{where}: {key}", "a table") for key in list(given) if key in known}
    own = {item.name for item in fields(Settings)}
    if unknown := sorted(set(given) - own):
        settable = {*own, *known, "world", "algorithm", "agents"}
        raise SettingError(f"{where}: {unknown_keys(unknown, settable, short_name(algorithm))}")
    return Experiment(name, world, algorithm, changed(Settings(), given, where), tables, agents)


def changed(config: Any, values: Mapping[str, Any], where: str, others: Collection[str] = ()) -> Any:
    """A copy of a dataclass with some fields replaced by the values of a TOML table.

    ``others``: further keys that the table may have, for the error that lists them.
    """
    cls: Any = type(config)
    known, kinds = {item.name for item in fields(config)}, kinds_of(cls)
    if unknown := sorted(set(values) - known):
        raise SettingError(f"{where}: {unknown_keys(unknown, known.union(others), _name_of(cls))}")
    found = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found[name] = _nested(getattr(config, name), value, f"{where}.{name}")
        elif isinstance(value, list):
            found[name] = tuple(value)  # the class checks the values
        elif isinstance(value, str) and kinds.get(name) == NetworkSetting:
            found[name] = value  # the config imports it
        elif isinstance(value, str) and takes_function(kinds.get(name)):
            found[name] = import_function(value, f"{where}: {name}")
        else:
            check_value(f"{where}: {name}", value, kinds.get(name, Any))
            found[name] = value
    try:
        return replace(config, **found)
    except (TypeError, SettingError) as error:
        raise SettingError(f"{where}: {error}") from error


def _name_of(config: type) -> str:
    """The name of the algorithm with these settings; empty for other settings."""
    return next((name for name in ALGORITHMS if type(algorithm_config(name)) is config), "")


def _nested(before: Any, table: Mapping[str, Any], where: str) -> Any:
    """A schedule made from a TOML table, or a copy of a nested dataclass with some fields replaced."""
    for schedule in (Linear, Exponential):
        keys = {item.name: item.default is MISSING for item in fields(schedule)}
        if {name for name, needed in keys.items() if needed} <= set(table) <= set(keys):
            return schedule(**table)
    if (isinstance(before, float) or callable(before) or isinstance(before, Staged)) and not {"start", "end"} & set(
        table
    ):
        return Staged(tuple((name, _in_stage(value, f"{where}.{name}")) for name, value in table.items()))
    if hasattr(before, "__dataclass_fields__") and not isinstance(before, (Linear, Exponential, Staged)):
        return changed(before, table, where)
    raise SettingError(
        f"{where} must be a value, or a schedule: {{start, end, steps}} (linear), {{start, end, half_life}} "
        f"(exponential, also with least), or one of these for each stage, got {dict(table)!r}"
    )


def _in_stage(value: Any, where: str) -> Any:
    """The value or the schedule of a stage."""
    if isinstance(value, Mapping):
        return _nested(0.0, value, where)
    return import_function(value, where) if isinstance(value, str) else value


def _table(given: Any, where: str, expected: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SettingError(f"{where} must be {expected}, got {given!r}")
    return given


def _partner_schema() -> dict[str, Any]:
    """The properties of an agent's table that belong to a partner."""
    from motet.policies.limits import PolicyLimits
    from motet.policies.partner import Partner

    found = dict(json_schema(Partner, {})["properties"])
    del found["copy"]
    return found | {"policy": {"type": "string"}, "limits": json_schema(PolicyLimits, {})}


def experiment_schema() -> dict[str, Any]:
    """The JSON Schema of experiment files, derived from the same declarations as the checks.

    >>> schema = experiment_schema()
    >>> schema["properties"]["steps"]["minimum"], schema["properties"]["dqn"]["properties"]["gamma"]["maximum"]
    (1, 1)
    """
    plain = [{"type": "number"}, *(json_schema(one, {}) for one in (Linear, Exponential, Callable[[int], float]))]
    by_stage = {
        "type": "object",
        "propertyNames": {"not": {"enum": ["start", "end"]}},
        "additionalProperties": {"anyOf": plain},
    }
    forms = {Staged: by_stage, Source: {"type": "string", "pattern": f":|^({'|'.join(SHIPPED)})"}}
    tables = {name: json_schema(type(algorithm_config(name)), forms) for name in ALGORITHMS}
    text = {"type": "string"}
    described = json_schema(AgentSettings, {})["properties"]
    of_agent = {name: described[name] for name in OWN}
    own = {
        "world": {"type": "object", "properties": {"name": text}, "required": ["name"]},
        "algorithm": text | {"default": "dqn"},
        "agents": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"algorithm": text} | of_agent | _partner_schema(),
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Experiment file of motet",
        "type": "object",
        "properties": own | json_schema(Settings, {})["properties"] | tables,
        "required": ["world"],
        "additionalProperties": {"type": "object"},  # tables of algorithms outside of motet
    }
