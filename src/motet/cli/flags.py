"""The flags of ``motet train``, derived from the dataclasses and signatures of the Python API.

The flags depend on the world and on the algorithm: ``--world.size`` comes from the parameters of the world,
``--iqn.learning-rate`` from the fields of the algorithm's config. Both names are therefore read from the arguments
first; then tyro parses all arguments. The result is a :class:`TrainRequest`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from motet.algorithm import AlgorithmConfig
from motet.algorithms.catalogue import ALGORITHMS, short_name
from motet.algorithms.source import NetworkSetting, Source
from motet.cli.experiment import Experiment, read
from motet.cli.help import HELP_ALL, argument_docs, flags_of, help_wanted, show_help
from motet.cli.hints import unknown_flags, unknown_keys
from motet.cli.keyword_flags import keyword_flags
from motet.cli.number_flags import numbers, read_whole
from motet.errors import SettingError
from motet.runs.sinks import DisplayChoice, WandbSettings
from motet.schedule import Clock, Exponential, Linear, Schedule, Staged
from motet.settings import describe_settings, kinds_of
from motet.system.imports import Imported, import_function, path_of
from motet.training.settings import AgentSettings, ScoreFunction, Settings
from motet.worlds.catalogue import WORLDS, world_factory, world_name

if TYPE_CHECKING:
    from motet.policies.partner import Partner

__all__ = ["TrainRequest", "parse", "place_of_world", "schedules", "static_flags", "train", "world_flags"]

_PLAIN = (int, float, str, bool)
_SEEDS = (
    "Number of seeds to train, the first of which is --seed, with one table and one report. They are trained in "
    "parallel if there are enough cores. --run is then the folder of all runs; unfinished runs in it are continued."
)
DISPLAY_HELP = (
    "How the run is shown: a live table (lines where there is no terminal), plain lines, or not at all. auto: a table "
    "in a terminal, lines in a notebook, otherwise nothing."
)
PICTURES_HELP = (
    "Whether to write a learning curve and a GIF of an episode at the end. By default they are written if the run is "
    "shown."
)

COMMON = {
    "run": ("steps", "episodes", "seconds", "seed", "evaluate_every"),
    "speed": (
        *("engine", "actors", "worlds_per_actor", "learner_processes", "updates_per_step", "slack"),
        *("publish", "publish_every", "sync_interval", "device"),
    ),
}
"""The fields of Settings that ``--help`` shows, by group."""
COMMON_OF_ALGORITHMS = (
    *("hidden", "learning_rate", "batch_size", "gamma", "n_step", "n_frames", "epsilon", "noise", "prioritised"),
    *("capacity", "min_rows", "normalise", "length", "epochs", "minibatches", "clip", "entropy"),
)
"""The fields of the shipped algorithms' configs that ``--help`` shows. Of other algorithms it shows every field."""


arg = tyro.conf.arg


@dataclass(frozen=True)
class WandbFlags:
    """Weights & Biases."""

    wandb: bool = False
    """Also send metrics to Weights & Biases. The flags for project, name, group and tags imply this flag."""
    wandb_project: str | None = None
    """Project in Weights & Biases. Default: the value of WANDB_PROJECT, otherwise motet."""
    wandb_name: str | None = None
    """Name of the run in Weights & Biases. Default: the name of the run directory."""
    wandb_group: str | None = None
    """Group of the run in Weights & Biases."""
    wandb_tags: tuple[str, ...] = ()
    """Tags of the run in Weights & Biases."""

    def given(self) -> bool | WandbSettings:
        """Return the argument ``wandb`` of ``motet.train``."""
        named = {"project": self.wandb_project, "name": self.wandb_name, "group": self.wandb_group}
        found = {name: value for name, value in named.items() if value is not None}
        settings: Any = found | ({"tags": list(self.wandb_tags)} if self.wandb_tags else {})
        return settings or self.wandb


@dataclass
class TrainRequest:
    """The parsed arguments of ``motet train``."""

    world: str
    """Short name of the world, for the run directory."""
    algorithm: str
    """Short name of the algorithm, for the run directory; "mixed" if agents have different ones."""
    factory: Callable[[], Any]
    configs: AlgorithmConfig | dict[str, AlgorithmConfig | AgentSettings | Partner]
    settings: Settings
    run: Path | None
    display: DisplayChoice
    pictures: bool | None
    wandb: bool | WandbSettings
    seeds: int | None = None
    """Number of seeds, each trained in a separate run; None: a single run."""
    compare_exact: bool = False


