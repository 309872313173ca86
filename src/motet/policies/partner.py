"""Partner: a given policy by which agents act in a training run while others learn.

A partner is named as a policy of an evaluation is (:mod:`motet.policies.entries`). In a run's ``config.json`` it is
listed under its agent, like an algorithm. A run that acts as a partner is copied into the new run's directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from motet.errors import SettingError
from motet.policies.entries import BUILT_IN, Entry, as_entry, is_run_policy, run_entry
from motet.policies.limits import PolicyLimits
from motet.policies.teams import describe_world, make_policy, shared_policy
from motet.policy import JointPolicy, Policy, PolicySpec, asker
from motet.settings import check_fields
from motet.system.imports import path_of
from motet.world import World

__all__ = ["Partner", "as_partner", "local_policies", "restored"]


@dataclass(frozen=True)
class Partner:
    """A given policy by which an agent acts in training, while other agents learn.

    In the mapping from agents to algorithms, built-in names and run directories are recognised without ``Partner``.

    >>> from motet import Settings, train
    >>> settings = Settings(steps=100, engine="serial")
    >>> result = train("matrix", {"player_0": "dqn", "player_1": Partner("constant,kw.action=1")}, settings)
    >>> sorted(result.updates), sorted(result.returns)
    (['player_0'], ['player_0', 'player_1'])
    """

    policy: Any
    """The policy: a string as in ``motet eval -p``, a path, a PolicySpec, a class, a function or an object."""
    name: str = ""
    """Name in tables; by default the name of the policy."""
    isolate: bool = False
    """Whether the policy runs in a separate process for each world. A ``policy`` string with ``isolate=yes`` has the
    same effect."""
    sandbox: Literal["no", "best-effort", "strict"] = "no"
    """Whether an isolated policy is denied access to network, files and other processes. ``no``: not denied.
    ``strict``: denied; if this machine cannot do so, an error is raised. ``best-effort``: denied as far as this machine
    can do so."""
    limits: PolicyLimits | None = None
    """Limits of an isolated policy. None: the defaults of ``PolicyLimits``."""
    max_failures: Annotated[int, Ge(0)] = 10
    """Number of failures of an isolated policy that each actor tolerates. After each of these failures the episode
    breaks off, and the policy is started again in a new process. One failure more ends the run."""
    trust: bool = False
    """If the policy is a run: allow it to name algorithms outside of motet, whose code is then imported and run."""
    copy: str = ""
    """If the policy is a run: the folder in the new run's directory that holds the copy of the given run. Set by
    motet."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.policy is None or self.policy == "":
            raise SettingError(f"policy must be a policy, as in motet eval -p, got {self.policy!r}")
        if isinstance(self.policy, Path):
            object.__setattr__(self, "policy", str(self.policy))
        if isinstance(self.policy, Partner):
            raise SettingError("policy must be a policy, got a Partner in a Partner")

    def entry(self, world: Mapping[str, Any]) -> Entry:
        """Return the policy as an entry. ``world``: the description of the world, which a plan needs."""
        if self.copy:
            found = run_entry(Path(self.policy), trust=self.trust)
        else:
            found = as_entry(self.policy, trust=self.trust, world=world)
        if found.seat is not None or found.proportion != 1:
            option = "seat" if found.seat is not None else "proportion"
            raise SettingError(f"{option} is only valid in evaluations: an agent's partner is given by its name")
        isolated = self.isolate if found.isolate is None else found.isolate
        if not isolated and (self.sandbox != "no" or self.limits is not None):
            raise SettingError("sandbox and limits are only valid with isolate=True (got isolate=False)")
        key = found.key
        if isinstance(self.policy, PolicySpec) and isinstance(self.policy.factory, str):
            key = _key(self.policy)  # the key is equal for equal specs, even after the run is resumed
        spec = replace(found.spec, name=self.name) if self.name and not found.by_agent else found.spec
        return replace(found, spec=spec, isolate=isolated, key=key)

    def stored(self, entry: Entry, agent: str, folder: str) -> Partner:
        """Return the form that ``config.json`` holds. A class is named by its path if it can be imported.

        ``folder``: where the run directory has the copy, if the policy is a run.
        """
        spec = entry.on(agent)
        if is_run_policy(spec):
            return replace(self, policy=entry.source or str(self.policy), name=self.name or entry.title, copy=folder)
        # the entry's agent did not learn in that run, so the run is not needed
        if isinstance(self.policy, str) and _is_run(self.policy):
            limits, sandbox = self.limits or entry.limits, entry.sandbox if self.sandbox == "no" else self.sandbox
            inner = replace(self, policy=spec, isolate=bool(entry.isolate), limits=limits, sandbox=sandbox)
            return inner.stored(entry, agent, folder)
        given = self.policy
        factory = given.factory if isinstance(given, PolicySpec) else given
        try:
            if isinstance(given, PolicySpec) and not isinstance(factory, str):
                return replace(self, policy=replace(given, factory=path_of(factory)))
            if isinstance(given, type) or (callable(given) and hasattr(given, "__qualname__")):
                return replace(self, policy=PolicySpec(path_of(given), kind=entry.spec.kind))
        except SettingError:  # the policy cannot be imported, so resume() needs algorithm=
            return self
        return self


