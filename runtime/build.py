"""From LLVM text to something that runs: objects from the cache or compiled, kernels loaded once per process."""

from __future__ import annotations

import functools
import os
import pickle
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping

import torch

from isthmus import diagnostics
from isthmus.dialects.program import Program
from isthmus.dialects.target import Target
from isthmus.runtime import cache, cpu
from isthmus.runtime.call import NativeProgram, external_symbols
from isthmus.runtime.cpu import Loaded
from isthmus.runtime.elf import symbols_of
from isthmus.runtime.stored import dump, restore

MakeText = Callable[[], str]
Note = Callable[[str], None]
"""Is told what has just been done."""


def _silent(stage: str) -> None:
    """Note nothing."""


SHARED = "contract_"
"""What the names of functions that kernels share begin with; whoever makes a kernel makes these too."""

_kernels: weakref.WeakValueDictionary[tuple[str, str], Loaded] = weakref.WeakValueDictionary()
"""(target, name) -> where a kernel is loaded; kept alive by the programs that call it."""
_loading = threading.Lock()


def build(
    program: Program,
    text: str,
    kernels: Mapping[str, MakeText],
    target: Target,
    *,
    threads: int = 1,
    use_cache: bool = True,
    reuse_results: bool = True,
    note: Note = _silent,
) -> NativeProgram:
    """Load a program and its kernels; text is made only for kernels that no cache has.

    A kernel's name must tell its code: equal names are equal code for one target and version of this package.
    Without `use_cache` everything is compiled and nothing kept. Raises IRError where LLVM refuses a text, LookupError
    where this torch lacks a function. `reuse_results`: large results get memory that earlier ones have left.
    `note` is told the name of each stage as it ends: emit, compile, link.
    """
    if use_cache:
        loaded = load_kernels(kernels, target, threads=threads, note=note)
        object_ = _object("program", text, target, lambda: text, level=0)
    else:
        texts = {name: make() for name, make in kernels.items()}
        note("emit")
        groups = [[texts[name] for name in names] for names in _together(texts)]
        alone = cpu.load(cpu.compile_all(groups, target, threads=threads), external_symbols())
        loaded = dict.fromkeys(kernels, alone)
        object_ = cpu.compile_text(text, target, 0)
    note("compile")
    addresses = {name: loaded[name][name] for name in program.kernels}
    needs = tuple(set(loaded.values()))
    code = cpu.load([object_], {**external_symbols(), **addresses}, needs=needs)
    made = NativeProgram(program, code, reuse_results=reuse_results)
    note("link")
    return made


def store(key: str, program: Program, text: str, target: Target, more: object = None) -> None:
    """Keep a whole program under a key that says what it was compiled from; its kernels are kept already.

    `more` is whatever else the caller needs to use the program again, made of this package's dataclasses.
    """
    sections = {"program": dump(program), "text": text.encode(), "more": dump(more)}
    cache.current().put(cache.digest("stored", key, *versions(target)), cache.pack(sections))


def stored(key: str, target: Target, *, reuse_results: bool = True) -> tuple[NativeProgram, object] | None:
    """Load what `store` kept, and `more`; None where it, or one of its kernels, is not there."""
    entry = cache.current().get(cache.digest("stored", key, *versions(target)))
    if entry is None:
        return None
    try:
        sections = cache.unpack(entry)
        program, more = restore(sections["program"]), restore(sections["more"])
        assert isinstance(program, Program)

        def missing() -> str:
            raise KeyError("a kernel is no longer kept")

        kernels = dict.fromkeys(program.kernels, missing)
        return build(program, sections["text"].decode(), kernels, target, reuse_results=reuse_results), more
    except (KeyError, AssertionError, pickle.UnpicklingError, AttributeError, EOFError, struct.error):
        return None


def load_kernels(
    kernels: Mapping[str, MakeText], target: Target, *, threads: int = 1, note: Note = _silent
) -> dict[str, Loaded]:
    """Give where each kernel is loaded, by name; those that are not yet are compiled and loaded together.

    KeyError where what a kept kernel calls is no longer kept.
    """
    with _loading:
        found = {name: there for name in kernels if (there := _kernels.get((target.key, name))) is not None}
        missing = {name: make for name, make in kernels.items() if name not in found}
        if missing:
            objects = _objects(missing, target, threads, note)
            for there in [_linked(library, target) for library in _apart(objects)]:
                for name in missing.keys() & set(there.names):
                    found[name] = _kernels[target.key, name] = there
            note("link")
        return found