def train(arguments: Sequence[str]) -> int:
    """Run ``motet train`` and return the exit code. Training code is imported after parsing, so that help is fast."""
    asked = parse(arguments)
    from motet.cli.train import train

    return train(asked)


def parse(arguments: Sequence[str]) -> TrainRequest:
    """Parse the arguments of ``motet train``. Exits the process for ``--help`` and for unknown flags."""
    # --address is short for --cluster.address, as in the other commands.
    given = [f"--cluster.{token[2:]}" if token.startswith("--address") else token for token in arguments]
    place, helps = place_of_world(given), help_wanted(given)
    if place is None and not helps:
        raise SettingError(
            f"world must be one of {', '.join(WORLDS)}, 'gym:ID', 'module:attribute' or a .toml file, got none"
        )
    name = given.pop(place) if place is not None else ""
    experiment = read(Path(name)) if name.endswith(".toml") else Experiment(name)
    experiment.algorithm = _value_of(given, "--algorithm") or experiment.algorithm
    given, own = _agent_flags(given)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # users' modules are in the current directory

    maker = world_factory(experiment.world) if experiment.world else None
    for path, text in own:
        _set_of_agent(experiment, path, text)
    if maker is not None:
        keywords, given = keyword_flags(maker, given)
        experiment.world_settings |= keywords
    world = world_flags(maker, experiment) if maker else None
    if world is not None and "agents" not in world.__dataclass_fields__ and _value_of(given, "--agents"):
        raise SettingError(f"agents is not a setting of the world {experiment.world}")
    with numbers(), schedules():
        if helps:
            last = f"motet train {name or 'WORLD'} --help-all shows the other flags." if helps == "common" else ""
            show_help((_common if last else _options)(experiment, world), "motet train", _DESCRIPTION, last)
        options = _options(experiment, world)
        chosen: Any
        chosen, unknown = tyro.cli(
            options,
            prog="motet train",
            description=_DESCRIPTION,
            args=[name, *given],
            config=(tyro.conf.FlagCreatePairsOff,),
            return_unknown_args=True,
        )
    if unknown:
        raise SettingError(unknown_flags(unknown, _flags(options, experiment), short_name(experiment.algorithm)))
    return _asked(chosen, experiment, maker)


def _flags(options: type, experiment: Experiment) -> list[str]:
    """All flags of the command, from which a misspelt flag is corrected."""
    names = [item.name for item in dataclasses.fields(options) if not item.name.endswith("_")]
    names += [item.name for kind in (Settings, WandbFlags) for item in dataclasses.fields(kind)] + ["agents"]
    for item in dataclasses.fields(options):
        prefix = {"config_": short_name(experiment.algorithm), "world_": "world"}.get(item.name)
        if prefix:
            inner = {field.name for field in dataclasses.fields(item.default)}  # type: ignore[arg-type]
            names += [f"{prefix}.{name}" for name in sorted(inner - {"agents"})]
    return [f"--{name.replace('_', '-')}" for name in names]


_DESCRIPTION = """Train every agent of a world, each with a separate learner.

Name a world and an algorithm to see their flags too:
  motet train cleanup --algorithm iqn --help

Set single agents by name. An agent with a policy does not learn:
  motet train treasure_hunt --agents.agent_1.algorithm iqn
  motet train treasure_hunt --agents.agent_1.policy random

A SCHEDULE is a number, or one of
  linear:START:END:STEPS
  exponential:START:END:HALF_LIFE[:LEAST]   LEAST is a floor
  package.module:function                   a function of the agent's steps
  STAGE=SCHEDULE,STAGE=SCHEDULE             by stage"""


def place_of_world(given: Sequence[str]) -> int | None:
    """The index of the argument that names the world: 0 if the first one is not a flag, otherwise that of the first
    shipped world or .toml file; None if there is none."""
    if given and not given[0].startswith("-"):
        return 0
    for i, token in enumerate(given):
        if token in WORLDS or token.endswith(".toml"):
            return i
    return None


def _value_of(given: Sequence[str], flag: str) -> str | None:
    for i, token in enumerate(given):
        if token == flag and i + 1 < len(given):
            return given[i + 1]
        if token.startswith(f"{flag}="):
            return token.partition("=")[2]
    return None


_AGENT = "--agents."


