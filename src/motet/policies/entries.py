"""Policies as users name them: a run, a plan, a class by its import path, a built-in name, an object or a factory.

Each becomes an :class:`Entry`: plain data and factories. Nothing is imported or built here. A policy's code runs only
where its :class:`PolicySpec` is made, which may be an untrusted process. A run directory is treated as data too: its
weights are read here (safetensors), and its config must not name classes outside of motet unless it is trusted.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cloudpickle
import numpy as np
import numpy.typing as npt
from annotated_types import Gt

from motet.algorithm import AlgorithmConfig, Space, make_behaviour
from motet.errors import CorruptionError, SettingError
from motet.policies.joint import Kind, kind_of
from motet.policies.limits import PolicyLimits
from motet.policy import PLAYER, BehaviourPolicy, Policy, PolicySpec
from motet.runs.checkpoint import read_arrays, read_notes
from motet.runs.directory import RunDirectory
from motet.runs.trust import make_importable
from motet.settings import FINITE, check_fields
from motet.system.pickling import MAKE_IT_THERE, check_picklable, pickled
from motet.text import nearest

if TYPE_CHECKING:
    from motet.policies.partner import Partner
    from motet.world import World

__all__ = [
    "BUILT_IN",
    "Entry",
    "as_entry",
    "as_given",
    "check_entries",
    "checkpoint_folder",
    "entries",
    "greedy_policy",
    "is_run_policy",
    "load_policies",
    "load_with",
    "read_weights",
    "run_entry",
    "run_policy",
]

BUILT_IN = {
    "random": "motet.policy:RandomPolicy",
    "noop": "motet.policies.scripted:Noop",
    "constant": "motet.policies.scripted:constant",
    "forager": "motet.policies.scripted:Forager",
    "tit_for_tat": "motet.policies.scripted:TitForTat",
    "hockey_weak": "motet.worlds.hockey:Weak",
    "hockey_strong": "motet.worlds.hockey:Strong",
}
"""Built-in policies by name. ``noop`` takes action zero or the nearest to it; ``constant`` needs ``kw.action``;
``forager`` plays the treasure hunt, ``tit_for_tat`` matrix games, ``hockey_weak`` and ``hockey_strong`` hockey."""


@dataclass(frozen=True)
class Entry:
    """One participating policy, on one seat or several.

    >>> as_given("random,proportion=2,name=dice")
    Entry(spec=PolicySpec(factory='motet.policy:RandomPolicy', arguments={}, name='dice'), proportion=2.0)
    """

    spec: PolicySpec
    """How the policy is made."""
    seat: str | None = None
    """The agent that the policy acts for. None: any seat."""
    proportion: Annotated[float, Gt(0), FINITE] = 1.0
    """Share of the seats, relative to the other policies."""
    kind: Kind = "agent"
    """The interface, as far as it is known before the policy is made. An import path may turn out to be a team."""
    isolate: bool | None = None
    """Whether the policy runs in a separate process. None: as set for the evaluation."""
    sandbox: Literal["no", "best-effort", "strict"] = "no"
    """The strictest sandbox of the run's partners in training. An evaluation uses it unless the evaluation sets a
    sandbox."""
    limits: PolicyLimits | None = None
    """The limits of the run's partners in training, if all partners had the same limits. An evaluation uses them unless
    the evaluation sets limits."""
    by_agent: Mapping[str, PolicySpec] = field(default_factory=dict)
    """How each agent's policy is made, by agent. A run has a separate policy for each agent that learned."""
    source: str = ""
    """The user's text for the policy, for reports."""
    key: str = ""
    """Key that is equal for entries of the same policy on different seats."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        more = "" if self.proportion == 1 else f", proportion={self.proportion}"
        return f"Entry(spec={self.spec!r}{more})"

    @property
    def title(self) -> str:
        """Name in results."""
        return self.spec.title

    @property
    def shared(self) -> bool:
        """Whether one object acts for all seats of the policy."""
        return self.spec.shared or self.kind == "joint"

    def on(self, agent: str) -> PolicySpec:
        """Return how the policy is made for one agent."""
        if not self.by_agent or agent in self.by_agent:
            return self.by_agent.get(agent, self.spec)
        known = ", ".join(self.by_agent)
        raise SettingError(
            f"policy {self.title} has no policy for {agent}, only for {known}; choose one of them, for example "
            f"{self.source},agent={next(iter(self.by_agent))}"
        )


def entries(given: Any, agents: Sequence[str], *, trust: bool = False, world: Any = None) -> tuple[Entry, ...]:
    """Return all participating policies, with unique names.

    Args:
        given: one policy for all seats; a mapping from agent to policy; or a sequence that shares the seats.
        agents: the seats.
        trust: as in :func:`as_entry`.
        world: as in :func:`as_entry`.
    """
    if isinstance(given, Mapping):
        if set(given) != set(agents):
            raise SettingError(f"policies must be given for each of {list(agents)}, got {sorted(given)}")
        return _named([replace(as_entry(given[agent], trust=trust, world=world), seat=agent) for agent in agents])
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not several:
        raise SettingError("policies must be one or more, got none")
    found = [as_entry(one, trust=trust, world=world) for one in several]
    if unknown := sorted({str(entry.seat) for entry in found if entry.seat not in (None, *agents)}):
        raise SettingError(f"seat must be one of {', '.join(agents)}, got {', '.join(unknown)}")
    return _named(found)


def _named(found: Sequence[Entry]) -> tuple[Entry, ...]:
    """Make names unique. Entries of the same policy on different seats keep one name."""
    taken = {entry.title for entry in found}
    names: dict[str, dict[str, str]] = {}
    for entry in found:
        same = names.setdefault(entry.title, {})
        if not same:
            same[entry.key] = entry.title
        elif entry.key not in same:
            numbers = itertools.count(len(same) + 1)
            same[entry.key] = next(name for n in numbers if (name := f"{entry.title} ({n})") not in taken)
            taken.add(same[entry.key])
    return tuple(replace(entry, spec=replace(entry.spec, name=names[entry.title][entry.key])) for entry in found)


def as_entry(given: Any, *, trust: bool = False, world: Any = None) -> Entry:
    """Return an entry for what the user gave.

    Args:
        given: a string (see :func:`as_given`), a path, a PolicySpec, an Entry, a class or function, or an object.
        trust: allow a run's config to name classes outside of motet, whose code is then imported and run.
        world: the description of the world (``describe_world``), which a plan needs to read observations.
    """
    if isinstance(given, Entry):
        return given
    if isinstance(given, Path):
        given = str(given)
    if isinstance(given, str):
        return as_given(given, trust=trust, world=world)
    if isinstance(given, PolicySpec):
        kind = given.kind or ("agent" if isinstance(given.factory, str) else kind_of(given.factory))
        return Entry(given, kind=kind, source=given.title, key=f"{id(given)}")
    if isinstance(given, type):
        return Entry(PolicySpec(given), kind=kind_of(given), source=given.__qualname__, key=f"{id(given)}")
    if callable(getattr(given, "reset", None)) and (hasattr(given, "act") or hasattr(given, "act_jointly")):
        return _of_object(given)
    if hasattr(given, "agent_policy"):
        return _of_object(given)
    if callable(given):
        return Entry(PolicySpec(given), source=getattr(given, "__qualname__", type(given).__name__), key=f"{id(given)}")
    raise SettingError(
        f"policy must be a run directory, 'module:Class', one of {', '.join(BUILT_IN)}, an object with reset and act, "
        f"or a class or function that makes one, got {given!r}"
    )


def _of_object(given: Any) -> Entry:
    """Return an entry that plays with copies of an object, so that the user's object does not change."""
    name = getattr(given, "name", None)
    title = name if isinstance(name, str) and name else type(given).__name__
    kind = kind_of(given)
    return Entry(PolicySpec(_Copy(given, title), name=title, kind=kind), kind=kind, source=title, key=f"{id(given)}")


