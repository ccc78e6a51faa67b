"""Dynamic shared memory of a block as bytes from an aligned start, and what threads wait for there."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.codegen.llvm_text import F32, I32, Function, Module, Type, Value

TILES = "tiles"
"""The name of the dynamic shared memory of contractions: whole swizzled rows start at multiples of 1024 bytes."""
SHARED_PTR = Type.of("ptr addrspace(3)")


def declare_tiles(module: Module) -> None:
    """Declare the dynamic shared memory once."""
    module.constant(f"@{TILES}", "external addrspace(3) global [0 x i8], align 1024")


def shared(f: Function, offset: Value | int) -> Value:
    """Give the address of a byte of the block's dynamic shared memory; offsets are i32."""
    if isinstance(offset, int):
        offset = f.const(offset, I32)
    if offset.constant == 0:
        return Value(f, f"@{TILES}", SHARED_PTR)
    return f.emit(f"getelementptr i8, ptr addrspace(3) @{TILES}, i32 {offset.name}", SHARED_PTR)


def shared_bits(f: Function, address: Value) -> Value:
    """Give the 32 bits of an address in shared memory."""
    return f.cast("ptrtoint", address, I32)


def special_register(f: Function, name: str) -> Value:
    """Give a register that tells a thread who it is (`tid.x`, `ctaid.x`, `nctaid.x`), as i32."""
    return f.call(f"llvm.nvvm.read.ptx.sreg.{name}", I32)


def assembly(
    f: Function,
    text: str,
    constraints: str,
    arguments: Sequence[Value] = (),
    result: str = "void",
    *,
    memory: bool = True,
) -> Value:
    """Append one instruction as text; `memory`: it reads or writes memory that others see."""
    constraints = ",".join(filter(None, (constraints, "~{memory}" if memory else "")))
    given = ", ".join(map(repr, arguments))
    call = f'call {result} asm sideeffect "{text}", "{constraints}"({given}) convergent nounwind'
    if result == "void":
        f.line(call)
        return f.poison(I32)
    return f.emit(call, Type.of(result))


def floats(f: Function, made: Value, count: int) -> list[Value]:
    """Take the numbers out of a struct of so many f32."""
    return [f.emit(f"extractvalue {made!r}, {n}", F32) for n in range(count)]


def struct_of_floats(count: int) -> str:
    """The type of what gives so many f32."""
    return "{" + ", ".join(["float"] * count) + "}"


# ---- barriers


def meet(f: Function) -> None:
    """Wait for all threads of the block."""
    f.call_void("llvm.nvvm.barrier.cta.sync.aligned.all", f.const(0, I32))


def meet_some(f: Function, number: Value | int, threads: int) -> None:
    """Wait for so many threads at one of the block's 16 barriers; number 0 is that of `meet`."""
    number = number if isinstance(number, Value) else f.const(number, I32)
    assembly(f, f"bar.sync $0, {threads};", "r", [number])


def barrier_init(f: Function, barrier: Value, arrivals: int) -> None:
    """Make a barrier in shared memory that so many arrivals complete."""
    assembly(f, "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r", [barrier, f.const(arrivals, I32)])


def barriers_are_made(f: Function) -> None:
    """Let the copy engine see the barriers that this thread has made."""
    assembly(f, "fence.mbarrier_init.release.cluster;", "")


def barrier_expect(f: Function, barrier: Value, bytes_: int) -> None:
    """Arrive, and let the phase wait for so many bytes of copies too."""
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    assembly(f, text, "r,r", [barrier, f.const(bytes_, I32)])


def barrier_arrive(f: Function, barrier: Value) -> None:
    """Arrive."""
    assembly(f, "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", [barrier])


def barrier_wait(f: Function, barrier: Value, parity: Value) -> None:
    """Wait until the phase of this parity is complete."""
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }"
    assembly(f, text, "r,r", [barrier, parity])


# ---- copies of boxes by the engine


def copy_box_in(f: Function, target: Value, map_: Value, at: Sequence[Value], barrier: Value) -> None:
    """Copy the box of a tensor map that starts at these positions (innermost first) into shared memory."""
    places = ", ".join(f"${n + 3}" for n in range(len(at)))
    text = (
        f"cp.async.bulk.tensor.{len(at)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{places}}}], [$2];"
    )
    assembly(f, text, "r,l,r" + ",r" * len(at), [target, map_, barrier, *at])


def copy_box_out(f: Function, source: Value, map_: Value, at: Sequence[Value]) -> None:
    """Copy a box from shared memory; what lies outside of the tensor is left out."""
    places = ", ".join(f"${n + 2}" for n in range(len(at)))
    text = f"cp.async.bulk.tensor.{len(at)}d.global.shared::cta.tile.bulk_group [$1, {{{places}}}], [$0];"
    assembly(f, text, "r,l" + ",r" * len(at), [source, map_, *at])


def end_group_out(f: Function) -> None:
    """Close the group of copies that this thread has begun."""
    assembly(f, "cp.async.bulk.commit_group;", "")


def wait_groups_out(f: Function, *, only_read: bool) -> None:
    """Wait until this thread's copies are done, or have at least read their source."""
    assembly(f, f"cp.async.bulk.wait_group{'.read' if only_read else ''} 0;", "")


def publish_shared(f: Function) -> None:
    """Let the copy engine see what this thread has written to shared memory."""
    assembly(f, "fence.proxy.async.shared::cta;", "")


# ---- copies of up to 16 bytes by threads


def copy_in(f: Function, target: Value, source: Value, bytes_: int, filled: Value | None = None) -> None:
    """Begin a copy of 16, 8 or 4 bytes; of the last ones, from `filled` (i32) on, 0 is written and nothing read."""
    cache = "cg" if bytes_ == 16 else "ca"
    there = f.emit(f"addrspacecast {source!r} to ptr addrspace(1)", Type.of("ptr addrspace(1)"))
    name = f"llvm.nvvm.cp.async.{cache}.shared.global.{bytes_}"
    if filled is None:
        f.call_void(name, target, there)
    else:
        f.call_void(f"{name}.s", target, there, filled)


def end_group_in(f: Function) -> None:
    """Close the group of copies that this thread has begun."""
    f.call_void("llvm.nvvm.cp.async.commit.group")


def wait_groups_in(f: Function, left: int) -> None:
    """Wait until at most so many groups of this thread's copies are under way."""
    f.call_void("llvm.nvvm.cp.async.wait.group", f.const(left, I32))