def _apart(objects: Iterable[bytes]) -> list[list[bytes]]:
    """Give objects by libraries: those of two processes, or of two times, may define the same function."""
    libraries: list[tuple[set[str], list[bytes]]] = []
    for data in objects:
        names = set(symbols_of(data).defined)
        free = next((library for library in libraries if library[0].isdisjoint(names)), None)
        if free is None:
            libraries.append(free := (set(), []))
        free[0].update(names)
        free[1].append(data)
    return [data for _, data in libraries]


def _linked(objects: Iterable[bytes], target: Target) -> Loaded:
    """Load objects, and before them the shared functions that they call and do not define."""
    shared: dict[str, Loaded] = {}
    for name in _shared_by(objects):
        there = _kernels.get((target.key, name))
        if there is None:
            there = _kernels[target.key, name] = _linked([_kept(name, target)], target)
        shared[name] = there
    addresses = {**external_symbols(), **{name: there[name] for name, there in shared.items()}}
    return cpu.load(objects, addresses, needs=tuple(set(shared.values())))


def _shared_by(objects: Iterable[bytes]) -> set[str]:
    """The functions of other kernels' objects that these call."""
    symbols = [symbols_of(data) for data in objects]
    defined = {name for each in symbols for name in each.defined}
    return {name for each in symbols for name in each.undefined if name.startswith(SHARED)} - defined


def _kept(name: str, target: Target) -> bytes:
    found = _object_of(name, target)
    if found is None:
        raise KeyError(f"'{name}' is no longer kept")
    return found[1]


REFERENCE = b"in "
"""What the entry of a kernel begins with whose code is in an object of several; the key of that follows."""


def _object_of(name: str, target: Target) -> tuple[str, bytes] | None:
    """The key and the object that has a kernel's code, where it is kept."""
    store, key = cache.current(), cache.digest("kernel", name, *versions(target))
    data = store.get(key)
    if data is not None and data.startswith(REFERENCE):
        key = data[len(REFERENCE) :].decode()
        data = store.get(key)
    return None if data is None else (key, data)


def _objects(kernels: Mapping[str, MakeText], target: Target, threads: int, note: Note) -> list[bytes]:
    found = {name: _object_of(name, target) for name in kernels}
    objects = dict(entry for entry in found.values() if entry is not None)
    texts = {name: kernels[name]() for name, entry in found.items() if entry is None}
    note("emit")
    groups = _together(texts)
    made = cpu.compile_all([[texts[name] for name in names] for names in groups], target, threads=threads)
    note("compile")
    store = cache.current()
    for names, data in zip(groups, made, strict=True):
        keys = [cache.digest("kernel", name, *versions(target)) for name in names]
        key = keys[0] if len(keys) == 1 else cache.digest("kernels", *keys)
        objects[key] = data
        store.put(key, data)
        for own in keys if len(keys) > 1 else ():
            store.put(own, REFERENCE + key.encode())
    return list(objects.values())


def _together(texts: Mapping[str, str]) -> list[list[str]]:
    """The names of kernels, those together that become one object; what kernels share is apart from them."""
    groups: dict[object, list[str]] = {}
    for name, text in texts.items():
        groups.setdefault((name.startswith(SHARED), cpu.settings(text)), []).append(name)
    return list(groups.values())


def _object(kind: str, identity: str, target: Target, make: MakeText, level: int) -> bytes:
    key = cache.digest(kind, identity, str(level), *versions(target))
    return cache.current().get_or_make(key, lambda: cpu.compile_text(make(), target, level))


def versions(target: Target) -> tuple[str, ...]:
    """What besides a program decides its machine code: LLVM, this package's code, torch's layout, the target."""
    return (cpu.LLVM_VERSION, source_version(), torch.__version__, target.key)


def source_files(folder: str) -> list[str]:
    """Give the paths of every Python file below a folder, in order, also behind links."""
    found: list[str] = []
    for place, names, files in os.walk(folder, followlinks=True):
        names[:] = [n for n in names if n != "__pycache__"]
        found += [os.path.join(place, f) for f in files if f.endswith(".py")]
    return sorted(found)


def digest_of_files(paths: Iterable[str], below: str, *more: str | bytes) -> str:
    """Give the digest of files' places below a folder and contents, and of more."""
    parts: list[str | bytes] = [*more]
    for path in paths:
        with open(path, "rb") as file:
            parts += [path[len(below) :], file.read()]
    return cache.digest(*parts)


@functools.cache
def source_version() -> str:
    """A digest of the code that generates code, so that an edit of it makes old entries stale."""
    package = os.path.dirname(diagnostics.__file__)
    paths = [p for folder in ("codegen", "dialects", "ir") for p in source_files(os.path.join(package, folder))]
    single = [os.path.join(package, where) for where in ("runtime/cpu.py", "driver/native.py", "sizes.py")]
    return digest_of_files([*paths, *single], package)
