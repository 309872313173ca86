"""Check users' policies and algorithms. Each error names the broken clause of the contract and how to fix it."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Batch,
    Behaviour,
    Remembers,
    Space,
    map_space,
    stacked_batch,
    state_size_of,
)
from motet.errors import SettingError, SpecError
from motet.masks import MaskForm, mask_form
from motet.nest import Nest, equal_nests, join_nests, map_nest, unstack_nest
from motet.policies.teams import Alone, OwnPolicy, is_team, team_policy
from motet.policy import Policy, PolicySpec, WorldDescription, asker
from motet.runs.plain import decode, encode
from motet.streams import made_alike
from motet.testing.teams import check_separate

__all__ = ["check_algorithm", "check_policy"]


def _expect(held: bool, clause: str, mend: str) -> None:
    if not held:
        raise SpecError(f"broken clause: {clause}; fix: {mend}")


def _samples(space: Space, lead: tuple[int, ...], seed: int) -> Nest:
    """Return random elements of a space, stacked."""
    space.seed(seed)

    def stacked(path: tuple[Any, ...], leaf: Space) -> Any:
        def at(element: Any) -> Any:
            for key in path:
                element = element[key]
            return element

        flat = [np.asarray(at(element), leaf.dtype) for element in elements]
        return np.stack(flat).reshape((*lead, *leaf.shape))

    def walk(inner: Space, path: tuple[Any, ...]) -> Nest:
        parts = getattr(inner, "spaces", None)
        if parts is None:
            return stacked(path, inner)
        if hasattr(parts, "items"):
            return {key: walk(value, (*path, key)) for key, value in parts.items()}
        return tuple(walk(value, (*path, i)) for i, value in enumerate(parts))

    elements = [space.sample() for _ in range(int(np.prod(lead)))]
    return walk(space, ())


def random_mask(form: MaskForm, rng: np.random.Generator, share: float = 0.5) -> Nest:
    """Return a random mask that allows this share of the values, and at least one of each part."""

    def drawn(part: Any) -> Any:
        if part is None:
            return None
        free = rng.random(part.shape) < share
        if part.dtype != np.bool_:  # bits
            return np.where(free, 2, rng.integers(0, 2, part.shape)).astype(part.dtype)
        free[rng.integers(len(free))] = True
        return free

    return map_nest(drawn, form.nest(form.flat(None)))


def check_policy(
    factory: Callable[..., Any] | PolicySpec,
    observation_space: Space,
    action_space: Space,
    *,
    masked: bool = False,
    steps: int = 20,
    agents: int = 3,
) -> None:
    """Raise :class:`~motet.errors.SpecError` if the policy that the factory makes breaks the contract of a policy.

    A team is made from a :class:`~motet.policy.WorldDescription` of ``agents`` agents that have these spaces. Its
    agents must not share memory, unless the team is shared (``PolicySpec(Team, shared=True)``): each agent must act the
    same, whether all agents come from one team object or each from a separate one, and whether or not the other agents
    act.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from motet.policy import RandomPolicy
    >>> check_policy(lambda: RandomPolicy(Discrete(3)), Box(0, 1, (2,)), Discrete(3), masked=True)
    """
    observations = [_samples(observation_space, (), seed) for seed in range(steps)]
    rng = np.random.default_rng(0)
    form = mask_form(action_space)
    masks = [random_mask(form, rng) if masked else None for _ in range(steps)]

    def episode(policy: Policy, seed: int) -> list[Any]:
        policy.reset(seed)
        ask, actions = asker(policy.act), []
        for observation, mask in zip(observations, masks, strict=True):
            before = map_nest(np.copy, observation)
            action = ask(observation, mask)
            _expect(
                action_space.contains(action),
                f"actions must be elements of the action space (got {action!r} for {action_space})",
                "return an element of the space, with its dtype",
            )
            if mask is not None:
                _expect(form.allows(mask, action), "act must respect the mask", "choose among the allowed actions")
            _expect(
                pickle.dumps(before) == pickle.dumps(map_nest(np.copy, observation)),
                "act must not change an observation",
                "copy it before changing it",
            )
            actions.append(action)
        return actions

    def check(make: Callable[[], Policy]) -> None:
        policy, other = make(), make()
        _expect(isinstance(policy, Policy), "a policy has reset and act", "write both methods")
        once = episode(policy, 1)
        episode(policy, 2)
        for twin, what in ((policy, "after other episodes"), (other, "in another object")):
            _expect(
                equal_nests(once, episode(twin, 1)),
                f"the same seed and observations give the same actions {what}",
                "in reset, clear everything of the last episode and make a new random stream from the seed alone",
            )

    spec = factory if isinstance(factory, PolicySpec) else PolicySpec(factory)
    description = WorldDescription.uniform([f"agent_{i}" for i in range(agents)], observation_space, action_space)
    offered = {"observation_space": observation_space, "action_space": action_space, "description": description}
    team = is_team(spec, {**offered, "agent": description.agents[0]})

    def one_agent(index: int) -> Policy:
        agent = description.agents[index]
        if team:
            return Alone(team_policy(spec, description, {agent: index}, shared=spec.shared), agent)
        made: Any = made_alike(spec.title, lambda: spec.build(**offered, agent=agent))
        return OwnPolicy(made, spec.title) if isinstance(made, Policy) else made

    if team and not spec.shared:
        check_separate(spec, description, observations, masks)
    for index in range(agents if team else 1):
        check(partial(one_agent, index))


def check_algorithm(
    config: AlgorithmConfig, observation_space: Space, action_space: Space, *, masked: bool = False, updates: int = 6
) -> None:
    """Raise :class:`~motet.errors.SpecError` if a config, its algorithm or its behaviour breaks the contract.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from motet.algorithms import DQNConfig
    >>> check_algorithm(DQNConfig(hidden=(8,), batch_size=4, min_rows=4), Box(0, 1, (2,)), Discrete(3))
    """
    params = getattr(config, "__dataclass_params__", None)
    _expect(
        dataclasses.is_dataclass(config) and bool(params and params.frozen),
        "a config is a frozen dataclass",
        "decorate it with @dataclass(frozen=True)",
    )
    _expect(pickle.loads(pickle.dumps(config)) == config, "a config survives pickling", "use plain values only")  # noqa: S301
    spaces = observation_space, action_space
    settings, sizes = config.replay(*spaces, masked=masked), config.sizes(*spaces)
    if masked:
        _expect("mask" in settings.extra, "with masks, replay() asks for the field mask", "add it to `extra`")

    def build(seeds: list[int]) -> Algorithm:
        algorithm = config.build(*spaces, len(seeds), seeds)
        for name, size, dtype in (
            ("state", sizes.state, np.float32),
            ("counters", sizes.counters, np.int64),
            ("random", sizes.random, np.uint8),
        ):
            array = getattr(algorithm, name)
            _expect(
                array.shape == (len(seeds), size) and array.dtype == dtype and array.flags.c_contiguous,
                f"{name} is a contiguous {np.dtype(dtype)} array [agents, {size}] (got {array.dtype} {array.shape})",
                "allocate it with the size that sizes() returns",
            )
        _expect(algorithm.n_weights == sizes.weights, "n_weights equals sizes().weights", "use one formula for both")
        return algorithm

    def batch(agents: int, seed: int) -> Batch:
        made = stacked_batch(*spaces, settings, agents)
        rng = np.random.default_rng(seed)
        _fill(made, observation_space, action_space, rng, settings.n_step)
        return made

    def run(algorithm: Algorithm, first: int, last: int, agents: int = 2) -> None:
        for i in range(first, last):
            source = batch(agents, i)
            for to, value in zip(_arrays(shared[agents]), _arrays(source), strict=True):
                to[:] = value
            before = [array.copy() for array in _arrays(shared[agents])]
            update = algorithm.update(shared[agents], [i] * agents)
            _expect(
                all(map(np.array_equal, before, _arrays(shared[agents]))),
                "update does not change the batch",
                "work on copies: the arrays belong to the reader",
            )
            for name, value in update.metrics.items():
                _expect(
                    np.shape(value) == (agents,),
                    f"the metric {name} is an array [agents]",
                    "return one value for each agent",
                )
            if settings.prioritised:
                _expect(
                    update.priorities is not None and update.priorities.shape == shared[agents].row.shape,
                    "a prioritised algorithm returns priorities [agents, batch]",
                    "return the absolute TD errors",
                )
        algorithm.save()

    shared = {agents: batch(agents, 0) for agents in (1, 2)}
    whole, half = build([1, 2]), updates // 2
    fresh = whole.state.copy()
    _expect(
        not equal_nests(fresh[0], fresh[1]), "each agent is initialised from its own seed", "draw row i from seeds[i]"
    )
    run(whole, 0, half)
    kept = [getattr(whole, name).copy() for name in ("state", "counters", "random")]
    _expect(
        not equal_nests(fresh, kept[0]),
        "an update changes the state",
        "make the weights views into `state`, or copy them in save()",
    )
    _expect(
        equal_nests(whole.weights(), kept[0][:, : sizes.weights]),
        "weights() is the first part of state",
        "put the weights first in each row of `state`",
    )
    run(whole, half, updates)
    successor = build([3, 4])
    for name, value in zip(("state", "counters", "random"), kept, strict=True):
        getattr(successor, name)[:] = value
    successor.load()
    run(successor, half, updates)
    for name in ("state", "counters", "random"):
        _expect(
            equal_nests(getattr(whole, name), getattr(successor, name)),
            f"after load() the algorithm continues bit for bit ({name} differs)",
            "keep all moments, target weights, counters and random streams in state, counters and random",
        )
    stacked, alone = build([1, 2]), build([2])
    for to, value in zip(_arrays(shared[1]), _arrays(batch(2, 0)), strict=True):
        to[:] = value[1:]
    stacked.update(batch(2, 0), [0, 0])
    alone.update(shared[1], [0])
    stacked.save()
    alone.save()
    _expect(
        np.allclose(stacked.state[1], alone.state[0], rtol=1e-3, atol=1e-5),
        "an agent in a stack learns as it does alone",
        "compute norms, means and random numbers separately for each agent",
    )
    for i in range(6):  # beside an agent with fewer updates, from the second batch on
        source = batch(2, i)
        for to, value in zip(_arrays(shared[1]), _arrays(source), strict=True):
            to[:] = value[1:]
        alone.update(shared[1], [i])
        alone.save()
        if i == 0:
            stacked = build([1, 2])
            for name in ("state", "counters", "random"):
                getattr(stacked, name)[1] = getattr(alone, name)[0]
            stacked.load()
        else:
            stacked.update(source, [i, i])
    stacked.save()
    _expect(
        stacked.counters[0, 0] + 2 == stacked.counters[1, 0]
        and np.allclose(stacked.state[1], alone.state[0], rtol=1e-3, atol=1e-5),
        "an agent in a stack learns as it does alone, also if it has learned more often than the others",
        "decide what is done every few updates by each agent's row of counters",
    )
    _check_behaviour(config, whole, spaces, masked)


def _check_behaviour(config: AlgorithmConfig, algorithm: Algorithm, spaces: tuple[Space, Space], masked: bool) -> None:
    observation_space, action_space = spaces
    header, settings = algorithm.header(100, 0), config.replay(*spaces, masked=masked)
    frames = settings.n_frames
    _expect(
        set(header) == set(config.header),
        "header() has the names that config.header declares",
        "return exactly those names",
    )
    lead = (6, frames) if frames > 1 else (6,)
    observations = _samples(observation_space, lead, 0)
    form, rng = mask_form(action_space), np.random.default_rng(0)
    masks = np.stack([form.flat(random_mask(form, rng, share=0.0)) for _ in range(6)]) if masked else None

    states = np.random.default_rng(0).normal(size=(6, settings.memory)).astype(np.float32)

    def acted(rows: slice, seed: int, explore: bool) -> tuple[Any, dict[str, Any]]:
        behaviour = config.behaviour(*spaces)
        _expect(isinstance(behaviour, Behaviour), "a behaviour has begin, load and act", "write all three methods")
        behaviour.begin(seed)
        behaviour.load(algorithm.weights()[0], header)
        some = map_nest(lambda array: array[rows], observations)
        return _answer(behaviour, some, None if masks is None else masks[rows], explore, states[rows])

    actions, extras = acted(slice(None), 1, True)
    _expect(
        equal_nests(actions, acted(slice(None), 1, True)[0]),
        "the same seed gives the same actions",
        "draw from the seed of begin()",
    )
    shapes = map_space(lambda leaf: (6, *leaf.shape), action_space)
    _expect(
        map_nest(np.shape, actions) == shapes,
        f"actions have one row for each observation, shape {shapes}",
        "return arrays [B, ...]",
    )
    for i in range(6):
        action = map_nest(lambda array, i=i: array[i, ...], actions)
        _expect(
            action_space.contains(action),
            f"actions must be elements of the action space (got {action!r} for {action_space})",
            "return elements of the space, with its dtype",
        )
    wanted = set(settings.extra) - {"mask"}
    _expect(set(extras) == wanted, f"act returns the replay's extra fields {sorted(wanted)}", "return exactly those")
    greedy = acted(slice(None), 1, False)[0]
    if all(
        equal_nests(greedy, acted(slice(None), seed, False)[0]) for seed in range(2, 6)
    ):  # a behaviour that draws random numbers cannot be compared
        alone = join_nests([acted(slice(i, i + 1), 1, False)[0] for i in range(6)])
        _expect(_close(greedy, alone), "a row's action does not depend on the other rows", "treat rows separately")
    if masks is not None:
        allowed = map(form.allows, map(form.nest, masks), unstack_nest(actions))
        _expect(all(allowed), "act must respect the mask", "choose among actions that the mask allows")

    def made(seed: int) -> Any:
        behaviour = config.behaviour(*spaces)
        behaviour.begin(seed)
        behaviour.load(algorithm.weights()[0], header)
        return behaviour

    _check_stream(made, lambda behaviour: _answer(behaviour, observations, masks, True, states)[0])


def _answer(
    behaviour: Behaviour, observations: Nest, masks: Any, explore: bool, states: npt.NDArray[np.float32]
) -> tuple[Any, dict[str, Any]]:
    """Ask a behaviour for actions and, if it has a memory, check the memory that it returns."""
    size = states.shape[1]
    _expect(
        state_size_of(behaviour) == size,
        f"the behaviour's state_size is the memory {size} that replay() asks for (got {state_size_of(behaviour)})",
        "return one number from both",
    )
    if not isinstance(behaviour, Remembers) or not size:
        return behaviour.act(observations, masks, explore)
    given = states.copy()
    actions, extra, new = behaviour.act_from(given, observations, masks, explore)
    _expect(
        getattr(new, "shape", None) == states.shape and new.dtype == np.float32,
        f"act_from returns a new state, float32 {list(states.shape)}",
        "return the actions, the extra fields and the state",
    )
    _expect(
        equal_nests(given, states) and not np.shares_memory(new, given),
        "act_from does not change the state that it is given",
        "return the new state in a new array",
    )
    _expect(
        equal_nests(extra.get("memory"), states),
        "the field memory is the state that was given",
        "return it in the extras",
    )
    return actions, extra


def _check_stream(made: Callable[[int], Any], act: Callable[[Any], Any]) -> None:
    """Check that a behaviour continues from a saved random stream. A behaviour need not save its stream."""
    one, other = made(1), made(2)
    offered = [hasattr(one, name) for name in ("get_stream", "set_stream")]
    _expect(all(offered) or not any(offered), "a behaviour has both get_stream and set_stream, or neither", "add both")
    if not all(offered):
        return
    act(one)
    try:
        kept = encode(one.get_stream())
    except SettingError as error:
        raise SpecError(
            f"broken clause: get_stream returns plain values ({error}); fix: return numbers, strings, arrays, and "
            "tuples, lists and dicts of them"
        ) from error
    expected = [act(one) for _ in range(8)]
    other.set_stream(decode(kept))
    _expect(
        all(equal_nests(actions, act(other)) for actions in expected),
        "after set_stream a behaviour acts as it would have without the interruption",
        "return everything that determines the next draws from get_stream",
    )


def _close(one: Nest, other: Nest) -> bool:
    """Whether two nests are equal, up to rounding if they are floats."""
    found: list[bool] = []

    def compare(a: Any, b: Any) -> None:
        found.append(np.allclose(a, b, rtol=1e-4, atol=1e-5) if a.dtype.kind == "f" else np.array_equal(a, b))

    map_nest(compare, one, other)
    return all(found)


def _arrays(batch: Batch) -> list[Any]:
    found: list[Any] = []
    for value in batch.__dict__.values():
        if value is not None:
            map_nest(found.append, value)
    return found


def _fill(
    batch: Batch, observation_space: Space, action_space: Space, rng: np.random.Generator, n_step: int = 1
) -> None:
    """Fill a batch with random elements of the spaces and random rewards. A fifth of the transitions is terminated."""

    def put(to: Nest, space: Space) -> None:
        inner = getattr(space, "spaces", None)
        if inner is not None:
            for key in inner if hasattr(inner, "items") else range(len(inner)):
                put(to[key], inner[key])
            return
        lead = to.shape[: to.ndim - len(space.shape)]
        to[:] = _samples(space, lead, int(rng.integers(2**31)))

    put(batch.observation, observation_space)
    if batch.next_observation is not None:
        put(batch.next_observation, observation_space)
    put(batch.action, action_space)
    batch.reward[:] = rng.normal(size=batch.reward.shape)
    batch.discount[:] = np.where(rng.random(batch.reward.shape) < 0.2, 0.0, 0.9)
    if batch.weight is not None:
        batch.weight[:] = rng.random(batch.weight.shape)
    if batch.ahead is not None:
        _fill_sequences(batch, rng, n_step)
    for fields in (batch.extra, batch.next_extra):
        for name, nest in fields.items():
            if name == "mask":
                form, flat = mask_form(action_space), nest.reshape(-1, nest.shape[-1])
                for row in flat:
                    form.put(random_mask(form, rng), row)
                nest[...] = flat.reshape(nest.shape)
            else:
                map_nest(lambda array: array.__setitem__(slice(None), rng.random(array.shape)), nest)


def _fill_sequences(batch: Batch, rng: np.random.Generator, n_step: int) -> None:
    """Set the rows of sequences at which transitions start, and the rows in which they end. The last row always starts
    one."""
    valid, ahead = batch.valid, batch.ahead
    assert valid is not None and ahead is not None
    valid[:] = rng.random(valid.shape) < 0.8
    valid[..., -1] = True
    ahead[..., -1] = n_step
    for t in reversed(range(ahead.shape[-1] - 1)):
        ahead[..., t] = np.where(valid[..., t], np.minimum(n_step, ahead[..., t + 1].astype(int) + 1), 0)
    batch.reward[~valid] = batch.discount[~valid] = 0
