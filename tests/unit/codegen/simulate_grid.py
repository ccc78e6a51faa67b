"""Runs the LLVM text of a GPU kernel on the CPU: all threads of all blocks in lockstep, one numpy array per register.

Threads that diverge are run apart and meet again where the code does. Checked on the way: every address is inside a
buffer and aligned as the instruction says, barriers and shuffles are reached by all threads that they wait for, and no
thread reads or overwrites, without a barrier between, what another one wrote.
"""

from __future__ import annotations

import re

import numpy as np
from simulate_arithmetic import CALLS, SIGNED_CALLS, SimulationError, counted, high_product, reduced, signed
from simulate_memory import GLOBAL, LOCAL, Memory
from simulate_registers import Registers
from simulate_text import Instruction, Kind, Parsed, kind, split, typed


class Grid(Registers):
    """One launch: `blocks` blocks of `threads` threads."""

    def __init__(self, code: Parsed, blocks: int, threads: int, memory: Memory, arguments: list[int]) -> None:
        super().__init__(code, memory, blocks * threads)
        self.threads = threads
        self.cta = np.repeat(np.arange(blocks), threads)
        self.tid = np.tile(np.arange(threads), blocks)
        for (of, name), value in zip(code.arguments, arguments, strict=True):
            self.env[name.removeprefix("%")] = np.full(self.count, value & ((1 << 64) - 1), of.dtype)
        self.order = {name: n for n, name in enumerate(_reverse_postorder(code))}
        self.names = list(self.order)
        self.at = np.zeros(self.count, np.int64)
        self.before = np.zeros(self.count, np.int64)
        self.local = 0
        self.executed = 0

    def run(self) -> None:
        done = len(self.names)
        while True:
            block = int(self.at.min(initial=done))
            if block == done:
                return
            self.active = np.flatnonzero(self.at == block)
            self._block(self.names[block])

    def _block(self, name: str) -> None:
        instructions = self.code.blocks[name].instructions
        phis = [i for i in instructions if i.op == "phi"]
        found = [self._phi(i) for i in phis]
        for i, value in zip(phis, found, strict=True):
            self._set(i, value)
        for i in instructions[len(phis) :]:
            self.executed += 1
            if i.op in ("br", "ret", "switch"):
                self._leave(i, name)
                return
            result = getattr(self, f"_{i.op}", self._binary)(i)
            if i.name is not None:
                self._set(i, result)

    # ---- control

    def _phi(self, i: Instruction) -> np.ndarray:
        of, rest = typed(i.text)
        result = None
        for value, source in re.findall(r"\[ (.*?), %([\w.]+) \]", rest):
            from_here = self.before[self.active] == self.order.get(source, -1)
            found = self.value(of, value) if self._known(value) else None
            if found is None:
                assert not from_here.any()
                continue
            if result is None:
                result = np.zeros_like(found)
            result[from_here] = found[from_here]
        assert result is not None
        return result

    def _known(self, text: str) -> bool:
        return not text.startswith("%") or text[1:] in self.env

    def _leave(self, i: Instruction, name: str) -> None:
        self.before[self.active] = self.order[name]
        if i.op == "ret":
            self.at[self.active] = len(self.names)
            return
        labels = re.findall(r"label %([\w.]+)", i.text)
        if len(labels) == 1:
            self.at[self.active] = self.order[labels[0]]
            return
        condition = self.value(Kind("i1"), split(i.text)[0].removeprefix("i1 "))
        self.at[self.active] = np.where(condition, self.order[labels[0]], self.order[labels[1]])

    # ---- memory

    def _getelementptr(self, i: Instruction) -> np.ndarray:
        scalar, base, *indices = split(re.sub(r"^(?:inbounds|nuw|nusw) ", "", re.sub(r"^inbounds nuw ", "", i.text)))
        of = kind(scalar)
        size = max(1, of.bits // 8) * (of.lanes or 1)
        address = self.value(*typed(base))
        for text in indices:
            index_kind, name = typed(text)
            index = signed(self.value(index_kind, name), index_kind).astype(np.int64)
            if index.ndim > address.ndim:
                address = address[:, None]
            address = (address.astype(np.int64) + index * size).astype(np.uint64)
        return address

    def _alloca(self, i: Instruction) -> np.ndarray:
        of, *rest = split(i.text)
        count = next((int(t.split()[1]) for t in rest if t.startswith("i64")), 1)
        size = kind(of)
        address = LOCAL + self.local
        self.local += -(-count * max(1, size.bits // 8) * (size.lanes or 1) // 64) * 64
        self.memory.grow_local(self.local)
        return np.full(len(self.active), address, np.uint64)

    def _load(self, i: Instruction) -> np.ndarray:
        of_text, pointer, *rest = split(i.text.removeprefix("volatile "))
        of = kind(of_text)
        return self._read(of, self.value(*typed(pointer)), _alignment(rest))

    def _read(self, of: Kind, address: np.ndarray, align: int, lanes: np.ndarray | None = None) -> np.ndarray:
        threads = self.active if lanes is None else lanes
        size = max(1, of.bits // 8) * (of.lanes or 1)
        raw = self.memory.read(address, size, align, threads, self.cta[threads])
        return raw.view(of.dtype).reshape((len(address), of.lanes) if of.lanes else (len(address),))

    def _store(self, i: Instruction) -> None:
        value, pointer, *rest = split(i.text.removeprefix("atomic "))
        of, name = typed(value)
        x = self.value(of, name)
        self._write(x, self.value(*typed(pointer.replace(" monotonic", ""))), _alignment(rest), "atomic" in i.text)

    def _write(self, x, address, align: int, atomic: bool = False, lanes: np.ndarray | None = None) -> None:
        threads = self.active if lanes is None else lanes
        raw = np.ascontiguousarray(x).view(np.uint8).reshape(len(address), -1)
        self.memory.write(address, raw, align, threads, self.cta[threads], atomic)

    # ---- calls

    def _call(self, i: Instruction) -> np.ndarray | None:
        found = re.match(r"(?:\w+ )*?(\S.*?) @([\w.]+)\((.*)\)", i.text)
        assert found, i.text
        name = found[2].removeprefix("llvm.")
        arguments = [(t, *typed(t)) for t in split(found[3])]
        if name.startswith("nvvm."):
            return self._nvvm(name[5:], [(of, v) for _, of, v in arguments])
        if name.startswith("masked."):
            return self._masked(name[7:], arguments)
        operands = [self.value(of, v) for _, of, v in arguments]
        base = name.split(".")[0]
        if base == "vector":
            return reduced(name.split(".")[2], operands[0], arguments[0][1])
        of = arguments[0][1]
        with np.errstate(all="ignore"):
            if base in SIGNED_CALLS:
                return of.masked(SIGNED_CALLS[base](*(signed(x, of) for x in operands)).astype(of.dtype))
            if base in ("ctlz", "cttz", "ctpop"):
                return counted(base, operands[0], of)
            result = CALLS[base](*operands)
            return result if result.dtype == np.bool_ else result.astype(operands[0].dtype)

    def _nvvm(self, name: str, arguments: list[tuple[Kind, str]]) -> np.ndarray | None:
        if name.startswith("read.ptx.sreg."):
            register = {"tid.x": self.tid, "ctaid.x": self.cta, "laneid": self.tid % 32}[name[14:]]
            return register[self.active].astype(np.uint32)
        if name.startswith("barrier.cta.sync"):
            waiting = np.bincount(self.cta[self.active], minlength=1)
            if any(n not in (0, self.threads) for n in waiting):
                raise SimulationError("a barrier that not all threads of a block reach")
            self.memory.barrier(np.unique(self.cta[self.active]))
            return None
        if name in ("ex2.approx.f32", "ex2.approx.ftz.f32"):
            with np.errstate(all="ignore"):
                power = np.exp2(self.value(*arguments[0]).astype(np.float64)).astype(np.float32)
            return power if "ftz" not in name else np.where(power < 2.0**-126, np.float32(0), power)
        if name == "rcp.approx.ftz.f":
            x = self.value(*arguments[0])
            r = np.nextafter(np.float32(1) / x, np.float32(np.inf))  # it may be a unit off
            return np.where(np.abs(r) < 2.0**-126, np.copysign(np.float32(0), r), r)
        if name == "vote.ballot.sync":
            return self._vote(*(self.value(of, v) for of, v in arguments))
        if name == "mulhi.ull":
            return high_product(*(self.value(of, v) for of, v in arguments))
        assert name.startswith("shfl.sync.bfly"), name
        mask, x, distance, _ = (self.value(of, v) for of, v in arguments)
        position = np.full(self.count, -1)
        position[self.active] = np.arange(len(self.active))
        warp = self.active - self.tid[self.active] % 32
        for lane in range(32):  # all threads of the mask are here
            wanted = (mask >> np.uint32(lane)) & 1 == 1
            absent = wanted & (position[np.minimum(warp + lane, self.count - 1)] < 0)
            if absent.any():
                raise SimulationError("a shuffle that not all its threads reach")
        other = self.active ^ distance.astype(np.int64)
        inside = (mask >> (other % 32).astype(np.uint32)) & 1
        if not inside.all():
            raise SimulationError("a shuffle with a thread outside its mask")
        return x[position[other]]

    def _vote(self, mask: np.ndarray, condition: np.ndarray) -> np.ndarray:
        """A bit for each lane of the warp; all lanes of the mask are here."""
        here = np.zeros(self.count, np.uint32)
        here[self.active] = 1
        bits = np.zeros(self.count, np.uint32)
        bits[self.active] = condition.astype(np.uint32)
        warp = self.active - self.tid[self.active] % 32
        lanes = warp[:, None] + np.arange(32)
        wanted = (mask[:, None] >> np.arange(32, dtype=np.uint32)) & 1
        if (wanted > here[np.minimum(lanes, self.count - 1)]).any():
            raise SimulationError("a vote that not all its threads reach")
        return (bits[lanes] << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)

    def _masked(self, name: str, arguments) -> np.ndarray | None:
        """Lane by lane, only where the mask is set."""
        values = [self.value(of, v) for _, of, v in arguments]
        which = name.split(".")[0]
        align = next((int(a) for t, *_ in arguments for a in re.findall(r"align (\d+)", t)), 1)
        if which == "store":
            x, base, mask = values
        else:
            base, mask, default = values
            x = default.copy()
        of = Kind(arguments[0 if which == "store" else 2][1].scalar)
        size = max(1, of.bits // 8)
        for lane in range(mask.shape[1]):
            on = mask[:, lane]
            address = base[on, lane] if base.ndim == 2 else base[on] + np.uint64(lane * size)
            if not on.any():
                continue
            if which == "store":
                self._write(x[on, lane], address, align, lanes=self.active[on])
            else:
                x[on, lane] = self._read(of, address, align, self.active[on])
        return None if which == "store" else x


def _alignment(rest: list[str]) -> int:
    return next((int(t.split()[1]) for t in rest if t.startswith("align")), 1)


def _reverse_postorder(code: Parsed) -> list[str]:
    seen: set[str] = set()
    order: list[str] = []
    stack: list[tuple[str, bool]] = [(next(iter(code.blocks)), False)]
    while stack:
        name, leaving = stack.pop()
        if leaving:
            order.append(name)
            continue
        if name in seen:
            continue
        seen.add(name)
        stack.append((name, True))
        last = code.blocks[name].instructions[-1]
        # The way out of a loop is visited first, so that it comes after the body.
        stack.extend((label, False) for label in re.findall(r"label %([\w.]+)", last.text))
    return order[::-1]


__all__ = ["GLOBAL", "Grid", "SimulationError"]