class _Copy:
    """Makes copies of an object."""

    def __init__(self, given: Any, title: str) -> None:
        self._data = pickled(given, f"policy {title}", "policy", MAKE_IT_THERE)

    def __call__(self) -> Any:
        return cloudpickle.loads(self._data)


def check_entries(found: Sequence[Entry]) -> None:
    """Raise if a policy cannot be sent to the processes that play."""
    for entry in found:
        for spec in {id(spec): spec for spec in (entry.spec, *entry.by_agent.values())}.values():
            check_picklable(spec, f"policy {entry.title}", "policy", MAKE_IT_THERE)


# ---- from text


def as_given(text: str, *, trust: bool = False, world: Any = None) -> Entry:
    """Parse an entry from a string: the policy, then options ``name=value``, separated by commas.

    The policy is a built-in name, ``module:Class``, a run or checkpoint directory, or a folder of ``motet plan``; or,
    explicitly, ``class=my.module.Policy``, ``run=…`` or ``plan=…``. The options are ``data=`` (a path for the class),
    ``kw.NAME=`` (an argument), ``proportion=``, ``name=``, ``seat=``, ``kind=agent|joint|team``, ``shared=yes|no`` and
    ``translate=module:attribute`` (for a team), ``isolate=yes|no``, and for a run ``agent=`` (whose policy to take) and
    ``step=`` (which checkpoint).

    >>> as_given("class=my.Policy,data=w.safetensors,kw.depths=[3,4]").spec
    PolicySpec(factory='my:Policy', arguments={'data': 'w.safetensors', 'depths': [3, 4]}, name='')
    """
    what, options, arguments = _parsed(text)
    telling = ("data", "kind", "shared", "translate", "agent", "step", "name")
    apart = {name: options[name] for name in telling if name in options}
    # Where a policy runs does not change the result. So the description of the policy leaves it out.
    source = ",".join(part for part in _PARTS.findall(text) if not part.startswith("isolate="))
    taken: dict[str, Any] = {"source": source, "key": json.dumps([what, apart, arguments])}
    if "seat" in options:
        taken["seat"] = options.pop("seat")
    if "proportion" in options:
        taken["proportion"] = _number(options.pop("proportion"), "proportion")
    if "isolate" in options:
        taken["isolate"] = _yes(options.pop("isolate"), "isolate")
    name = options.pop("name", "")
    form, value = what
    if form == "run":
        step = options.pop("step", None)
        entry = _of_run(
            Path(value), options.pop("agent", None), step if step is None else int(_number(step, "step")), trust
        )
    elif form == "plan":
        entry = _of_plan(Path(value), arguments, world)
        arguments = {}
    else:
        if "data" in options:
            arguments = {"data": options.pop("data"), **arguments}
        entry = _of_class(BUILT_IN.get(value) or _class_path(value), arguments, options)
        name = name or (value if value in BUILT_IN else "")
    if options:
        raise SettingError(f"policy: a {form} does not take the option {', '.join(options)}, got {text!r}")
    if arguments and form == "run":
        raise SettingError(f"policy: a run does not take kw.{next(iter(arguments))}, got {text!r}")
    return replace(entry, spec=replace(entry.spec, name=name or entry.spec.name), **taken)


