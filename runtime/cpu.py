"""Machine code on the host CPU: facts about it, LLVM text to objects, objects to addresses."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from isthmus.diagnostics import IRError
from isthmus.dialects.target import Caches, Target
from isthmus.runtime import symbols
from isthmus.runtime.elf import symbols_of

LLVM_VERSION = ".".join(map(str, llvm.llvm_version_info)) + "/" + llvmlite.__version__
"""For cache keys: the same text gives the same object only from the same LLVM."""


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@functools.cache
def host_target() -> Target:
    """The machine that this process runs on, its full instruction set included."""
    _initialize()
    return make_target(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), cores=_cores())


@functools.cache
def baseline_target() -> Target:
    """The least that every machine of the host's architecture has (x86-64: SSE2)."""
    _initialize()
    cpu = "x86-64" if llvm.get_process_triple().startswith("x86_64") else "generic"
    return make_target(cpu, "", cores=_cores())


def make_target(cpu: str, features: str, *, cores: int) -> Target:
    """Describe a CPU of the host's architecture by LLVM's name for it and its features."""
    _initialize()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    present = set(features.split(","))
    bits = 512 if "+avx512f" in present else 256 if "+avx2" in present else 128
    layout = str(machine.target_data)
    return Target(triple, layout, cpu, features, bits, cores, _caches())


def _cores() -> int:
    """CPUs that this process may run on, hardware threads of one core counted once."""
    allowed = os.sched_getaffinity(0)
    cores: set[str] = set()
    for cpu in allowed:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            with open(path, encoding="ascii") as file:
                cores.add(file.read().strip())
        except OSError:
            return len(allowed)
    return max(1, len(cores))


def _caches() -> Caches:
    sizes: dict[int, int] = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        try:
            level, kind, size = (_read(os.path.join(folder, name)) for name in ("level", "type", "size"))
        except OSError:
            break
        if kind != "Instruction" and (match := re.fullmatch(r"(\d+)([KM]?)", size)):
            sizes[int(level)] = int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2]]
    default = Caches()
    return Caches(sizes.get(1, default.l1), sizes.get(2, default.l2), sizes.get(3, default.l3))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


LONG_TEXT = 60_000
"""Characters of a module from which on LLVM does not schedule after registers are allocated: it takes time quadratic
in the length of a block, and what reorders instructions itself gains nothing from it there."""

HIDDEN_INDEX = 'asm "", "=r,0"'
"""What is in a loop that moves more addresses than there are registers: mostly loads and stores, which such scheduling
compares with each other, and which wait for memory whatever their order is."""

_per_thread = threading.local()


def _machine(target: Target, effort: int = 3) -> llvm.TargetMachine:
    """A target machine of the calling thread: they may not be shared between threads."""
    machines: dict[tuple[Target, int], llvm.TargetMachine] = _per_thread.__dict__.setdefault("machines", {})
    machine = machines.get((target, effort))
    if machine is None:
        machine = machines[target, effort] = _new_machine(target, effort)
    return machine


def _new_machine(target: Target, effort: int = 3) -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=effort,
        # Constants are then operands of the instructions that use them; with the JIT's own code
        # model each takes a register for its address, and vector loops spill.
        reloc="pic",
        codemodel="small",
    )


ADDRESSES_AS_WRITTEN = "; addresses as they are written\n"
"""First line of a text whose loops already hold their addresses: LLVM then does not look for better ones, which takes a
quarter of its time. For tiles of products and of attention, measured: they are as fast. Bodies of elementwise code are
not, since what registers are left for depends on it."""

CONSTANTS_WHERE_USED = "; constants where they are used\n"
"""First line of a text whose loops load constants where they use them. LLVM keeps them in registers, and with the
others it computes one vector after another, each waiting for itself. Measured for elementwise bodies, time over time:
chains of functions 0.85, layer norm 0.95, cross-entropy 0.97, an LSTM 0.98, second derivatives of tanh 1.00 to 1.03."""

_OPTIONS = {ADDRESSES_AS_WRITTEN: "-disable-lsr", CONSTANTS_WHERE_USED: "-disable-machine-licm"}

_option = threading.Lock()
"""Held by whoever has changed an option of LLVM: they are the process's, and another thread's code right with any."""


def _option_of(text: str) -> str | None:
    """The option of LLVM that the first line of a text asks for."""
    return next((option for mark, option in _OPTIONS.items() if text.startswith(mark)), None)


@contextlib.contextmanager
def _as_marked(text: str) -> Generator[None]:
    """Let LLVM leave out what the first line of a text says that it need not do."""
    option = _option_of(text)
    if option is None:
        yield
        return
    with _option:
        llvm.set_option("isthmus", option)
        try:
            yield
        finally:
            llvm.set_option("isthmus", f"{option}=false")


def _effort(text: str) -> int:
    """LLVM's level of effort for the machine code of a kernel."""
    return 1 if len(text) > LONG_TEXT or HIDDEN_INDEX in text else 3


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine, level: int) -> None:
    """Level 0 nothing, 1 what explicit vector code needs, 2 LLVM's pipeline and vectoriser."""
    if level == 0:
        return
    tuning = llvm.create_pipeline_tuning_options(speed_level=min(level, 2))
    builder = llvm.create_pass_builder(machine, tuning)
    if level == 1:
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()  # more passes cost time and gain nothing: the emitter folds and shares
    else:
        tuning.loop_vectorization = tuning.slp_vectorization = True
        manager = builder.getModulePassManager()
    manager.run(module, builder)


