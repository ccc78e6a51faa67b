"""Runs the LLVM text of a GPU kernel on the CPU: all threads of all blocks in lockstep, one numpy array per register.

Threads that diverge are run apart and meet again where the code does. Checked on the way: every address is inside a
buffer and aligned as the instruction says, barriers and shuffles are reached by all threads that they wait for, and no
thread reads or overwrites, without a barrier between, what another one wrote.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re

import numpy as np
from simulate_memory import GLOBAL, LOCAL, SHARED, Memory
from simulate_text import Instruction, Kind, Parsed, kind, scalar_constant, split, typed

POINTER = Kind("ptr")


class SimulationError(AssertionError):
    """What a GPU would not forgive."""


class Grid:
    """One launch: `blocks` blocks of `threads` threads."""

    def __init__(self, code: Parsed, blocks: int, threads: int, memory: Memory, arguments: list[int]) -> None:
        self.code, self.threads, self.memory = code, threads, memory
        self.count = blocks * threads
        self.cta = np.repeat(np.arange(blocks), threads)
        self.tid = np.tile(np.arange(threads), blocks)
        self.env: dict[str, np.ndarray] = {}
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

    # ---- registers

    def _set(self, i: Instruction, value: np.ndarray) -> None:
        whole = self.env.get(i.name)
        if whole is None or whole.dtype != value.dtype or whole.shape[1:] != value.shape[1:]:
            whole = self.env[i.name] = np.zeros((self.count, *value.shape[1:]), value.dtype)
        whole[self.active] = value

    def value(self, of: Kind, text: str) -> np.ndarray:
        """The value of an operand in the active threads: [threads] or [threads, lanes]."""
        shape = (len(self.active), of.lanes) if of.lanes else (len(self.active),)
        if text.startswith("%"):
            return self.env[text[1:]][self.active]
        if text.startswith("splat"):
            return np.full(shape, scalar_constant(typed(text[7:-1])[1], of), of.dtype)
        if text.startswith("<"):
            lanes = [scalar_constant(typed(t)[1], of) for t in split(text[1:-1])]
            return np.broadcast_to(np.array(lanes, of.dtype), shape)
        if of.scalar == "ptr" and text not in ("null", "poison", "undef"):
            return np.full(shape, self._symbol(text), np.uint64)
        constant = scalar_constant(text, of)
        assert constant is not None, text
        return np.full(shape, constant, of.dtype)

    def _symbol(self, text: str) -> int:
        inner = re.search(r"@([\w]+)", text)
        assert inner, text
        if inner[1] in self.memory.constants:
            address = self.memory.constants[inner[1]]
        else:
            offset, _ = self.code.shared.get(inner[1], (self.code.shared_bytes, 0))
            address = SHARED + offset
        if text.startswith("getelementptr"):
            step = re.search(r"getelementptr (?:inbounds |nuw )*\((\w+), .*, i64 (\d+)\)", text)
            assert step, text
            address += int(step[2]) * max(1, Kind(step[1]).bits // 8)
        return address

    def _operands(self, text: str) -> tuple[Kind, list[np.ndarray]]:
        """Operands of `type a, b`."""
        first, *rest = split(text)
        of, name = typed(first)
        return of, [self.value(of, t) for t in (name, *rest)]

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

    # ---- arithmetic

    def _binary(self, i: Instruction) -> np.ndarray:
        text = re.sub(r"^(?:(?:nuw|nsw|exact|disjoint|samesign|nneg|contract) )+", "", i.text)
        of, (a, b) = self._operands(text)
        with np.errstate(all="ignore"):
            if i.op in _FLOAT:
                return _FLOAT[i.op](a, b).astype(of.dtype)
            if i.op in _SIGNED:
                return of.masked(_SIGNED[i.op](signed(a, of), signed(b, of)).astype(of.dtype))
            if i.op in ("udiv", "urem") and not b.all():
                raise SimulationError("division by zero")
            return of.masked(_INTEGER[i.op](a, b).astype(of.dtype))

    def _fneg(self, i: Instruction) -> np.ndarray:
        _, (a,) = self._operands(i.text)
        return -a

    def _icmp(self, i: Instruction) -> np.ndarray:
        text = i.text.removeprefix("samesign ")
        predicate, rest = text.split(" ", 1)
        of, (a, b) = self._operands(rest)
        if predicate.startswith("s"):
            a, b = signed(a, of), signed(b, of)
        return _COMPARE[predicate.lstrip("us") if predicate not in ("eq", "ne") else predicate](a, b)

    def _fcmp(self, i: Instruction) -> np.ndarray:
        predicate, rest = i.text.split(" ", 1)
        _, (a, b) = self._operands(rest)
        unordered = np.isnan(a) | np.isnan(b)
        if predicate in ("uno", "ord"):
            return unordered if predicate == "uno" else ~unordered
        if predicate in ("true", "false"):
            return np.full(a.shape, predicate == "true")
        plain = _COMPARE[predicate[1:]](a, b)
        return plain | unordered if predicate[0] == "u" else plain & ~unordered

    def _select(self, i: Instruction) -> np.ndarray:
        c, a, b = (self.value(*typed(t)) for t in split(i.text))
        return np.where(c if c.ndim == a.ndim else c[:, None], a, b)

    def _freeze(self, i: Instruction) -> np.ndarray:
        return self.value(*typed(i.text))

    # ---- conversions

    def _convert(self, i: Instruction) -> tuple[Kind, Kind, np.ndarray]:
        source, target = re.sub(r"^(?:nneg|nuw|nsw) ", "", i.text).rsplit(" to ", 1)
        of, name = typed(source)
        return of, kind(target), self.value(of, name)

    def _zext(self, i: Instruction) -> np.ndarray:
        _, to, x = self._convert(i)
        return x.astype(to.dtype)

    def _sext(self, i: Instruction) -> np.ndarray:
        of, to, x = self._convert(i)
        return to.masked(signed(x, of).astype(np.int64).astype(to.dtype))

    def _trunc(self, i: Instruction) -> np.ndarray:
        _, to, x = self._convert(i)
        return (x & x.dtype.type(1)).astype(bool) if to.scalar == "i1" else to.masked(x.astype(to.dtype))

    def _float(self, i: Instruction) -> np.ndarray:
        of, to, x = self._convert(i)
        if of.scalar == "bfloat":
            return (x.astype(np.uint32) << 16).view(np.float32)
        if to.scalar == "bfloat":
            bits = x.view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)
        with np.errstate(all="ignore"):
            return x.astype(to.dtype)

    _fpext = _fptrunc = _uitofp = _float

    def _sitofp(self, i: Instruction) -> np.ndarray:
        of, to, x = self._convert(i)
        return signed(x, of).astype(to.dtype)

    def _fptosi(self, i: Instruction) -> np.ndarray:
        _, to, x = self._convert(i)
        return to.masked(np.trunc(x).astype(np.int64).astype(to.dtype))

    def _fptoui(self, i: Instruction) -> np.ndarray:
        _, to, x = self._convert(i)
        return to.masked(np.trunc(x).astype(np.uint64).astype(to.dtype))

    def _addrspacecast(self, i: Instruction) -> np.ndarray:
        return self._convert(i)[2]

    _ptrtoint = _inttoptr = _addrspacecast

    def _bitcast(self, i: Instruction) -> np.ndarray:
        of, to, x = self._convert(i)
        if of.scalar == "i1" and of.lanes:
            weights = to.dtype(1) << np.arange(of.lanes, dtype=to.dtype)
            return (x * weights).sum(1).astype(to.dtype)
        if of.bits == to.bits:
            return np.ascontiguousarray(x).view(to.dtype)
        raw = np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
        result = raw.copy().view(to.dtype)
        return result if to.lanes else result[:, 0]

    # ---- vectors

    def _extractelement(self, i: Instruction) -> np.ndarray:
        v, lane = (self.value(*typed(t)) for t in split(i.text))
        return np.take_along_axis(v, lane.astype(np.int64)[:, None], 1)[:, 0]

    def _insertelement(self, i: Instruction) -> np.ndarray:
        v, x, lane = (self.value(*typed(t)) for t in split(i.text))
        result = v.copy()
        np.put_along_axis(result, lane.astype(np.int64)[:, None], x[:, None], 1)
        return result

    def _shufflevector(self, i: Instruction) -> np.ndarray:
        a, b, mask = split(i.text)
        both = np.concatenate([self.value(*typed(a)), self.value(*typed(b))], 1)
        of, text = typed(mask)
        if text.startswith("<"):
            lanes = [int(t.split()[1]) if "poison" not in t and "undef" not in t else 0 for t in split(text[1:-1])]
        elif text.startswith("splat"):
            lanes = [int(text[7:-1].split()[1])] * of.lanes
        else:
            lanes = [0] * of.lanes
        return both[:, lanes]

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
        of_text, pointer, *rest = split(i.text)
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
            return _reduced(name.split(".")[2], operands[0], arguments[0][1])
        of = arguments[0][1]
        with np.errstate(all="ignore"):
            if base in _SIGNED_CALLS:
                return of.masked(_SIGNED_CALLS[base](*(signed(x, of) for x in operands)).astype(of.dtype))
            if base in ("ctlz", "cttz", "ctpop"):
                return _counted(base, operands[0], of)
            result = _CALLS[base](*operands)
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
        if name == "ex2.approx.f32":
            with np.errstate(all="ignore"):
                return np.exp2(self.value(*arguments[0]).astype(np.float64)).astype(np.float32)
        if name == "rcp.approx.ftz.f":
            x = self.value(*arguments[0])
            return np.nextafter(np.float32(1) / x, np.float32(np.inf))  # it may be a unit off
        if name == "mulhi.ull":
            return _high_product(*(self.value(of, v) for of, v in arguments))
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


def _high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper 64 bits of products of 64 bits, from those of halves."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & low)) >> half)


def signed(x: np.ndarray, of: Kind) -> np.ndarray:
    """Read integers as signed."""
    if of.scalar == "i1":
        return -x.astype(np.int64)
    if of.bits in (8, 16, 32, 64):
        return x.view(np.dtype(f"i{x.dtype.itemsize}")) if x.flags.c_contiguous else x.astype(f"i{x.dtype.itemsize}")
    half = 1 << (of.bits - 1)
    return (x.astype(np.int64) ^ half) - half


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


def _shift(apply):
    return lambda a, b: np.where(b < 8 * a.dtype.itemsize, apply(a, b), 0)


_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_FLOAT = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide, "frem": np.fmod}
_INTEGER = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "udiv": np.floor_divide,
    "urem": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift),
    "lshr": _shift(np.right_shift),
}


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not b.all():
        raise SimulationError("division by zero")
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))


_SIGNED = {
    "sdiv": _truncated,
    "srem": lambda a, b: a - _truncated(a, b) * b,
    "ashr": lambda a, b: np.right_shift(a, np.minimum(b, 8 * a.dtype.itemsize - 1)),
}


_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBM.fma.argtypes, _LIBM.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
_EXACT_FMA = np.frompyfunc(_LIBM.fma, 3, 1)


def _fma(a, b, c):
    if a.dtype != np.float32:
        return _EXACT_FMA(a, b, c).astype(np.float64)
    # The product is exact. The sum is rounded to odd, so that rounding it again is as rounding once.
    p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    t = p + c
    other = t - p
    error = (p - (t - other)) + (c - other)
    bits = t.view(np.int64)
    inexact = np.isfinite(t) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((error > 0) == (t > 0), 1, -1), bits).view(np.float64).astype(np.float32)


_CALLS = {
    "fma": _fma,
    "fabs": np.abs,
    "copysign": np.copysign,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "roundeven": np.rint,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "maxnum": np.fmax,
    "minnum": np.fmin,
    "umin": np.minimum,
    "umax": np.maximum,
    "fshl": lambda a, b, s: (
        (a << (s % (8 * a.dtype.itemsize)))
        | np.where(s % (8 * a.dtype.itemsize) == 0, 0, b >> (8 * a.dtype.itemsize - s % (8 * a.dtype.itemsize)))
    ),
}
_SIGNED_CALLS = {"smin": np.minimum, "smax": np.maximum, "abs": lambda x, _: np.abs(x)}


def _reduced(which: str, x: np.ndarray, of: Kind) -> np.ndarray:
    if which == "smax":
        return signed(x, Kind(of.scalar)).max(1).astype(of.dtype)
    return {"or": np.bitwise_or, "and": np.bitwise_and}[which].reduce(x, 1)


def _counted(which: str, x: np.ndarray, of: Kind) -> np.ndarray:
    def count(value: int) -> int:
        text = format(value, f"0{of.bits}b")
        if which == "ctpop":
            return text.count("1")
        return len(text) - len((text.lstrip if which == "ctlz" else text.rstrip)("0"))

    return np.vectorize(count, otypes=[of.dtype])(x)


__all__ = ["GLOBAL", "Grid", "SimulationError"]