def _of_class(path: str, arguments: Mapping[str, Any], options: dict[str, str]) -> Entry:
    """Return an entry for a class by its path. Unless ``kind`` is given, a team is recognised when it is made."""
    given: Any = options.pop("kind", None)
    entry = Entry(PolicySpec(path, arguments), kind=given or "agent")
    shared = _yes(options.pop("shared"), "shared") if "shared" in options else given == "joint"
    if given == "joint" and not shared:
        raise SettingError("kind=joint implies shared=yes, got shared=no")
    translate = options.pop("translate", "")
    return replace(entry, spec=replace(entry.spec, kind=given, shared=shared, translate=translate))


_PARTS = re.compile(
    r"(?:[^,\"\[{]|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\})+"
)  # commas in quotes, lists and mappings do not separate
_OPTIONS = (
    *("class", "run", "plan", "data", "proportion", "name", "seat", "kind", "shared", "translate", "isolate"),
    *("agent", "step"),
)


def _parsed(text: str) -> tuple[tuple[str, str], dict[str, str], dict[str, Any]]:
    """Return the form (class, run or plan) and value, the options, and the arguments."""
    options: dict[str, str] = {}
    arguments: dict[str, Any] = {}
    first = ""
    parts = _PARTS.findall(text)
    if ",".join(parts) != text:
        raise SettingError(f"policy must be parts separated by commas, with quotes and brackets closed, got {text!r}")
    for i, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if key.startswith("kw.") and equals:
            arguments[key[3:]] = _value(value)
        elif equals and key in _OPTIONS:
            options[key] = value
        elif i == 0:
            first = part
        else:
            raise SettingError(
                f"policy must have options of the form {', '.join(f'{name}=' for name in _OPTIONS)} or kw.NAME=, got "
                f"{part!r} in {text!r}"
            )
    named = [(form, options.pop(form)) for form in ("class", "run", "plan") if form in options]
    if len(named) + bool(first) != 1:
        raise SettingError(f"policy must be one class, run or plan, followed by its options, got {text!r}")
    return (named[0] if named else _recognised(first)), options, arguments