def _agent_flags(given: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate the flags of single agents, ``--agents.NAME.KEY VALUE``, from the other arguments. Return the others,
    then the flags with their values."""
    rest, own, tokens = list[str](), list[tuple[str, str]](), iter(given)
    for token in tokens:
        if not token.startswith(_AGENT):
            rest.append(token)
            continue
        path, equals, value = token.removeprefix(_AGENT).partition("=")
        if not equals:
            following = next(tokens, None)
            if following is None:
                raise SettingError(f"{token} must have a value, got none")
            value = following
        own.append((path, value))
    return rest, own


def _set_of_agent(experiment: Experiment, path: str, text: str) -> None:
    """Put the flag of an agent into the experiment. A dot separates the name of the agent from the key."""
    name, dot, key = path.rpartition(".")
    outer = name.rpartition(".")
    nested = dot and outer[2] == "limits" and outer[0]  # the only table among the settings of an agent
    if not name or not key:
        raise SettingError(f"{_AGENT}{path} must be {_AGENT}NAME.KEY, with the name of an agent and a setting")
    key = key.replace("-", "_")
    table = experiment.agents.setdefault(outer[0] if nested else name, {})
    if nested:
        table = table.setdefault("limits", {})
    table[key] = text if key in ("policy", "algorithm", "name") else _read_value(text)


def _read_value(text: str) -> Any:
    """A value of TOML, a schedule, or a string.

    >>> _read_value("128"), _read_value("true"), _read_value("[64, 64]"), _read_value("strict")
    (128, True, [64, 64], 'strict')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    with contextlib.suppress(ValueError):
        if text[:1].isdigit():
            return read_whole(text)
        if "=" in text or text.partition(":")[0] in ("linear", "exponential"):
            return _read_schedule(text)
    return text


def _options(experiment: Experiment, world: Any) -> type:
    """A dataclass of all flags, with the values of the experiment as defaults."""
    config = flags_of(experiment.config(experiment.algorithm))
    rows = [
        *_first_rows(experiment),
        ("settings", Annotated[Settings, arg(name="")], experiment.settings),
        ("config_", Annotated[type(config), arg(name=short_name(experiment.algorithm))], config),
    ]
    if world is not None:
        rows.append(("world_", Annotated[type(world), arg(name="world")], world))
    return dataclasses.make_dataclass("Train", rows, frozen=True)


def static_flags() -> type:
    """A dataclass of the flags that do not depend on a world."""
    return _options(Experiment(""), None)


def _common(experiment: Experiment, world: Any) -> type:
    """A dataclass of the common flags only, in groups."""
    config = experiment.config(experiment.algorithm)
    shipped = experiment.algorithm in ALGORITHMS
    config = flags_of(config, COMMON_OF_ALGORITHMS if shipped else None)
    run, speed = (_group(experiment.settings, name) for name in COMMON)
    worlds = [] if world is None else [("world_", Annotated[type(world), arg(name="world")], world)]
    config_ = ("config_", Annotated[type(config), arg(name=short_name(experiment.algorithm))], config)
    rows = [*_first_rows(experiment), run, *worlds, config_, speed]
    return dataclasses.make_dataclass("Train", rows, frozen=True)


def _group(settings: Settings, name: str) -> tuple[Any, ...]:
    part = flags_of(settings, COMMON[name], about="")
    return f"{name}_", Annotated[type(part), tyro.conf.OmitArgPrefixes, arg(name=name)], part


def _first_rows(experiment: Experiment) -> list[tuple[Any, ...]]:
    """The flags that are not fields of a settings dataclass."""
    shipped = ", ".join(WORLDS)
    about = f"A shipped world ({shipped}), gym:ID, package.module:make_env, or an experiment file (.toml)."
    known = f"Algorithm of the agents: {', '.join(ALGORITHMS)}, or package.module:Config."
    where = "Run directory. By default a new runs/<world>-<algorithm>-…"
    return [
        ("name_", Annotated[str, tyro.conf.Positional, arg(metavar="WORLD", help=about)]),
        ("algorithm", Annotated[str, arg(help=known)], experiment.algorithm),
        # A string, because Path("") would be the current directory.
        ("run", Annotated[str | None, arg(metavar="PATH", help=where)], None),
        ("display", Annotated[DisplayChoice, arg(help=DISPLAY_HELP)], "table"),
        ("pictures", Annotated[bool | None, arg(help=PICTURES_HELP)], None),
        ("wandb", Annotated[WandbFlags, arg(name="")], WandbFlags()),
        ("seeds", Annotated[int | None, arg(help=_SEEDS, metavar="NUMBER")], None),
        ("compare_exact", Annotated[bool, arg(help=_COMPARE_HELP)], False),
        HELP_ALL,
    ]


def _values(config: Any) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in dataclasses.fields(config) if item.init}


