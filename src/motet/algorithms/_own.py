"""Networks of users in the shipped algorithms: their inputs, and the checks before a run. This module does not import
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.algorithm import Space
from motet.algorithms._blocks import DensePlan
from motet.algorithms._encoder import Encoder
from motet.algorithms._picture_plan import PicturePlan, is_picture
from motet.algorithms._plans import ChainPlan, NetworkPlan, chained
from motet.algorithms._recurrent_plan import RecurrentPlan
from motet.algorithms.source import NetworkSetting, Source
from motet.errors import SettingError

if TYPE_CHECKING:
    from motet.algorithms._module_plan import ModulePlan

__all__ = ["Seen", "check_plan", "network_of_numbers", "refuse_memory"]


class Seen:
    """The inputs of an agent's networks."""

    def __init__(self, space: Space, n_frames: int) -> None:
        self.rows = Encoder(space, n_frames)
        self.size = self.rows.size
        self._space, self._n_frames = space, n_frames

    @property
    def space(self) -> Space:
        """The space of a user's network's input: with stacked frames, each array has a first axis for the frames."""
        if self._n_frames == 1:
            return self._space
        from gymnasium.vector.utils import batch_space

        return batch_space(self._space, self._n_frames)

    def network(self, source: NetworkSetting, name: str, outputs: int, actions: int = 0) -> ModulePlan:
        """Return the network that maps an observation to outputs; with ``actions``, an observation and an action.

        If the user's function has a parameter ``actions``, it gets their number.
        """
        from motet.algorithms._module_plan import ModulePlan

        assert isinstance(source, Source)
        if actions:
            source = source.with_default("actions", actions, name)
        given = (self.space, outputs)
        return ModulePlan(source, name, given, self.rows, outputs, "action" if actions else "", actions)

    def quantiles(self, source: NetworkSetting, features: int, actions: int) -> ModulePlan:
        """Return the network of IQN: it maps an observation to features, or also takes taus and returns quantiles.

        The second parameter of its ``forward`` says which.
        """
        from motet.algorithms._module_plan import ModulePlan, takes_two

        plan = self.network(source, "network", features)
        if plan.state_size or not takes_two(plan.module()):
            return plan
        return ModulePlan(plan.source, "network", (self.space, actions), self.rows, actions, "taus")

    def actor_critic(
        self,
        config: Any,
        policy: Callable[[int], NetworkPlan],
        critic: Callable[[int], NetworkPlan],
        outputs: int,
        actions: int = 0,
    ) -> tuple[NetworkPlan | None, NetworkPlan, NetworkPlan]:
        """Return the network that policy and critic share (or None), the policy and the critic.

        A memory is shared, because both need the same one.

        Args:
            config: the settings, with the user's networks and encoder, and the memory.
            policy: returns the shipped policy for a number of features.
            critic: returns the shipped critic for a number of features.
            outputs: number of outputs of the policy.
            actions: size of the action, if the critic takes it.
        """
        picture = PicturePlan(self._space, self._n_frames) if is_picture(self._space) else None
        own = config.network is not None or config.critic is not None
        if config.normalise:
            self._check_normalised(own or config.encoder is not None, picture)
        if not own:
            shared = self.remembered(config, picture if config.encoder is None else self.encoder(config.encoder))
            features = self.size if shared is None else shared.outputs
            return shared, policy(features), critic(features)
        if memory_of(config) is not None:
            raise SettingError(
                f"memory must be None with network or critic, got {config.memory!r}: policy and critic share a memory; "
                "give an encoder instead"
            )
        if actions and picture is not None and config.critic is None:
            raise SettingError("critic must be given with network for pictures, got None; or give an encoder alone")
        features = self.size if picture is None else picture.outputs
        acts, judges = chained(picture, policy(features)), chained(picture, critic(features))
        if config.network is not None:
            acts = self.network(config.network, "network", outputs)
        if config.critic is not None:
            judges = self.network(config.critic, "critic", 1, actions)
        return None, acts, judges

    def remembered(self, config: Any, first: NetworkPlan | None) -> NetworkPlan | None:
        """Return a network followed by the memory that the config sets; without memory the network itself."""
        if memory_of(config) is None:
            return first
        features = self.size if first is None else first.outputs
        return chained(first, RecurrentPlan(config.memory, features, config.memory_size))

    def _check_normalised(self, own: bool, picture: PicturePlan | None) -> None:
        if picture is not None and not own:
            raise SettingError("normalise must be False for pictures, got True; pixels are always scaled to [0, 1]")
        if own and self.rows.has_indices:
            raise SettingError(
                "normalise must be False for networks of your own that see Discrete or MultiDiscrete values, got True; "
                "normalise the other values in the network"
            )

    def encoder(self, source: NetworkSetting) -> ModulePlan:
        """Return the network that maps an observation to features."""
        from motet.algorithms._module_plan import ModulePlan

        assert isinstance(source, Source)
        return ModulePlan(source, "encoder", (self.space,), self.rows)


def network_of_numbers(
    source: NetworkSetting, name: str, inputs: int, hidden: Sequence[int], outputs: int
) -> NetworkPlan:
    """Return the network that maps rows of numbers to outputs: the user's, or else a fully connected one."""
    if source is None:
        return DensePlan((inputs, *hidden, outputs))
    from gymnasium.spaces import Box

    return Seen(Box(-np.inf, np.inf, (inputs,), np.float32), 1).network(source, name, outputs)


def memory_of(config: Any) -> Any:
    """Return the kind of memory that the config sets; None: no memory."""
    return getattr(config, "memory", None)


def refuse_memory(config: Any, name: str) -> None:
    """Raise if the config sets a memory and a network of the user that takes the observation itself."""
    if memory_of(config) is not None:
        raise SettingError(f"memory must be None with {name}, got {config.memory!r}; give an encoder instead")


def check_plan(*plans: Any, remembers: bool = False) -> None:
    """Raise if a user's network breaks a rule, before the run starts. ``remembers``: the network may have a memory."""
    for plan in _own_networks(*plans):
        from motet.algorithms._module_checks import check_module

        if plan.state_size and not remembers:
            raise SettingError(
                f"{plan.name} must have no state_size here, got {plan.state_size}: a module with a memory of its own "
                "is only valid as encoder of DQN, IQN, PPO and TD3"
            )

        try:
            check_module(plan)
        except SettingError:
            raise
        except Exception as error:
            given = " ".join(getattr(error, "__notes__", []))
            raise SettingError(f"{plan.name} raised {type(error).__name__}: {error}. {given}") from error


def _own_networks(*plans: Any) -> Iterator[ModulePlan]:
    """Iterate over the networks of users in plans."""
    for plan in plans:
        if isinstance(plan, ChainPlan):
            yield from _own_networks(plan.first, plan.second)
        elif hasattr(plan, "source") and not isinstance(plan, PicturePlan):
            yield plan