def _key(spec: PolicySpec) -> str:
    return json.dumps([spec.factory, repr(sorted(spec.arguments.items())), spec.name, spec.kind, spec.shared,
                       str(spec.translate)])  # fmt: skip


def as_partner(given: Any) -> Partner | None:
    """Return the partner that a value of the mapping from agents to algorithms means; None if it is an algorithm.

    >>> as_partner("random").policy, as_partner("dqn"), as_partner("my_module:Config")
    ('random', None, None)
    """
    if isinstance(given, Partner):
        return given
    if isinstance(given, Path):
        return Partner(str(given))
    if isinstance(given, str) and (given.partition(",")[0] in BUILT_IN or _is_run(given)):
        return Partner(given)
    return None


def _is_run(text: str) -> bool:
    """Whether a policy given as text is a run directory or a checkpoint."""
    folder = Path(text.partition(",")[0])
    return any((folder / name).is_file() for name in ("config.json", "checkpoint.json"))


def restored(agents: Mapping[str, Any], run: Path, trust: bool) -> dict[str, Any]:
    """Return the agents of a config, with partners as this process can use them.

    Args:
        agents: what ``rebuild_agents`` returned: an algorithm or a partner by agent.
        run: the run directory, which holds the copies of runs.
        trust: allow classes outside of motet.
    """
    return {name: _restored(name, one, run, trust) if isinstance(one, Partner) else one for name, one in agents.items()}


def _restored(agent: str, partner: Partner, run: Path, trust: bool) -> Partner:
    if partner.copy:
        if Path(partner.copy).is_absolute() or ".." in Path(partner.copy).parts:
            raise SettingError(f"copy must be a folder in the run directory, got {partner.copy!r}")
        return replace(partner, policy=str(run / partner.copy), trust=trust)
    if not trust:
        for path in _paths(partner.policy):
            if not path.startswith("motet."):
                raise SettingError(
                    f"agent {agent}: its policy {path!r} is not part of motet, and importing it runs its code; if you "
                    "trust its source, give --trust on the command line or trust=True in Python"
                )
    return replace(partner, trust=trust)


def _paths(policy: Any) -> list[str]:
    """Return the import paths that a stored policy names."""
    spec = as_entry(policy, trust=True, world={"path": ""}).spec
    return [path for path in (spec.factory, spec.translate) if isinstance(path, str) and path]


def local_policies(
    partners: Mapping[str, tuple[Partner, Entry]], world: World, described: Mapping[str, Any]
) -> dict[str, Policy]:
    """Make the partners of a run in this process, one policy for each agent. Isolated ones are refused.

    A policy that acts for several agents at once is asked for one of them at a time.
    """
    settings = dict(described.get("settings", {}))
    known = {"world": settings, "description": describe_world(world, settings)}
    spaces = dict(zip(world.agents, zip(world.observation_spaces, world.action_spaces, strict=True), strict=True))
    found: dict[str, Policy] = {}
    shared: dict[str, list[str]] = {}
    for name, (_, entry) in partners.items():
        if entry.isolate:
            raise SettingError(
                f"agent {name}: its policy {entry.title} is isolated, so it is not loaded into this process; fix: play "
                "the run with motet.evaluate"
            )
        if entry.shared:
            shared.setdefault(entry.key, []).append(name)
        else:
            own = {"observation_space": spaces[name][0], "action_space": spaces[name][1], "agent": name, **known}
            found[name] = _WithMask(make_policy(entry.on(name), own))
    for names in shared.values():
        offered = {
            "agents": tuple(names),
            "observation_spaces": {name: spaces[name][0] for name in names},
            "action_spaces": {name: spaces[name][1] for name in names},
        }
        seats = {name: world.agents.index(name) for name in names}
        made = shared_policy(partners[names[0]][1].spec, seats, {**offered, **known})
        found |= {name: _SeatOfJoint(made, name) for name in names}
    return found


class _WithMask:
    """A policy that may be given a mask, whatever its own signature is."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._ask = policy, asker(policy.act)

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def act(self, observation: Any, mask: Any = None) -> Any:
        return self._ask(observation, mask)


class _SeatOfJoint:
    """One agent of a joint policy, as a Policy."""

    def __init__(self, policy: JointPolicy, agent: str) -> None:
        self._policy, self._agent, self._ask = policy, agent, asker(policy.act_jointly, "masks")

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def act(self, observation: Any, mask: Any = None) -> Any:
        return self._ask({self._agent: observation}, {} if mask is None else {self._agent: mask})[self._agent]
