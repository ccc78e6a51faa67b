"""Modules and functions under construction."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from isthmus.codegen.llvm_text.types import I1, I64, PTR, VOID, Number, Type, alignment, float_text, integer_text
from isthmus.codegen.llvm_text.value import Value


class Module:
    """One LLVM module: declarations, globals, metadata and finished functions, as text."""

    def __init__(self, *, vector_bits: int = 0) -> None:
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._functions: list[str] = []
        self.own: set[str] = set()
        """Names of the functions that it has, or will have."""
        self._loops = 0
        self._past_caches: int | None = None
        width = f' "prefer-vector-width"="{vector_bits}"' if vector_bits else ""
        self._attributes = f'attributes #0 = {{ nounwind "no-trapping-math"="true"{width} }}'

    def declare(self, name: str, result: Type, arguments: Sequence[Type]) -> None:
        """Declare a function or an intrinsic once; one that the module itself has needs none."""
        if name not in self._declarations and name not in self.own:
            args = ", ".join(a.text for a in arguments)
            self._declarations[name] = f"declare {result.text} @{name}({args})"

    def global_text(self, text: str) -> None:
        """Add the line of a global."""
        self._globals.append(text)

    def constant(self, name: str, definition: str) -> None:
        """Define a constant once."""
        line = f"{name} = {definition}"
        if line not in self._globals:
            self._globals.append(line)

    def define(self, text: str) -> None:
        """Add a finished function's text."""
        self._functions.append(text)

    def new_loop(self) -> str:
        """Give metadata for one loop that LLVM must not unroll: the emitter has decided."""
        self._loops += 1
        return f", !llvm.loop !{self._loops}"

    def past_caches(self) -> str:
        """Give metadata for stores whose lines are not to stay in any cache."""
        if self._past_caches is None:
            self._loops += 1
            self._past_caches = self._loops
        return f", !nontemporal !{self._past_caches}"

    def __str__(self) -> str:
        loops = [
            f"!{i} = " + ("!{i32 1}" if i == self._past_caches else f"distinct !{{!{i}, !0}}")
            for i in range(1, self._loops + 1)
        ]
        metadata = ['!0 = !{!"llvm.loop.unroll.disable"}', *loops] if loops else []
        parts = [
            *self._globals,
            *self._declarations.values(),
            *self._functions,
            self._attributes,
            *metadata,
        ]
        return "\n".join(parts) + "\n"


