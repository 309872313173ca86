"""Gymnasium environments by their ids. ``world/pettingzoo.py`` makes worlds of them."""

from typing import Any

from motet.errors import SettingError


def from_gymnasium(id: str, **settings: Any) -> Any:
    """Make the Gymnasium environment with this id.

    Args:
        id: name of the environment in Gymnasium's registry.
        settings: further arguments of ``gymnasium.make``.

    >>> from_gymnasium("CartPole-v1").action_space
    Discrete(2)
    """
    import gymnasium

    if ":" in id:
        raise SettingError(
            f"id must be the id of a registered environment, got {id!r}; for your own one, use "
            "'package.module:make_env' as the world"
        )
    try:
        # The adapter checks the same as Gymnasium's checker, once for each value.
        return gymnasium.make(id, disable_env_checker=True, **settings)
    except gymnasium.error.Error as error:
        raise SettingError(f"id must be an environment that Gymnasium can make, got {id!r}: {error}") from error
