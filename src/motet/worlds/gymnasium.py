"""Gymnasium's environments by their ids."""

from typing import Any

from motet.errors import SettingError


def from_gymnasium(id: str, **settings: Any) -> Any:
    """The Gymnasium environment of this id, made with these settings.

    Args:
        id: its name in Gymnasium's registry.
        settings: what ``gymnasium.make`` passes on to it.

    >>> from_gymnasium("CartPole-v1").action_space
    Discrete(2)
    """
    import gymnasium

    if ":" in id:
        raise SettingError(
            f"id must be that of a registered environment, got {id!r}; one of your own is 'package.module:make_env'"
        )
    try:
        # What its checker looks at, the adapter checks as well, once for each value.
        return gymnasium.make(id, disable_env_checker=True, **settings)
    except gymnasium.error.Error as error:
        raise SettingError(f"id must be that of an environment that can be made, got {id!r}: {error}") from error