def _recognised(first: str) -> tuple[str, str]:
    if first in BUILT_IN:
        return "class", first
    folder = Path(first)
    if folder.is_dir():
        if any((folder / name).is_file() for name in ("config.json", "checkpoint.json")):
            return "run", first
        if _is_plan(folder):
            return "plan", first
        raise SettingError(f"policy must be a directory with a policy, got {first!r}, which holds {_no_policy(folder)}")
    if ":" in first:
        return "class", first
    near = nearest(first, BUILT_IN)
    meant = f"; did you mean {near}?" if near else ""
    raise SettingError(
        f"policy must be one of {', '.join(BUILT_IN)}, an existing run directory, or 'module:Class', got {first!r}"
        f"{meant}"
    )


def _is_plan(folder: Path) -> bool:
    from motet.plan.folder import read_folder

    try:
        read_folder(folder, "solution")
    except SettingError:
        return False
    return True


def _no_policy(folder: Path) -> str:
    """Describe the content of a folder that does not hold a policy."""
    from motet.plan.folder import read_folder

    try:
        read_folder(folder, "graph")
    except SettingError:
        return "neither a run, a checkpoint nor a plan"
    return "only the graph of a world with rewards, for motet.plan.best_response; only plans with humans can play"


def _class_path(text: str) -> str:
    """Return ``my.module:Class``, also for ``my.module.Class``."""
    if ":" in text:
        return text
    module, _, name = text.rpartition(".")
    if not module:
        raise SettingError(f"class must be 'module:Class', or one of {', '.join(BUILT_IN)}, got {text!r}")
    return f"{module}:{name}"


def _value(text: str) -> Any:
    """Parse a value as JSON; anything else is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{what} must be a number, got {text!r}") from None


def _yes(text: str, what: str) -> bool:
    if text not in ("yes", "no"):
        raise SettingError(f"{what} must be yes or no, got {text!r}")
    return text == "yes"


# ---- runs


def _of_run(path: Path, agent: str | None, step: int | None, trust: bool) -> Entry:
    """Return the policies of a run: each seat gets the agent of the same name, or all seats get ``agent``."""
    run, folder = checkpoint_folder(path, step)
    config = run.config()
    configs, trust = config.get("agents", {}), trust or make_importable(run.path, config)
    weights = read_weights(folder)
    names = [name for name in configs if name in weights]
    if agent is not None:
        if agent not in names:
            raise SettingError(f"agent must be one of {', '.join(names)} of the run {str(path)!r}, got {agent!r}")
        names = [agent]
    if not names:
        raise SettingError(f"run: {str(path)!r} has no weights for any agent of its config")
    which = str(int(folder.name)) if folder.name.isdigit() else folder.name
    newest = step is None and not (path / "checkpoint.json").is_file()
    title = run.path.name if newest else f"{run.path.name}@{which}"
    specs, confined = {}, dict[str, Any]()
    for name in names:
        _check_trust(configs[name], trust)
        arguments = {"config": configs[name], "weights": weights[name], "trust": trust, "who": name}
        specs[name] = PolicySpec(run_policy, arguments, title if agent is None else f"{title}:{agent}")
    if agent is None:
        partners = _partners_of(run, configs, trust)
        specs |= {name: entry.on(name) for name, (_, entry) in partners.items() if not entry.shared}
        confined = _confinement([partner for partner, entry in partners.values() if entry.isolate])
    if len(specs) == 1 and (agent is not None or len(configs) == 1):  # a single policy can take any seat
        return Entry(next(iter(specs.values())))
    return Entry(next(iter(specs.values())), by_agent=specs, **confined)


def _confinement(isolated: Sequence[Partner]) -> dict[str, Any]:
    """Return how the policies of a run are isolated: with the strictest sandbox of its isolated partners."""
    if not isolated:
        return {}
    sandbox = max((one.sandbox for one in isolated), key=["no", "best-effort", "strict"].index)
    limits = {one.limits for one in isolated}
    return {"isolate": True, "sandbox": sandbox, "limits": limits.pop() if len(limits) == 1 else None}


def _partners_of(run: RunDirectory, configs: Mapping[str, Any], trust: bool) -> dict[str, tuple[Partner, Entry]]:
    """Return the partners of a run, by agent."""
    stored = {name: one for name, one in configs.items() if str(one.get("class")).endswith(".partner:Partner")}
    if not stored:
        return {}
    from motet.policies.partner import restored
    from motet.runs.config import rebuild_agents

    found = restored(rebuild_agents(stored, trust=trust), run.path, trust)
    return {name: (partner, partner.entry(run.config().get("world", {}))) for name, partner in found.items()}


def run_entry(path: Path, *, trust: bool = False) -> Entry:
    """Return the policies of a run, given by its path."""
    return replace(_of_run(path, None, None, trust), source=str(path), key=str(path))


def is_run_policy(spec: PolicySpec) -> bool:
    """Whether a policy comes from a run. Then its weights have been read already."""
    return spec.factory is run_policy


def checkpoint_folder(path: Path, step: int | None) -> tuple[RunDirectory, Path]:
    """Return the run and the folder of one checkpoint."""
    if (path / "checkpoint.json").is_file():
        above = path.resolve().parent
        home = above.parent if above.name in ("checkpoints", "league") else above
        if step is not None:
            raise SettingError(f"step is only valid for a run (got {step} for {str(path)!r}, which is one checkpoint)")
        return RunDirectory.open(home), path.resolve()
    run = RunDirectory.open(path)
    steps = run.steps()
    if not steps:
        raise SettingError(f"run: {str(path)!r} has no checkpoint")
    if step is not None and step not in steps:
        raise SettingError(f"step must be one of the checkpoints {steps}, got {step}")
    return run, run.checkpoints / f"{steps[-1] if step is None else step:012d}"


def read_weights(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Return one flat vector for each agent of a checkpoint; it begins with the agent's weights. Nothing is
    unpickled."""
    found = {}
    for name, stem in read_notes(folder)["files"].items():
        path = folder / f"{stem}.safetensors"
        arrays = read_arrays(path)
        held = next((key for key in ("weights", "state") if key in arrays), None)
        if held is None:
            raise CorruptionError(f"{path} holds {', '.join(arrays) or 'nothing'}, expected weights or a state")
        found[name] = arrays[held]
    for name, array in found.items():
        if array.ndim != 1 or array.dtype != np.float32 or not np.isfinite(array).all():
            raise CorruptionError(
                f"the checkpoint {folder} holds {array.dtype} {list(array.shape)} for {name}, expected one flat vector "
                "of finite float32"
            )
    return found