_COMPARE_HELP = "With empower: at the end, compare the robot with the exact solution of the model."


def _compares(chosen: Any) -> bool:
    """Whether to compare the result with the exact solution; raise if the algorithm has none."""
    if chosen.compare_exact and "empower" not in type(chosen.config_).__mro__[1].__module__:
        raise SettingError("compare_exact is only valid with --algorithm empower")
    return bool(chosen.compare_exact)


def _asked(chosen: Any, experiment: Experiment, maker: Any) -> TrainRequest:
    if chosen.run == "":
        raise SettingError("run must be a path for the run directory, got an empty string")
    settings = dict(experiment.world_settings)
    for name, parameter in inspect.signature(maker).parameters.items():
        value = getattr(getattr(chosen, "world_", None), name, parameter.default)
        if value != parameter.default:
            settings[name] = value
    factory = world_factory(maker, settings)
    checked: Any = type(chosen.config_).__mro__[1]
    default = checked(**_values(chosen.config_))
    configs: Any = default
    if experiment.agents:
        from motet.world import as_world

        probe = as_world(factory())
        if strangers := sorted(set(experiment.agents) - set(probe.agents)):
            raise SettingError(f"agents must be some of {', '.join(probe.agents)}, got {', '.join(strangers)}")
        configs = {name: experiment.of_agent(name, default) for name in probe.agents}
        probe.close()
    learning = [own for own in experiment.agents.values() if "policy" not in own]
    mixed = len({own.get("algorithm", experiment.algorithm) for own in learning}) > 1 or any(
        own.get("algorithm", experiment.algorithm) != experiment.algorithm for own in learning
    )
    return TrainRequest(
        world=world_name(experiment.world).removeprefix("gym:"),
        algorithm="mixed" if mixed else short_name(experiment.algorithm),
        factory=factory,
        configs=configs,
        settings=chosen.settings,
        run=None if chosen.run is None else Path(chosen.run),
        display=chosen.display,
        pictures=chosen.pictures,
        wandb=chosen.wandb.given(),
        seeds=chosen.seeds,
        compare_exact=_compares(chosen),
    )


# ---- settings of the world


