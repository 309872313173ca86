"""The source of a user's network: a function or class that creates a ``torch.nn.Module``.

This module does not import torch. The user's code is imported only when a network is created.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle

from motet.errors import SettingError
from motet.system.imports import Imported, import_function, path_of
from motet.system.pickling import pickled

__all__ = ["SHIPPED", "NetworkSetting", "Source"]

SHIPPED = ("convolutions", "impala", "mlp", "parts")
"""Functions of ``algorithms/modules.py`` that settings name without their module."""
_MODULES = "motet.algorithms.modules"


@dataclass(frozen=True)
class Source:
    """A function that creates a network: ``module:attribute`` with arguments, or a pickled function if it cannot be
    imported.

    >>> Source.of("my_networks:make", "network")
    Source(function='my_networks:make', arguments=(), code=None)
    >>> Source.of("mlp(hidden=(32,), layer_norm=True)", "network").arguments
    (('hidden', (32,)), ('layer_norm', True))
    >>> Source.of(lambda space, outputs: None, "network").function
    ''
    """

    function: str = ""
    """``module:attribute``; empty if the function cannot be imported."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """Keyword arguments by name."""
    code: bytes | None = None
    """The pickled function, if it cannot be imported."""

    def __post_init__(self) -> None:
        if (self.code is None) == (self.function == "") or not isinstance(self.code, bytes | None):
            raise SettingError(f"a source must have a function or its code, got {self.function!r} and {self.code!r}")
        object.__setattr__(self, "arguments", tuple((name, _fixed(value)) for name, value in self.arguments))

    @classmethod
    def of(cls, given: Any, name: str) -> Source | None:
        """Return the source for the value of a setting; ``name`` is the setting's name."""
        if given is None or isinstance(given, Source):
            return given
        if isinstance(given, str):
            return cls._read(given, name)
        if not callable(given):
            raise SettingError(f"{name} must be a function or class that makes a torch.nn.Module, got {given!r}")
        if not isinstance(given, type) and hasattr(given, "named_parameters"):
            raise SettingError(
                f"{name} must be a function or class that makes a torch.nn.Module, got a module that is made already: "
                f"each agent needs one of its own; give its class, or a function that makes it"
            )
        maker, arguments = given, {}
        if isinstance(given, functools.partial) and not given.args:
            maker, arguments = given.func, given.keywords
        try:
            path = maker.path if isinstance(maker, Imported) else path_of(maker)
        except SettingError:
            return cls(code=pickled(given, name, name))
        return cls(path, tuple(arguments.items()))

    @classmethod
    def _read(cls, text: str, name: str) -> Source:
        """Return the source that a text names: ``function`` or ``function(argument=value, ...)``."""
        function, bracket, rest = text.partition("(")
        function = f"{_MODULES}:{function}" if function in SHIPPED else function
        module, colon, attribute = function.partition(":")
        if not (module and colon and attribute):
            raise SettingError(
                f"{name} must be a function that makes a torch.nn.Module, its path 'module:function', or one of "
                f"{', '.join(SHIPPED)}, got {text!r}"
            )
        try:
            call: Any = ast.parse(f"f({rest}" if bracket else "f()", mode="eval").body
            if call.args or any(one.arg is None for one in call.keywords):
                raise ValueError("an argument without a name")
            arguments = [(one.arg, ast.literal_eval(one.value)) for one in call.keywords]
        except (ValueError, SyntaxError, AttributeError) as error:
            raise SettingError(
                f"{name} must have arguments with names and plain values, such as mlp(hidden=(64, 64)), got {text!r}"
            ) from error
        return cls(function, tuple(arguments))

    @property
    def shipped(self) -> bool:
        """Whether the function comes with motet."""
        return self.function.partition(":")[0] == _MODULES

    def with_default(self, argument: str, value: Any, name: str) -> Source:
        """Return this source with one more argument, if its function has that parameter and the user has not set it."""
        try:
            known = inspect.signature(self._maker(name)).parameters
        except ValueError:  # a builtin has no signature
            return self
        given = dict(self.arguments)
        return replace(self, arguments=tuple(({argument: value} | given).items())) if argument in known else self

    def _maker(self, name: str) -> Any:
        return import_function(self.function, name) if self.code is None else cloudpickle.loads(self.code)

    def make(self, name: str, *given: Any) -> Any:
        """Create a network: call the function with the arguments that the setting ``name`` provides."""
        maker = self._maker(name)
        arguments = dict(self.arguments)
        try:
            inspect.signature(maker).bind(*given, **arguments)
        except ValueError:
            pass  # a builtin has no signature
        except TypeError as error:
            wanted = {1: "(observation_space)", 2: "(observation_space, outputs)"}[len(given)]
            raise SettingError(f"{name} must be a function of {wanted}, got {self}: {error}") from error
        return maker(*given, **arguments)

    def __repr__(self) -> str:
        code = None if self.code is None else f"<{hashlib.sha256(self.code).hexdigest()[:12]}>"
        return f"Source(function={self.function!r}, arguments={self.arguments!r}, code={code})"

    def __str__(self) -> str:
        if self.code is not None:
            return "a function that cannot be imported"
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments)
        return f"{self.function}({arguments})" if arguments else self.function


def _fixed(value: Any) -> Any:
    """Return a value with its lists replaced by tuples, as if it had been read from a file."""
    return tuple(map(_fixed, value)) if isinstance(value, (list, tuple)) else value


if TYPE_CHECKING:
    NetworkSetting = Source | Callable[..., Any] | str | None
else:
    NetworkSetting = Source | None  # a config converts its values
