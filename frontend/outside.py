"""What a traced function sees beside its arguments: closure, globals, its own object, and what these hold.

Each place is compared by itself: a closure cell, the globals that a function names, a list, a dictionary, the
attributes of an object. Numbers and strings are compared by value, all else by identity; what containers, objects and
the user's own functions hold is watched too. Tensors are the trace's business, modules' attributes `snapshot`'s.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from torch import Tensor, nn

from isthmus.frontend.draws import Draws
from isthmus.frontend.locations import is_library
from isthmus.frontend.snapshot import PLAIN, is_equal

MOST_PLACES = 1000
"""So many places are watched at most; what lies deeper counts as constant."""

_ABSENT = object()


def same(now: object, then: object) -> bool:
    """Whether a trace that saw one value is right for another."""
    return now is then or is_equal(now, then)


@dataclass(frozen=True)
class _Cell:
    name: str
    cell: CellType
    then: object

    def changed(self) -> str | None:
        try:
            now = self.cell.cell_contents
        except ValueError:
            now = _ABSENT
        return None if same(now, self.then) else f"{self.name} is {_shown(now)}, was {_shown(self.then)}"

    def put_back(self) -> None:
        self.cell.cell_contents = self.then


@dataclass(frozen=True)
class _Names:
    """Some entries of a table; `owner` is the class that it is the table of, if any."""

    table: Mapping[str, object]
    then: Sequence[tuple[str, object]]
    owner: type | None = None

    def changed(self) -> str | None:
        for name, value in self.then:
            if not same(now := self.table.get(name, _ABSENT), value):
                return f"{name} is {_shown(now)}, was {_shown(value)}"
        return None

    def put_back(self) -> None:
        if self.owner is not None:
            for name, value in self.then:
                setattr(self.owner, name, value)
        elif isinstance(self.table, dict):
            self.table.update(self.then)


@dataclass(frozen=True)
class _Table:
    """A whole dictionary."""

    name: str
    table: dict[object, object]
    then: Mapping[object, object]

    def changed(self) -> str | None:
        if len(self.table) != len(self.then):
            return f"{self.name} has {len(self.table)} entries, had {len(self.then)}"
        for key, value in self.then.items():
            if not same(now := dict.get(self.table, key, _ABSENT), value):  # a subclass may have its own
                return f"{self.name}[{key!r}] is {_shown(now)}, was {_shown(value)}"
        return None

    def put_back(self) -> None:
        dict.clear(self.table)
        dict.update(self.table, self.then)


@dataclass(frozen=True)
class _List:
    name: str
    values: list[object]
    then: Sequence[object]

    def changed(self) -> str | None:
        if len(self.values) != len(self.then):
            return f"{self.name} has {len(self.values)} entries, had {len(self.then)}"
        for k, (now, value) in enumerate(zip(self.values, self.then, strict=True)):
            if not same(now, value):
                return f"{self.name}[{k}] is {_shown(now)}, was {_shown(value)}"
        return None

    def put_back(self) -> None:
        self.values[:] = self.then


@dataclass(frozen=True)
class _Set:
    name: str
    values: set[object]
    then: frozenset[object]

    def changed(self) -> str | None:
        return (
            None if frozenset(self.values) == self.then else f"{self.name} is {self.values!r}, was {set(self.then)!r}"
        )

    def put_back(self) -> None:
        self.values.clear()
        self.values.update(self.then)


class Outside:
    """A snapshot of the places that a function may read."""

    def __init__(self, function: object, arguments: Sequence[object] = ()) -> None:
        """Look at the function, and at those of its arguments that are objects or functions."""
        self._places: list[_Cell | _Names | _Table | _List | _Set] = []
        self.draws = Draws()
        self._seen: dict[int, object] = {}
        self._named = {"forward", "__call__"}
        self._classes: dict[type, bool] = {}
        """Of objects that were met, and those that code names, of which it may make objects: these are True."""
        self.modules: list[tuple[str, nn.Module]] = []
        """Modules that were met on the way, by how they are called."""
        if isinstance(function, nn.Module):
            self._watch("self", function)
            self._watch("forward", function.forward)
        else:
            self._watch(getattr(function, "__name__", "the function"), function)
            self._watch("self", getattr(function, "__self__", None))
            self._watch("the function", getattr(function, "__wrapped__", None))
        for k, argument in enumerate(arguments):
            self._watch(f"argument {k}", argument)
        self._watch_methods()

    def put_back(self) -> None:
        """Make everything as it was."""
        self.draws.put_back()
        for place in self._places:
            if place.changed() is not None:
                place.put_back()

    @contextmanager
    def kept_where_it_raises(self) -> Generator[None]:
        """Leave nothing behind of what raises: the program runs once more, or is refused."""
        try:
            yield
        except BaseException:
            self.put_back()
            raise

    def changed(self) -> str | None:
        """Say what is not as it was; None where all is."""
        for place in self._places:
            if (found := place.changed()) is not None:
                return found
        return None

    # ---- Walking

    def _watch(self, name: str, value: object) -> None:
        if isinstance(value, PLAIN) or isinstance(value, Tensor) or id(value) in self._seen:
            return
        if len(self._places) >= MOST_PLACES:
            return
        self._seen[id(value)] = value  # keeps the object, so that no other one gets its id
        if isinstance(value, type):
            if not _is_library_class(value):
                self._classes.update(dict.fromkeys(value.__mro__, True))
        elif isinstance(value, nn.Module):
            self._watch_module(name, value)
        elif isinstance(value, functools.partial):
            self._watch_partial(name, value)
        elif isinstance(value, MethodType):
            self._watch(name, value.__func__)
            self._watch("self", value.__self__)
        elif isinstance(value, FunctionType):
            self._watch_function(name, value)
        elif isinstance(value, dict):
            table = cast("dict[object, object]", value)
            self._places.append(_Table(name, table, dict(table)))
            for key, held in table.items():
                self._watch(f"{name}[{key!r}]", held)
        elif isinstance(value, list | tuple):
            values = cast("Sequence[object]", value)
            if isinstance(value, list):
                self._places.append(_List(name, cast("list[object]", value), list(values)))
            for k, held in enumerate(values):
                self._watch(f"{name}[{k}]", held)
        elif isinstance(value, set):
            self._places.append(_Set(name, cast("set[object]", value), frozenset(cast("set[object]", value))))
        elif not isinstance(value, ModuleType):
            self._watch_object(name, value)

    def _watch_module(self, name: str, module: nn.Module) -> None:
        """Its submodules and what its attributes hold; `snapshot` notes which of these are read."""
        self.modules.append((name, module))
        for path, inner in module.named_modules():
            self._meet(type(inner))
            table = cast("dict[object, object]", vars(inner)["_modules"])
            if table:
                self._places.append(_Table(f"{name}.{path}".rstrip("."), table, dict(table)))
            for attribute, held in vars(inner).items():
                if not attribute.startswith("_"):
                    self._watch(f"{name}.{path}".rstrip(".") + f".{attribute}", held)

    def _watch_partial(self, name: str, value: functools.partial[Any]) -> None:
        self._watch(name, value.func)
        self._watch(name, value.args)
        self._watch(name, value.keywords)

    def _watch_function(self, name: str, function: FunctionType) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._watch(name, wrapped)
        if is_library(function.__code__.co_filename):
            return
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._places.append(_Cell(variable, cell, held))
            self._watch(variable, held)
        names = _names_of(function)
        self._named.update(names)
        table = function.__globals__
        named = [(n, table[n]) for n in names if n in table]
        self._places.append(_Names(table, named))
        for variable, held in named:
            self._watch(variable, held)
            if isinstance(held, ModuleType) and not _is_library_module(held):
                read = [(n, vars(held)[n]) for n in names if n in vars(held)]
                self._places.append(_Names(vars(held), read))
                for attribute, value in read:
                    self._watch(f"{variable}.{attribute}", value)
        self._watch(f"{name}'s defaults", function.__defaults__)
        self._watch(f"{name}'s defaults", function.__kwdefaults__)

    def _watch_object(self, name: str, value: object) -> None:
        """The attributes of an object of the user's, and those of its class that are numbers or strings.

        Of an object of a library's (a compiled or transformed function, say) the functions that it holds.
        """
        kind = type(value)
        table = getattr(value, "__dict__", None)
        if not isinstance(table, dict):
            return
        attributes = cast("dict[object, object]", table)
        if _is_library_class(kind):
            for attribute, held in attributes.items():
                if callable(held) and not isinstance(held, type) and not _is_library_method(held):
                    self._watch(f"{name}.{attribute}", held)
            return
        self._meet(kind)
        self._places.append(_Table(name, attributes, dict(attributes)))
        for cls in kind.__mro__[:-1]:
            plain = [(n, v) for n, v in vars(cls).items() if isinstance(v, PLAIN) and not n.startswith("__")]
            self._places.append(_Names(vars(cls), plain, cls))
        for attribute, held in attributes.items():
            self._watch(f"{name}.{attribute}", held)

    def _meet(self, kind: type) -> None:
        for cls in kind.__mro__:
            self._classes.setdefault(cls, False)

    def _watch_methods(self) -> None:
        """What the user's classes have that some code met so far names or Python calls, and what these name in turn."""
        known: set[tuple[type, str]] = set()
        while new := [
            (cls, name)
            for cls, is_named in self._classes.items()
            for name in vars(cls)
            if (name in self._named or _is_called_by_python(name, is_named)) and (cls, name) not in known
        ]:
            known.update(new)
            for cls, name in new:
                held = vars(cls)[name]
                if (function := _function_of(held)) is not None:
                    self._watch(f"{cls.__name__}.{name}", function)
                elif name.startswith("__") or _is_library_class(cls):
                    continue
                elif isinstance(held, PLAIN):
                    self._places.append(_Names(vars(cls), [(name, held)], cls))
                elif isinstance(held, list | dict | set | tuple):
                    self._watch(f"{cls.__name__}.{name}", cast(object, held))