def world_flags(maker: Any, experiment: Experiment) -> Any:
    """A dataclass of the parameters of a world that flags can set, with the values of the experiment as defaults."""
    signature = inspect.signature(maker)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    known = [name for name, p in signature.parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if (strangers := sorted(set(experiment.world_settings) - set(known))) and not takes_any:
        raise SettingError(
            f"settings of the world {experiment.world}: {unknown_keys(strangers, known, experiment.algorithm)}"
        )
    hints, docs = _hints(maker), argument_docs(maker)
    rows: list[tuple[Any, ...]] = []
    for name in known:
        default = experiment.world_settings.get(name, signature.parameters[name].default)
        kind = _flag_type(hints.get(name), default)
        bound = isinstance(maker, functools.partial) and name in maker.keywords
        if kind is None or bound or name == "render_mode":
            continue
        about = docs.get(name, "Number of agents." if name == "agents" else None)
        kind = Annotated[kind, arg(prefix_name=name != "agents", help=about)]
        row = (name, kind) if default is inspect.Parameter.empty else (name, kind, field(default=default))
        rows.append(row)
    rows.sort(key=len)  # required fields come first
    kind = dataclasses.make_dataclass("World", rows, frozen=True)
    return kind(**{row[0]: tyro.MISSING for row in rows if len(row) == 2})


def _hints(maker: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(maker, "__init__") if isinstance(maker, type) else maker)  # noqa: B009
    except (NameError, TypeError, AttributeError):  # a name in the annotations is imported for type checkers only
        return {}


def _flag_type(hint: Any, default: Any) -> Any:
    """The type of a flag, or None if no flag can set this parameter."""
    members = typing.get_args(hint) if typing.get_origin(hint) is not Annotated else ()
    if hint in _PLAIN or (members and all(one in (*_PLAIN, type(None)) for one in members)):
        return hint
    return type(default) if type(default) in _PLAIN else None


# ---- bounds in help texts

_registry = tyro.constructors.ConstructorRegistry()


@_registry.struct_rule
def _bounded(info: Any) -> Any:
    """Show the bounds of settings beside their defaults, and their texts without marks of code."""
    rows = describe_settings(info.type) if dataclasses.is_dataclass(info.type) else []
    if not any(row.bounds or "``" in row.text for row in rows) or not isinstance(info.default, info.type):
        return None
    kinds, field_of = kinds_of(info.type), tyro.constructors.StructFieldSpec
    fields = [
        field_of(
            row.name,
            _hinted(kinds[row.name], row.bounds),
            getattr(info.default, row.name),
            helptext=row.text.replace("``", ""),
        )
        for row in rows
    ]
    return tyro.constructors.StructConstructorSpec(instantiate=info.type, fields=tuple(fields))


def _hinted(kind: Any, bounds: str) -> Any:
    hint = tyro.conf.arg(help_behavior_hint=lambda default: f"(default: {default}; {bounds})")
    return Annotated[kind, hint] if bounds else kind


def schedules() -> Any:
    """A context in which tyro reads and shows schedules, and shows the bounds of settings."""
    return _registry


# ---- schedules: a number, linear:1:0.05:20000, exponential:1:0.05:5000, a function, or STAGE=SCHEDULE,STAGE=SCHEDULE


@_registry.primitive_rule
def _schedule(info: Any) -> Any:
    kind = _without_bounds(info.type)
    if kind not in (Schedule, Schedule | None):
        return None
    optional = kind != Schedule
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SCHEDULE|NONE" if optional else "SCHEDULE",
        instance_from_str=lambda words: None if optional and words[0] == "None" else _read_schedule(words[0]),
        is_instance=lambda value: (
            isinstance(value, (int, float, Staged)) or callable(value) or (optional and value is None)
        ),
        str_from_instance=lambda value: ["None" if value is None else _write_schedule(value)],
    )


def _without_bounds(kind: Any) -> Any:
    """A type without the bounds of the members of a union."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return typing.Union[tuple(_plain_of(one) for one in typing.get_args(kind))]  # noqa: UP007 - of a tuple


def _plain_of(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


@_registry.primitive_rule
def _network(info: Any) -> Any:
    """A factory of networks, by its import path."""
    if info.type != NetworkSetting:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="MODULE:FUNCTION",
        instance_from_str=lambda words: Source.of(words[0], "network"),
        is_instance=lambda value: value is None or isinstance(value, Source),
        str_from_instance=lambda value: [str(value)],
    )


@_registry.primitive_rule
def _function(info: Any) -> Any:
    """A function, by its import path."""
    if info.type != ScoreFunction | None:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="MODULE:NAME",
        instance_from_str=lambda words: import_function(words[0], "score"),
        is_instance=lambda value: value is None or callable(value),
        str_from_instance=lambda value: ["None" if value is None else _write_schedule(value)],
    )


def _read_schedule(text: str) -> Schedule:
    if "=" in text:
        parts = [part.partition("=") for part in text.split(",")]
        return Staged(tuple((name, _read_plain(value)) for name, _, value in parts))
    return _read_plain(text)


def _read_plain(text: str) -> float | Linear | Exponential | Callable[[int], float]:
    kind, *numbers = text.split(":")
    try:
        if not numbers:
            return float(kind)
        if kind in ("linear", "exponential"):
            start, end, span, *rest = numbers
            least = float(rest.pop(0)) if kind == "exponential" and rest and not rest[0].isalpha() else None
            (by,) = cast(list[Clock | None], rest) or [None]  # Linear and Exponential check it
            if kind == "linear":
                return Linear(float(start), float(end), int(span), by)
            return Exponential(float(start), float(end), float(span), by, least)
    except SettingError:
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a schedule must be a number, or e.g. linear:1.0:0.05:20000, got {text!r} ({error})"
        ) from error
    return import_function(text, "a schedule")


def _write_schedule(value: Schedule) -> str:
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, Staged):
        return ",".join(f"{name}={_write_schedule(part)}" for name, part in value.values)
    if isinstance(value, (Linear, Exponential)):
        parts = [*(getattr(value, item.name) for item in dataclasses.fields(value) if item.name != "by"), value.by]
        return ":".join([type(value).__name__.lower(), *(str(part) for part in parts if part is not None)])
    return value.path if isinstance(value, Imported) else path_of(value)