class Function:
    """The function under construction: a straight list of instructions with structured blocks.

    Slots (`alloca`) go to the entry block wherever they are asked for; SROA makes registers of
    them, so loop-carried values are loads and stores here and never hand-written phis.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        arguments: Sequence[tuple[str, Type]],
        *,
        result: Type = VOID,
        linkage: str = "",
        attributes: str = "",
        of_arguments: Sequence[str] = (),
    ) -> None:
        """`attributes` follow those of the module, `of_arguments` the type of each argument."""
        self.module = module
        module.own.add(name)
        self.arguments = tuple(Value(self, f"%{n}", t) for n, t in arguments)
        self._head = f"define {linkage + ' ' if linkage else ''}{result.text} @{name}"
        self._attributes = f"#0 {attributes}".rstrip()
        self._of_arguments = [f"{a} " if a else "" for a in of_arguments] or [""] * len(arguments)
        self._lines: list[str] = []
        self._slots: list[str] = []
        self._entry: list[str] = []
        self._values = 0
        self._blocks = 0
        self.current = "entry"

    # ---- the text itself

    def emit(self, text: str, type_: Type) -> Value:
        """Append an instruction with a result."""
        self._values += 1
        name = f"%v{self._values}"
        self._lines.append(f"  {name} = {text}")
        return Value(self, name, type_)

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def finish(self, result: Value | None = None) -> None:
        """Return, and hand the text to the module."""
        self.line("ret void" if result is None else f"ret {result!r}")
        given = zip(self.arguments, self._of_arguments, strict=True)
        arguments = ", ".join(f"{a.type.text} {attributes}{a.name}" for a, attributes in given)
        head = f"{self._head}({arguments}) {self._attributes} {{"
        body = [head, "entry:", *self._slots, *self._entry, *self._lines, "}"]
        self.module.define("\n".join(body))

    # ---- constants

    def const(self, value: Number, type_: Type) -> Value:
        """Give a constant; in a vector type, the same in every lane."""
        if type_.is_float:
            text, constant = float_text(float(value), type_.scalar), None
        else:
            text, constant = integer_text(int(value), type_), int(value)
        if type_.lanes > 1:
            text = f"splat ({type_.scalar} {text})"
        return Value(self, text, type_, constant)

    def index(self, value: Value | int) -> Value:
        """Give an i64, of a constant too."""
        return value if isinstance(value, Value) else self.const(value, I64)

    def lanes(self, values: Sequence[Number], scalar: str) -> Value:
        """Give a constant vector with its own value in each lane."""
        type_ = Type.of(scalar, len(values))
        parts = [f"{scalar} {float_text(float(v), scalar) if type_.is_float else int(v)}" for v in values]
        return Value(self, f"<{', '.join(parts)}>", type_)

    def poison(self, type_: Type) -> Value:
        """Give a value that nothing may depend on."""
        return Value(self, "poison", type_)

    # ---- instructions

    def binary(self, op: str, left: Value, right: Value) -> Value:
        """Append a two-operand instruction whose result has the operands' type."""
        return self.emit(f"{op} {left.type.text} {left.name}, {right.name}", left.type)

    def compare(self, predicate: str, left: Value, right: Value | Number) -> Value:
        """Compare by LLVM's predicate (`olt`, `sgt`, ...): one i1 per lane."""
        right = right if isinstance(right, Value) else self.const(right, left.type)
        op = "fcmp" if left.type.is_float else "icmp"
        text = f"{op} {predicate} {left.type.text} {left.name}, {right.name}"
        return self.emit(text, left.type.with_scalar("i1"))

    def select(self, condition: Value, yes: Value | Number, no: Value | Number) -> Value:
        """Choose lane by lane; at least one of the two must be a value."""
        if not isinstance(yes, Value):
            assert isinstance(no, Value)
            yes = self.const(yes, no.type)
        no = no if isinstance(no, Value) else self.const(no, yes.type)
        return self.emit(f"select {condition!r}, {yes!r}, {no!r}", yes.type)

    def cast(self, op: str, value: Value, type_: Type) -> Value:
        """Convert by LLVM's instruction; a cast to the same type is the value itself."""
        if value.type is type_:
            return value
        return self.emit(f"{op} {value!r} to {type_.text}", type_)

    def bitcast(self, value: Value, type_: Type) -> Value:
        """Read the same bits as another type."""
        return self.cast("bitcast", value, type_)

    def call(self, name: str, result: Type, *arguments: Value, flags: str = "") -> Value:
        """Call a function that has a result, declaring it."""
        return self.emit(self._call(name, result, arguments, flags), result)

    def call_void(self, name: str, *arguments: Value) -> None:
        """Call a function without a result, declaring it."""
        self.line(self._call(name, VOID, arguments, ""))

    def _call(self, name: str, result: Type, arguments: Sequence[Value], flags: str) -> str:
        self.module.declare(name, result, [a.type for a in arguments])
        args = ", ".join(map(repr, arguments))
        return f"call {flags + ' ' if flags else ''}{result.text} @{name}({args})"

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """Call `llvm.<name>.<type>` whose result has the type of its first argument."""
        type_ = arguments[0].type
        return self.call(f"llvm.{name}.{type_.suffix}", type_, *arguments)

    def fma(self, a: Value, b: Value | Number, c: Value | Number) -> Value:
        """Give a·b + c with one rounding."""
        b = b if isinstance(b, Value) else self.const(b, a.type)
        c = c if isinstance(c, Value) else self.const(c, a.type)
        return self.intrinsic("fma", a, b, c)

    # ---- vectors

    def splat(self, value: Value, lanes: int) -> Value:
        """Repeat a scalar in every lane."""
        if lanes == 1 or value.type.lanes == lanes:
            return value
        vector = value.type.with_lanes(lanes)
        if value.constant is not None:
            return self.const(value.constant, vector)
        if not value.name.startswith("%"):
            return Value(self, f"splat ({value!r})", vector)
        first = self.emit(f"insertelement {vector.text} poison, {value!r}, i64 0", vector)
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {first!r}, {vector.text} poison, {mask}", vector)

    def shuffle(self, left: Value, right: Value | None, mask: Sequence[int]) -> Value:
        """Pick lanes of two vectors joined; -1 leaves a lane undefined."""
        lanes = ", ".join(f"i32 {i}" if i >= 0 else "i32 poison" for i in mask)
        other = repr(right) if right is not None else f"{left.type.text} poison"
        return self.emit(
            f"shufflevector {left!r}, {other}, <{len(mask)} x i32> <{lanes}>",
            left.type.with_lanes(len(mask)),
        )

    def extract(self, vector: Value, lane: int | Value) -> Value:
        """Give one lane."""
        if vector.type.lanes == 1:
            return vector
        lane = self.index(lane)
        return self.emit(f"extractelement {vector!r}, {lane!r}", vector.type.with_lanes(1))

    def insert(self, vector: Value, value: Value, lane: int | Value) -> Value:
        """Replace one lane."""
        lane = self.index(lane)
        return self.emit(f"insertelement {vector!r}, {value!r}, {lane!r}", vector.type)

    # ---- memory

    def slot(self, type_: Type, count: int = 1, align: int = 64) -> Value:
        """Reserve stack memory for `count` values in the entry block."""
        self._values += 1
        name = f"%s{self._values}"
        many = f", i64 {count}" if count > 1 else ""
        self._slots.append(f"  {name} = alloca {type_.text}{many}, align {align}")
        return Value(self, name, PTR)

    def address(self, base: Value, index: Value | int, scalar: str) -> Value:
        """Give base + index elements of `scalar`."""
        index = self.index(index)
        if index.constant == 0:
            return base
        return self.emit(f"getelementptr {scalar}, ptr {base.name}, i64 {index.name}", PTR)

    def load(self, address: Value, type_: Type, align: int | None = None) -> Value:
        """Read a value; by default only the element's own alignment is assumed."""
        align = align or alignment(type_)
        return self.emit(f"load {type_.text}, ptr {address.name}, align {align}", type_)

    def store(self, value: Value, address: Value, align: int | None = None) -> None:
        """Write a value; by default only the element's own alignment is assumed."""
        align = align or alignment(value.type)
        self.line(f"store {value!r}, ptr {address.name}, align {align}")

    def store_past_caches(self, value: Value, address: Value) -> None:
        """Write a vector whose address is a multiple of its bytes, or of 64, and keep it in no cache."""
        align = min(64, value.type.lanes * value.type.bits // 8)
        self.line(f"store {value!r}, ptr {address.name}, align {align}{self.module.past_caches()}")

    def masked_load(self, address: Value, mask: Value, default: Value) -> Value:
        """Read the lanes of the mask, the others from `default`; nothing else is touched."""
        type_ = default.type
        name = f"llvm.masked.load.{type_.suffix}.p0"
        aligned = Value(self, f"align {alignment(type_)} {address.name}", PTR)
        self.module.declare(name, type_, [PTR, mask.type, type_])
        return self.emit(f"call {type_.text} @{name}({aligned!r}, {mask!r}, {default!r})", type_)

    def masked_store(self, value: Value, address: Value, mask: Value) -> None:
        """Write the lanes of the mask; nothing else is touched."""
        on = [lane for lane, bit in enumerate(re.findall(r"i1 ([01])\b", mask.name)) if bit == "1"]
        if len(on) == 1:  # a constant, for which LLVM would write 32 bits of a lane of 8 or 16 (AVX-512)
            self.store(self.extract(value, on[0]), self.address(address, on[0], value.type.scalar))
            return
        name = f"llvm.masked.store.{value.type.suffix}.p0"
        aligned = f"ptr align {alignment(value.type)} {address.name}"
        self.module.declare(name, VOID, [value.type, PTR, mask.type])
        self.line(f"call void @{name}({value!r}, {aligned}, {mask!r})")

    # ---- structure

    def label(self, prefix: str) -> str:
        """Give a fresh block name."""
        self._blocks += 1
        return f"{prefix}{self._blocks}"

    def start(self, label: str) -> None:
        """Begin a block."""
        self._lines.append(f"{label}:")
        self.current = label

    @contextmanager
    def loop(self, lower: Value | int, upper: Value | int, step: Value | int = 1) -> Generator[Value]:
        """Run the body for lower, lower + step, ... below upper; tested at the bottom.

        A loop with constant bounds that runs once has no branch; the guard before the loop goes
        where the bounds are constants. LLVM is told not to unroll: `step` is the unrolling.
        """
        lower, upper, step = self.index(lower), self.index(upper), self.index(step)
        runs = _trips(lower, upper, step)
        if runs == 1:
            yield lower
            return
        body, leave, before = self.label("body"), self.label("done"), self.current
        if runs:
            self.line(f"br label %{body}")
        else:
            enter = self.compare("slt", lower, upper)
            self.line(f"br {enter!r}, label %{body}, label %{leave}")
        self.start(body)
        self._values += 2
        index, after = f"%v{self._values}", f"%v{self._values - 1}"
        place = len(self._lines)
        self._lines.append("")
        yield Value(self, index, I64)
        self.line(f"{after} = add nsw i64 {index}, {step.name}")
        again = self.emit(f"icmp slt i64 {after}, {upper.name}", I1)
        self._lines[place] = f"  {index} = phi i64 [ {lower.name}, %{before} ], [ {after}, %{self.current} ]"
        self.line(f"br {again!r}, label %{body}, label %{leave}{self.module.new_loop()}")
        self.start(leave)

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """Emit into the entry block, before everything else: for values made of arguments alone."""
        lines, self._lines = self._lines, self._entry
        yield
        self._lines = lines

    @contextmanager
    def when(self, condition: Value) -> Generator[None]:
        """Run the body only where a scalar i1 holds."""
        body, leave = self.label("then"), self.label("after")
        self.line(f"br {condition!r}, label %{body}, label %{leave}")
        self.start(body)
        yield
        self.line(f"br label %{leave}")
        self.start(leave)


def _trips(lower: Value, upper: Value, step: Value) -> int | None:
    """How often a loop with constant bounds runs; None where a bound is not constant."""
    if lower.constant is None or upper.constant is None or step.constant is None:
        return None
    return max(0, -((lower.constant - upper.constant) // step.constant))
