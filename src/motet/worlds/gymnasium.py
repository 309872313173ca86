"""Gymnasium's environments by their ids."""

from typing import Any

from motet.errors import SettingError


def from_gymnasium(id: str, **settings: Any) -> Any:
    """The Gymnasium environment of this id, made with these settings.

    >>> from_gymnasium("CartPole-v1").action_space
    Discrete(2)
    """
    import gymnasium

    if ":" in id:
        raise SettingError(
            f"id: given {id!r}, expected the id of an environment that is registered; one of your own is "
            "'package.module:make_env'"
        )
    try:
        # What its checker looks at, the adapter checks as well, once for each value.
        return gymnasium.make(id, disable_env_checker=True, **settings)
    except gymnasium.error.Error as error:
        raise SettingError(f"id: given {id!r}: {error}") from error