def _parse(text: str, context: llvm.ContextRef | None = None) -> llvm.ModuleRef:
    """Parse and verify one module, in a context of its own where none is given; whoever asks closes it.

    Left to the garbage collector (an exception's frames hold it), it could be freed after its context. Raises IRError
    that shows the line which LLVM refuses.
    """
    try:
        module = llvm.parse_assembly(text, context or llvm.create_context())
        try:
            module.verify()
        except RuntimeError:
            module.close()
            raise
    except RuntimeError as error:
        match = re.search(r"<string>:(\d+):", str(error))
        lines = text.splitlines()
        line = lines[int(match[1]) - 1] if match and int(match[1]) <= len(lines) else None
        what = f"LLVM refuses the generated code: {error}"
        raise IRError(what, cure=line and f"at: {line.strip()}") from error
    return module


def compile_text(text: str, target: Target, level: int = 1) -> bytes:
    """Turn one module of LLVM text into a relocatable object.

    The text needs no target lines: they are written here. `level`: 0 straight to machine code,
    for programs that only call (three times as fast to compile, and no slower), 1 scalar
    cleaning, for kernels that are emitted as explicit vectors, 2 LLVM's whole pipeline with its
    vectorisers. Raises IRError where LLVM refuses the text.
    """
    return _compile([text], target, level)


def settings(text: str) -> tuple[int, str | None]:
    """What modules must have in common to be compiled into one object."""
    return _effort(text), _option_of(text)


def _compile(texts: Sequence[str], target: Target, level: int) -> bytes:
    context = llvm.create_context()
    with _parse(texts[0], context) as module:
        for text in texts[1:]:
            module.link_in(_parse(text, context))  # which it consumes
        module.triple = target.triple
        module.data_layout = target.layout
        machine = _machine(target, _effort(texts[0]) if level else 0)
        _optimize(module, machine, level)
        with _as_marked(texts[0]):
            return machine.emit_object(module)


def assembly(text: str, target: Target, level: int = 1) -> str:
    """The assembly that `compile_text` would assemble: for tests that count instructions."""
    with _parse(text) as module:
        module.triple = target.triple
        module.data_layout = target.layout
        machine = _machine(target)
        _optimize(module, machine, level)
        with _as_marked(text):
            return machine.emit_assembly(module)


@functools.cache
def unlock_compilation() -> None:
    """Let threads compile at once: llvmlite holds one lock around every call into LLVM.

    The three calls that take the time touch only a context and a target machine, which are the
    thread's own here. A llvmlite that is built otherwise keeps its lock, and threads then wait.
    """
    for name in (
        "LLVMPY_ParseAssembly",
        "LLVMPY_RunNewModulePassManager",
        "LLVMPY_TargetMachineEmitToMemory",
    ):
        with contextlib.suppress(AttributeError):
            wrapper = getattr(ffi.lib, name)
            if hasattr(wrapper, "_lock"):
                wrapper._lock = contextlib.nullcontext()


def compile_all(groups: Sequence[Sequence[str]], target: Target, level: int = 1, *, threads: int = 1) -> list[bytes]:
    """Compile groups of modules, each into one object, in the order given; those of a group have the same `settings`.

    LLVM makes its passes anew for each object, which takes as long as a short kernel.
    """
    if threads <= 1 or len(groups) <= 1:
        return [_compile(texts, target, level) for texts in groups]
    unlock_compilation()
    with ThreadPoolExecutor(min(threads, len(groups))) as pool:
        return list(pool.map(lambda texts: _compile(texts, target, level), groups))


class Loaded:
    """Objects in executable memory; the addresses are valid as long as this object lives."""

    def __init__(
        self,
        addresses: Mapping[str, int],
        tracker: llvm.orcjit.ResourceTracker,
        needs: tuple[object, ...],
    ) -> None:
        self._addresses = dict(addresses)
        self._tracker = tracker
        self._needs = needs

    def __getitem__(self, name: str) -> int:
        """Give the address of a function; KeyError where the objects define none of this name."""
        return self._addresses[name]

    def __contains__(self, name: str) -> bool:
        return name in self._addresses

    def stay(self) -> None:
        """Keep the code for as long as the process runs, past the end of Python."""
        for owner in (self, _jit()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that the objects define."""
        return tuple(self._addresses)


_linking = threading.Lock()
_serial = itertools.count()


@functools.cache
def _jit() -> llvm.orcjit.LLJIT:
    # JITLink gives each object one block. The older linker places sections one by one, wherever there is room, and
    # aborts the process where two are more than 2 GiB apart: torch with CUDA alone maps more than that.
    return llvm.create_lljit_compiler(_new_machine(host_target()), use_jit_link=True)


def load(
    objects: Iterable[bytes],
    extra: Mapping[str, int] | None = None,
    *,
    needs: tuple[object, ...] = (),
) -> Loaded:
    """Link objects into this process and give the addresses of the functions they define.

    What they call is looked up in `extra`, in torch's libraries, in the process. `needs` are
    kept alive with the result (e.g. the `Loaded` that addresses of `extra` point into).
    Raises LookupError where a symbol is nowhere.
    """
    builder = llvm.JITLibraryBuilder()
    defined: list[str] = []
    wanted: set[str] = set()
    for data in objects:
        found = symbols_of(data)
        defined.extend(found.defined)
        wanted.update(found.undefined)
        builder.add_object_img(data)
    for name in defined:
        builder.export_symbol(name)
    for name in sorted(wanted.difference(defined)):
        address = (extra or {}).get(name) or symbols.find(name)
        if address is not None:
            builder.import_symbol(name, address)
        elif not name.startswith("_GLOBAL_OFFSET_TABLE_"):
            raise LookupError(f"compiled code needs '{name}', which nothing here exports")
    with _linking:
        try:
            tracker = builder.link(_jit(), f"isthmus{next(_serial)}")
        except RuntimeError as error:
            raise LookupError(f"compiled code cannot be linked: {error}") from error
        return Loaded({name: tracker[name] for name in defined}, tracker, needs)