def learner_row(text: str, agent: str) -> tuple[dict[str, Any], dict[str, str], npt.NDArray[np.float32]]:
    """Return the config of an agent of a run, its spaces and its learner's row. Nothing is imported.

    Runs of earlier versions did not store the spaces.

    Args:
        text: a run or checkpoint, optionally followed by ``agent=`` and ``step=``, as in :func:`as_given`.
        agent: default agent, used if the text names no agent and the run has an agent of this name.
    """
    there = Path(text.partition(",")[0].removeprefix("run=")).is_dir()
    (form, path), options, arguments = _parsed(text) if there else (("", ""), {}, {})
    if form != "run" or arguments or not set(options) <= {"agent", "step"}:
        raise SettingError(f"start_from must be a run or checkpoint, with agent= and step= if wanted, got {text!r}")
    step = options.get("step")
    run, folder = checkpoint_folder(Path(path), step if step is None else int(_number(step, "step")))
    config, files = run.config(), read_notes(folder)["files"]
    configs = config.get("agents", {})
    names = [name for name in configs if name in files]
    wanted = options.get("agent", agent if agent in names or len(names) != 1 else names[0])
    if wanted not in names:
        raise SettingError(f"agent must be one of {', '.join(names)} of the run {path!r}, got {wanted!r}")
    arrays = read_arrays(folder / f"{files[wanted]}.safetensors")
    if "state" not in arrays:
        raise SettingError(f"start_from must be a run or one of its checkpoints, got {text!r}, which has only weights")
    return configs[wanted], config.get("spaces", {}).get(wanted, {}), arrays["state"].ravel()


def _check_trust(plain: Any, trust: bool) -> None:
    """Refuse a config that names a class outside of motet, before it is imported."""
    from motet.runs.config import refuse_untrusted

    if not trust:
        refuse_untrusted(plain)


def run_policy(
    config: Mapping[str, Any],
    weights: npt.NDArray[np.float32],
    who: str,
    trust: bool,
    observation_space: Space,
    action_space: Space,
) -> Policy:
    """Make the greedy policy of one agent of a run, in the process in which it acts."""
    from motet.runs.config import rebuild_agents

    algorithm = rebuild_agents({who: config}, trust=trust)[who]
    sizes = algorithm.sizes(observation_space, action_space)
    if len(weights) not in (sizes.weights, sizes.state):
        raise SettingError(
            f"agent {who}: the run must have {sizes.weights} weights (or {sizes.state} with the optimiser state) "
            f"for {observation_space} and {action_space}, got {len(weights)}: it was trained in another world"
        )
    return greedy_policy(algorithm, weights[: sizes.weights], observation_space, action_space)