_MAKING = ("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__")
_AUTOGRAD = ("backward", "setup_context")


def _is_called_by_python(name: str, is_named: bool) -> bool:
    """Whether a method runs without being named: an operator's, of what code names also those that make objects."""
    if name in _MAKING or name in _AUTOGRAD:
        return is_named
    return name.startswith("__") and name.endswith("__")


def _function_of(attribute: object) -> object:
    """What runs when an attribute of a class is called or read; None where it is no function."""
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, functools.cached_property):
        attribute = attribute.func
    elif isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    return attribute if isinstance(attribute, FunctionType) else None


def _names_of(function: FunctionType) -> list[str]:
    """The names of globals and attributes in a function's code and in the functions inside of it."""
    names: dict[str, None] = {}
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        names.update(dict.fromkeys(code.co_names))
        pending.extend(c for c in code.co_consts if isinstance(c, type(code)))
    return list(names)


def _is_library_method(value: object) -> bool:
    return isinstance(value, MethodType) and _is_library_class(type(value.__self__))


def _is_library_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return module is not None and _is_library_module(module)


def _is_library_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return is_library(file) if isinstance(file, str) else module.__name__ in sys.builtin_module_names


def _shown(value: object) -> str:
    if value is _ABSENT:
        return "gone"
    return repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
