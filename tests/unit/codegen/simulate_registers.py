"""The registers of all threads and what is computed between them: one numpy array per register."""

from __future__ import annotations

import re

import numpy as np
from simulate_arithmetic import COMPARE, FLOAT, INTEGER, SIGNED, SimulationError, signed
from simulate_memory import SHARED, Memory
from simulate_text import Instruction, Kind, Parsed, kind, scalar_constant, split, typed


class Registers:
    """The registers of `count` threads, of which some are active."""

    def __init__(self, code: Parsed, memory: Memory, count: int) -> None:
        self.code, self.memory, self.count = code, memory, count
        self.env: dict[str, np.ndarray] = {}
        self.active = np.arange(count)

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

    # ---- arithmetic

    def _binary(self, i: Instruction) -> np.ndarray:
        text = re.sub(r"^(?:(?:nuw|nsw|exact|disjoint|samesign|nneg|contract) )+", "", i.text)
        of, (a, b) = self._operands(text)
        with np.errstate(all="ignore"):
            if i.op in FLOAT:
                return FLOAT[i.op](a, b).astype(of.dtype)
            if i.op in SIGNED:
                return of.masked(SIGNED[i.op](signed(a, of), signed(b, of)).astype(of.dtype))
            if i.op in ("udiv", "urem") and not b.all():
                raise SimulationError("division by zero")
            return of.masked(INTEGER[i.op](a, b).astype(of.dtype))

    def _fneg(self, i: Instruction) -> np.ndarray:
        _, (a,) = self._operands(i.text)
        return -a

    def _icmp(self, i: Instruction) -> np.ndarray:
        text = i.text.removeprefix("samesign ")
        predicate, rest = text.split(" ", 1)
        of, (a, b) = self._operands(rest)
        if predicate.startswith("s"):
            a, b = signed(a, of), signed(b, of)
        return COMPARE[predicate.lstrip("us") if predicate not in ("eq", "ne") else predicate](a, b)

    def _fcmp(self, i: Instruction) -> np.ndarray:
        predicate, rest = i.text.split(" ", 1)
        _, (a, b) = self._operands(rest)
        unordered = np.isnan(a) | np.isnan(b)
        if predicate in ("uno", "ord"):
            return unordered if predicate == "uno" else ~unordered
        if predicate in ("true", "false"):
            return np.full(a.shape, predicate == "true")
        plain = COMPARE[predicate[1:]](a, b)
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