def greedy_policy(
    algorithm: AlgorithmConfig, weights: npt.NDArray[np.float32], observation_space: Space, action_space: Space
) -> Policy:
    """Make the greedy policy of an algorithm with these weights."""
    header = {key: np.zeros(shape, dtype)[()] for key, (shape, dtype) in algorithm.header.items()}
    behaviour = make_behaviour(algorithm, observation_space, action_space)
    n_frames = algorithm.replay(observation_space, action_space, masked=False).n_frames
    return BehaviourPolicy(behaviour, weights, header, n_frames=n_frames, action_space=action_space)


def load_policies(
    run: str | os.PathLike[str], step: int | None = None, *, world: Any = None, trust: bool = False
) -> dict[str, Policy]:
    """Load the greedy policies of a run's agents from a checkpoint, for use in this process.

    Args:
        run: the run directory, or one of its checkpoints.
        step: step of the checkpoint; the newest by default.
        world: factory of the run's world, if the run does not name one.
        trust: allow the run to name worlds and algorithms outside of motet, whose code is then imported and run. Runs
            that this user has trained on this machine need no trust.

    ::

        policies = motet.load_policies("runs/mine")
        policies["agent_0"].reset(seed=0)
        action = policies["agent_0"].act(observation)
    """
    from motet.policies.partner import local_policies

    return load_with(run, local_policies, step, world=world, trust=trust)


def load_with(
    run: str | os.PathLike[str],
    make_partners: Callable[[Mapping[str, tuple[Partner, Entry]], World, Mapping[str, Any]], dict[str, Policy]],
    step: int | None = None,
    *,
    world: Any = None,
    trust: bool = False,
) -> dict[str, Policy]:
    """Load the policies of a run as :func:`load_policies` does. ``make_partners`` makes those of its partners."""
    from motet.runs.config import rebuild_world
    from motet.world import as_world

    directory, folder = checkpoint_folder(Path(run), step)
    config, weights = directory.config(), read_weights(folder)
    trust = trust or make_importable(directory.path, config)
    made = as_world((world or rebuild_world(config.get("world", {}), trust=trust))())
    configs = config.get("agents", {})
    try:
        # In self-play a single policy has learned to play every seat.
        who = {name: PLAYER if list(configs) == [PLAYER] else name for name in made.agents}
        partners = _partners_of(directory, configs, trust)
        learned = {name: agent for name, agent in who.items() if name not in partners}
        if missing := [name for name in learned.values() if name not in configs or name not in weights]:
            raise SettingError(f"run: {str(directory.path)!r} has no agent {missing[0]}, but the world does")
        own = dict(zip(made.agents, zip(made.observation_spaces, made.action_spaces, strict=True), strict=True))
        found = {
            name: run_policy(configs[agent], weights[agent], name, trust, *own[name]) for name, agent in learned.items()
        }
        if partners:
            made.reset(0)
            found |= make_partners(partners, made, config.get("world", {}))
        return {name: found[name] for name in made.agents}
    finally:
        made.close()


# ---- plans


def _of_plan(path: Path, arguments: Mapping[str, Any], world: Any) -> Entry:
    if not _is_plan(path):
        raise SettingError(
            f"plan must be a folder that motet plan --out wrote, got {str(path)!r}, which holds {_no_policy(path)}"
        )
    if world is None or world.get("path") is None:
        raise SettingError(
            f"plan: {str(path)!r} needs the world, to map observations to states; give the world by name, or in Python "
            "PolicySpec(PlannedPolicy.load, {'path': …, 'agent': …, 'world': …})"
        )
    return Entry(PolicySpec(planned, {"data": str(path), "model": dict(world), **arguments}, path.name))


def planned(data: str, model: Mapping[str, Any], agent: str, goal: str | None = None) -> Policy:
    """Make the planned policy of one agent, in the process in which it acts. ``model``: the world that is played."""
    from motet.plan.solution import PlannedPolicy
    from motet.runs.config import rebuild_world

    made: Callable[[], Any] = rebuild_world(model, trust=True)  # the user named the world to be played
    return PlannedPolicy.load(data, agent, made, goal)
