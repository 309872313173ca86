"""Checks, descriptions and schemas of settings, derived from the annotations of dataclass fields.

Each setting is declared once. Its annotation holds its type and its bounds:

::

    steps: Annotated[int, Ge(1)] = 100_000
    seconds: Annotated[float, Gt(0)] | None = None

The annotations give the checks and their errors (:func:`check_fields`), the bounds in help texts (:func:`bounds_of`),
the tables of the guide (:func:`describe_settings`) and the schema of experiment files (:func:`json_schema`). Bounds use
the classes of the library annotated-types. Rules that involve several fields are written by hand in each dataclass and
run after the check.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import itertools
import math
import numbers
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MinLen, Predicate

from motet.errors import SettingError

__all__ = [
    "FINITE",
    "Setting",
    "Varying",
    "bounds_of",
    "check_fields",
    "check_value",
    "describe_settings",
    "json_schema",
    "kinds_of",
    "takes_function",
]

FINITE = Predicate(math.isfinite)
"""A bound: neither infinite nor NaN. (NaN also fails every other bound.)"""


@runtime_checkable
class Varying(Protocol):
    """A setting that takes several values in a run, such as a schedule. Its bounds apply to each value."""

    def taken(self) -> Iterable[tuple[str, Any]]:
        """Yield each value with a text that says when it applies. Errors show the text after the setting's name."""
        ...


# ---- the check


def check_fields(settings: Any, prefix: str = "") -> None:
    """Raise SettingError unless every field of a dataclass matches its declared type and bounds.

    Args:
        settings: an instance of the dataclass.
        prefix: text before the fields' names in errors.

    >>> @dataclasses.dataclass
    ... class Some:
    ...     steps: Annotated[int, Ge(1)] = 5
    ...     engine: Literal["a", "b"] = "a"
    >>> check_fields(Some(steps="many"))
    Traceback (most recent call last):
        ...
    motet.errors.SettingError: steps must be an int >= 1, got 'many'
    >>> check_fields(Some(engine="c"))
    Traceback (most recent call last):
        ...
    motet.errors.SettingError: engine must be 'a' or 'b', got 'c'
    """
    cls: Any = type(settings)
    for name, kind in kinds_of(cls).items():
        check_value(prefix + name, getattr(settings, name), kind)


def check_value(name: str, value: Any, kind: Any) -> None:
    """Raise SettingError unless a value matches the type and the bounds of an annotation.

    >>> check_value("rounds", 0, Annotated[int, Ge(1)])
    Traceback (most recent call last):
        ...
    motet.errors.SettingError: rounds must be an int >= 1, got 0
    """
    if isinstance(value, Varying) and _fits(value, kind, bounded=False):
        for when, taken in value.taken():
            check_value(name + when, taken, kind)
    elif callable(value) and takes_function(kind) and _fits(0.0, kind, bounded=False):  # a schedule
        first = _first(name, value)
        check_value(f"{name} at step 0", first, float)
        check_value(f"{name} at step 0", first, kind)
    elif not _fits(value, kind):
        words = _words(kind, schedules=not _is_number(value))
        hint = f"; write ({value!r},)" if not isinstance(value, (tuple, list)) and _fits((value,), kind) else ""
        raise SettingError(f"{name} must be {_either(words)}, got {value!r}{hint}")


def takes_function(kind: Any) -> bool:
    """Whether an annotation allows a function.

    >>> takes_function(float | Callable[[int], float]), takes_function(float | None)
    (True, False)
    """
    return any(typing.get_origin(one) is Callable for one in typing.get_args(_split(kind)[0]))


def _first(name: str, function: Callable[[int], Any]) -> Any:
    """Return the value of a function at step 0."""
    try:
        return function(0)
    except Exception as error:
        raise SettingError(
            f"{name} must be a schedule, got {function!r}, which raised {type(error).__name__} at step 0: {error}"
        ) from error


def _fits(value: Any, kind: Any, bounded: bool = True) -> bool:
    kind, bounds = _split(kind)
    if not _has_type(value, kind, bounded):
        return False
    return not bounded or value is None or all(_keeps(value, bound) for bound in bounds)


def _has_type(value: Any, kind: Any, bounded: bool) -> bool:
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin is Callable:
        return callable(value)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one, bounded) for one in members)
    if origin is Literal:
        return value in members
    if kind in (int, float):
        return _is_number(value) and (kind is float or isinstance(value, numbers.Integral))
    if origin is tuple:
        return _is_row(value) and _elements_fit(value, members, bounded)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(one, of, bounded) for item in value.items() for one, of in zip(item, members, strict=True)
        )
    if isinstance(kind, type) and not getattr(kind, "_is_protocol", False):
        return isinstance(value, kind)
    return not isinstance(value, str)  # a function, or another container


def _elements_fit(value: Collection[Any], members: Sequence[Any], bounded: bool) -> bool:
    if members[-1:] == (...,):
        return all(_fits(one, members[0], bounded) for one in value)
    return len(value) == len(members) and all(_fits(one, of, bounded) for one, of in zip(value, members, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_row(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))


def _keeps(value: Any, bound: Any) -> bool:
    match bound:
        case Ge(ge=limit):
            return bool(value >= limit)
        case Gt(gt=limit):
            return bool(value > limit)
        case Le(le=limit):
            return bool(value <= limit)
        case Lt(lt=limit):
            return bool(value < limit)
        case MinLen(min_length=limit):
            return len(value) >= limit
        case Predicate(func=holds):
            return bool(holds(value))
    raise TypeError(f"motet.settings does not support the bound {bound!r}")


def _split(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an annotation into the type and a tuple of its bounds."""
    if typing.get_origin(kind) is not Annotated:
        return kind, ()
    bare, *notes = typing.get_args(kind)
    bounds = [one for note in notes for one in (note if isinstance(note, GroupedMetadata) else [note])]
    return bare, tuple(one for one in bounds if isinstance(one, (Ge, Gt, Le, Lt, MinLen, Predicate)))


@functools.cache
def kinds_of(cls: Any) -> dict[str, Any]:
    """The annotation of each field of a dataclass; Any where a name in it is imported for type checkers only."""
    found: dict[str, Any] = {}
    wanted = {field.name for field in dataclasses.fields(cls)}  # without class variables
    for base in reversed(cls.__mro__):
        names = vars(sys.modules.get(base.__module__, builtins))
        for name, note in inspect.get_annotations(base).items():
            if name not in wanted:
                continue
            holder = types.SimpleNamespace(__annotations__={name: note})
            try:
                found |= typing.get_type_hints(holder, names, dict(vars(base)), include_extras=True)
            except NameError:
                found[name] = Any
    return {field.name: found[field.name] for field in dataclasses.fields(cls)}


# ---- words


def bounds_of(kind: Any) -> str:
    """The bounds of an annotation in words; empty if it has none.

    >>> bounds_of(Annotated[int, Ge(1)] | None), bounds_of(Annotated[float, Ge(0), FINITE]), bounds_of(str)
    ('>= 1', 'finite and >= 0', '')
    >>> bounds_of(Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)])
    '1 or more, each >= 1'
    """
    kind, bounds = _split(kind)
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType) and not bounds:
        return ", ".join(dict.fromkeys(filter(None, map(bounds_of, members))))
    if origin is tuple:
        count = [f"{one.min_length} or more" for one in bounds if isinstance(one, MinLen)]
        each = [f"each {words}" for words in [bounds_of(members[0])] if words]
        return ", ".join(count + each)
    return " and ".join(["finite"] * (FINITE in bounds) + [words for words in [_limits(bounds)] if words])


def _limits(bounds: Iterable[Any]) -> str:
    found = list(bounds)
    low, high = [one.ge for one in found if isinstance(one, Ge)], [one.le for one in found if isinstance(one, Le)]
    if low and high:
        return f"from {low[0]} to {high[0]}"
    signs = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}
    pairs = [(*signs[type(one)], one) for one in found if type(one) in signs]
    return " and ".join(f"{sign} {getattr(one, name)}" for sign, name, one in pairs)


_ONE = {int: "an int", float: "a number", str: "a string", type(None): "None"}
_MANY = {int: "ints", float: "numbers", str: "strings"}


def _words(kind: Any, bounds: tuple[Any, ...] = (), schedules: bool = True) -> list[str]:
    """Descriptions of the values that an annotation allows, one for each alternative."""
    kind, own = _split(kind)
    bounds = own + bounds
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        found = [words for one in members for words in _words(one, bounds, schedules)]
        return list(dict.fromkeys(found))
    if origin is Literal:
        return [repr(one) for one in members]
    if kind is bool:
        return ["True", "False"]
    if kind in (int, float):
        word = _ONE[kind].split()[1]
        article = "a finite" if FINITE in bounds else _ONE[kind].split()[0]
        return [" ".join(filter(None, [article, word, _limits(bounds)]))]
    if origin is tuple:
        least = ["one or more"] * any(isinstance(one, MinLen) for one in bounds)
        return [" ".join(["a tuple of", *least, _plural(members)])]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [f"a mapping from {_plural(members[:1])} to {_plural(members[1:])}"]
    if _is_schedule(kind):
        return ["a schedule"] if schedules else []
    if origin is Callable:
        return ["a function"]
    if kind in _ONE:
        return [_ONE[kind]]
    return [_named(kind.__name__) if isinstance(kind, type) else str(kind).removeprefix("typing.")]


def _is_schedule(kind: Any) -> bool:
    if typing.get_origin(kind) is Callable:
        return bool(typing.get_args(kind)[0] == [int])  # a function of the step
    return isinstance(kind, type) and issubclass(kind, Varying)


def _plural(members: Sequence[Any]) -> str:
    kind, bounds = _split(members[0])
    if members[1:] not in ((), (...,)):
        return f"({', '.join(_either(_words(one)) for one in members)})"
    if kind in _MANY:
        return " ".join(filter(None, ["finite" if FINITE in bounds else "", _MANY[kind], _limits(bounds)]))
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        return f"tuples {'of ' if inner[1:] == (...,) else ''}{_plural(inner)}"
    if isinstance(kind, type):
        return f"{kind.__name__}s"
    return _either(_words(members[0]))


def _named(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


# ---- reference


class Setting(NamedTuple):
    """Description of one field of a dataclass, as shown in the guide and in help texts."""

    name: str
    type: str
    """The annotated type, without the bounds."""
    default: str
    """The default as a Python expression; empty if the setting is required."""
    bounds: str
    text: str
    """What the field means: the string below it in the source."""


def describe_settings(cls: Any) -> list[Setting]:
    """Describe the fields of a dataclass from their annotations and the strings below them.

    >>> from motet.pace import Pace
    >>> describe_settings(Pace)[0]
    Setting(name='updates_per_step', type='float', default='1.0', bounds='finite and > 0', text='Updates of a learner \
for each step of its agent; ignored if the slack is infinite.')
    """
    kinds, texts, items = kinds_of(cls), _texts(cls), dataclasses.fields(cls)
    return [
        Setting(item.name, _typed(kind), _default(item), bounds_of(kind), texts.get(item.name, ""))
        for item, kind in zip(items, kinds.values(), strict=True)
    ]


def _typed(kind: Any) -> str:
    kind, _ = _split(kind)
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        parts = ["Schedule" if _is_schedule(one) else _typed(one) for one in members]
        return " | ".join(dict.fromkeys(parts))
    if origin is Literal:
        return " | ".join(repr(one) for one in members)
    if origin is not None and members:
        inside = ", ".join("..." if one is ... else _typed(one) for one in members)
        return "function" if origin is Callable else f"{getattr(origin, '__name__', origin)}[{inside}]"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return repr(item.default)
    if item.default_factory is not dataclasses.MISSING:
        made = item.default_factory()
        return f"{type(made).__name__}()" if dataclasses.is_dataclass(made) else repr(made)
    return ""


@functools.cache
def _texts(cls: type) -> dict[str, str]:
    """The string below each field, including fields of base classes."""
    found: dict[str, str] = {}
    for base in reversed([one for one in cls.__mro__ if dataclasses.is_dataclass(one)]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # a class made at run time has no source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for line, below in itertools.pairwise(body):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


# ---- JSON Schema


def json_schema(kind: Any, forms: Mapping[Any, Any]) -> dict[str, Any]:
    """The JSON Schema of a type, including its bounds. None is left out, because TOML cannot express it.

    Args:
        kind: a type or an annotation. The schema of a dataclass describes each of its fields.
        forms: schemas by type, which replace the derived ones.

    >>> json_schema(Annotated[int, Ge(1)] | None, {})
    {'type': 'integer', 'minimum': 1}
    """
    kind, bounds = _split(kind)
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if kind in forms:
        return dict(forms[kind])
    if origin in (typing.Union, types.UnionType):
        inner = [one for one in members if one is not type(None)]
        found = [json_schema(Annotated[(one, *bounds)] if bounds else one, forms) for one in inner]
        return found[0] if len(found) == 1 else {"anyOf": found}
    if origin is Callable:
        return {"type": "string", "pattern": "^[^:]+:[^:]+$"}  # a function or class is named by its import path
    if origin is Literal:
        return {"enum": list(members)}
    if kind in (bool, str):
        return {"type": "boolean" if kind is bool else "string"}
    if kind in (int, float):
        return {"type": "integer" if kind is int else "number", **_json_limits(bounds)}
    if origin is tuple:
        if members[1:] == (...,):
            return {"type": "array", "items": json_schema(members[0], forms), **_json_limits(bounds)}
        return {"type": "array", "prefixItems": [json_schema(one, forms) for one in members], "items": False}
    if dataclasses.is_dataclass(kind):
        return _json_object(kind, forms)
    return {}


def _json_object(cls: Any, forms: Mapping[Any, Any]) -> dict[str, Any]:
    kinds, texts, properties, required = kinds_of(cls), _texts(cls), {}, []
    for item in dataclasses.fields(cls):
        text = {"description": texts[item.name]} if item.name in texts else {}
        properties[item.name] = {**text, **json_schema(kinds[item.name], forms), **_json_default(item)}
        if _default(item) == "":
            required.append(item.name)
    plain: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return plain | ({"required": required} if required else {})


def _json_default(item: dataclasses.Field[Any]) -> dict[str, Any]:
    value = item.default
    if isinstance(value, tuple) and all(isinstance(one, (int, float, str)) for one in value):
        return {"default": list(value)}
    return {"default": value} if isinstance(value, (bool, int, float, str)) else {}


def _json_limits(bounds: Iterable[Any]) -> dict[str, Any]:
    words = {Ge: "minimum", Gt: "exclusiveMinimum", Le: "maximum", Lt: "exclusiveMaximum", MinLen: "minItems"}
    return {words[type(one)]: dataclasses.astuple(one)[0] for one in bounds if type(one) in words}
