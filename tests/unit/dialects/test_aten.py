from __future__ import annotations

import io

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError

from isthmus import ir
from isthmus.dialects import aten, autodiff, schema
from isthmus.sizes import Size


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, ir.ISTHMUS, aten.ATEN, autodiff.AUTODIFF):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def show(module: ModuleOp) -> str:
    out = io.StringIO()
    Printer(stream=out).print_op(module)
    return out.getvalue()


def body(lines: str, arguments: str = "%x: !aten.ref<4x4xf32>, %b: !aten.ref<4xf32>") -> str:
    return f"builtin.module {{ func.func @main({arguments}) {{ {lines}\n func.return }} }}"


def test_reference_types_are_interned_and_know_their_facts():
    s = Size.symbol("s0")
    a = aten.ref((s, 4), "f32", (4, 1))
    assert a is aten.ref((s, 4), "f32")
    assert (ir.shape_of(a), ir.dtype_of(a)) == ((s, 4), "f32")
    assert aten.ref((4, 4), "f32", (1, 4)) is not aten.ref((4, 4), "f32")
    assert aten.value_type(a) is ir.tensor((s, 4), "f32")


@pytest.mark.parametrize(
    "text",
    [
        "!aten.ref<4x4xf32>",
        "!aten.ref<f64>",
        "!aten.ref<0x3xi1>",
        "!aten.ref<2xui8, strides = [3], offset = 1>",
        "!aten.ref<2x3xcomplex<f32>, strides = [1, 2]>",
        '!aten.ref<?x4xbf16, shape = [<"s0 + 1">, 4], strides = [1, <"s0 + 1">], offset = <"s0">>',
    ],
)
def test_reference_types_round_trip(text: str):
    module = parse(body("", f"%x: {text}"))
    assert f"%x: {text}" in show(module)
    (argument,) = ir.block_arguments(ir.function(module, "main"))
    assert argument.type is aten.ref(*aten.facts_of(argument))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("!aten.ref<?xf32>", "every '\\?' needs its size"),
        ("!aten.ref<4xf32, strides = [1, 2]>", "one per dimension"),
        ("!aten.ref<4xf32, colour = 3>", "colour"),
    ],
)
def test_malformed_types_are_parse_errors(text: str, fault: str):
    with pytest.raises(ParseError, match=fault):
        parse(body("", f"%x: {text}"))


GOOD = body("""
  %y = aten.call %x, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
  %z = aten.call %y {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<4x4xf32>
  %s, %t = aten.call %z {overload = "split.Tensor", args = [arg0, 2, 0], aliases = [0, 0], grad = false}
    : !aten.ref<2x4xf32>, !aten.ref<2x4xf32, offset = 8>
  %c = aten.call %s, %t {overload = "cat.default", args = [[arg0, arg1], 1]} : !aten.ref<2x8xf32>""")


def test_calls_round_trip_and_verify():
    module = parse(GOOD)
    ir.verify(module)
    text = show(module)
    assert show(parse(text)) == text
    calls = [op for op in ir.function(module, "main").body.block.ops if isinstance(op, aten.CallOp)]
    assert calls[0].args == (ir.Operand(0), ir.Operand(1), 1)
    assert (calls[1].mutates, calls[1].aliases, calls[1].grad) == ((0,), (0,), True)
    assert (calls[2].aliases, calls[2].grad) == ((0, 0), False)


def test_calls_are_checked_against_the_schemas_of_the_module():
    module = parse(GOOD)
    aten.attach_schemas(
        module,
        [
            "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
            "mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
            "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
            "cat(Tensor[] tensors, int dim=0) -> Tensor",
        ],
    )
    ir.verify(parse(show(module)))
    with pytest.raises(ir.IRError, match=r"no schema of 'relu.default'"):
        extra = aten.call("relu.default", [module_value(module)], [ir.Operand(0)], [aten.ref((4, 4), "f32")])
        block = ir.function(module, "main").body.block
        block.insert_op_before(extra, block.last_op)  # type: ignore[arg-type]
        ir.verify(module)


def module_value(module: ModuleOp) -> ir.SSAValue:
    return ir.block_arguments(ir.function(module, "main"))[0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('%y = aten.call %x {overload = "neg.default", args = [arg1]} : !aten.ref<4x4xf32>', "args name the operands"),
        ('%y = aten.call %x {overload = "neg.default", args = []} : !aten.ref<4x4xf32>', "args name the operands"),
        ('aten.call %x {overload = "a.b", args = [arg0], mutates = [1]}', "does not name operands"),
        ('aten.call %x {overload = "a.b", args = [arg0], mutates = [0, 0]}', "does not name operands"),
        ('%y = aten.call %x {overload = "a.b", args = [arg0], aliases = [1]} : !aten.ref<4xf32>', "operand or -1"),
        ('%y = aten.call %x {overload = "a.b", args = [arg0]} : tensor<4xf32>', "references and values"),
    ],
)
def test_wrong_calls_are_refused(line: str, fault: str):
    with pytest.raises(ir.IRError, match=fault):
        ir.verify(parse(body(line)))


def test_a_call_on_values_cannot_mutate():
    text = 'aten.call %x {overload = "neg_.default", args = [arg0], mutates = [0]} : tensor<4xf32>'
    with pytest.raises(ir.IRError, match="cannot mutate"):
        ir.verify(parse(body(f"%y = {text}", "%x: tensor<4xf32>")))


CONTROL = """
  %r = aten.cond %p, %x ({
    ^bb0(%a: !aten.ref<4x4xf32>):
      %s = aten.call %a {overload = "sin.default", args = [arg0]} : !aten.ref<4x4xf32>
      aten.yield %s
  }, {
    ^bb1(%b: !aten.ref<4x4xf32>):
      %c = aten.call %b {overload = "cos.default", args = [arg0]} : !aten.ref<4x4xf32>
      aten.yield %c
  }) : !aten.ref<4x4xf32>
  %w = aten.while_loop %x {carried = 1} ({
    ^bb2(%d: !aten.ref<4x4xf32>):
      %e = aten.call %d {overload = "any.default", args = [arg0]} : !aten.ref<i1>
      aten.yield %e
  }, {
    ^bb3(%f: !aten.ref<4x4xf32>):
      aten.yield %f
  }) : !aten.ref<4x4xf32>
  %carry, %ys = aten.scan %row, %x {inits = 1, xs = 1} ({
    ^bb4(%h: !aten.ref<4xf32>, %i: !aten.ref<4xf32>):
      %j = aten.call %h, %i {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4xf32>
      aten.yield %j, %j
  }) : !aten.ref<4xf32>, !aten.ref<4x4xf32>
  %m = aten.map %x, %row {xs = 1} ({
    ^bb5(%k: !aten.ref<4xf32>, %l: !aten.ref<4xf32>):
      aten.yield %k
  }) : !aten.ref<4x4xf32>"""
CONTROL_ARGUMENTS = "%p: !aten.ref<i1>, %x: !aten.ref<4x4xf32>, %row: !aten.ref<4xf32>"


def test_control_flow_round_trips_and_verifies():
    module = parse(body(CONTROL, CONTROL_ARGUMENTS))
    ir.verify(module)
    assert show(parse(show(module))) == show(module)


@pytest.mark.row("D16")
@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("aten.yield %c", "aten.yield %c, %c", "what region else yields"),
        ("aten.yield %e", "aten.yield %d", "what region condition yields"),
        ("aten.yield %j, %j", "aten.yield %j", "what region combine yields"),
        ("^bb0(%a: !aten.ref<4x4xf32>)", "^bb0(%a: !aten.ref<4x4xf32>, %q: !aten.ref<i1>)", "region then"),
        ("aten.cond %p, %x", "aten.cond %row, %x", "0-d i1"),
        ("aten.yield %k\n", "aten.yield %k, %k\n", "what region body yields"),
    ],
)
def test_regions_that_disagree_are_refused(old: str, new: str, fault: str):
    assert old in CONTROL
    with pytest.raises(ir.IRError, match=fault):
        ir.verify(parse(body(CONTROL.replace(old, new), CONTROL_ARGUMENTS)))


AUTODIFF = """
  %y = autodiff.custom %x {saved = 1, gradients = [0]} ({
    ^bb0(%a: !aten.ref<4x4xf32>):
      %s = aten.call %a {overload = "pow.Tensor_Scalar", args = [arg0, 3]} : !aten.ref<4x4xf32>
      autodiff.yield %s, %a
  }, {
    ^bb1(%g: !aten.ref<4x4xf32>, %b: !aten.ref<4x4xf32>):
      %c = aten.call %g, %b {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<4x4xf32>
      autodiff.yield %c
  }) : !aten.ref<4x4xf32>
  %k = autodiff.checkpoint %y ({
    ^bb2(%d: !aten.ref<4x4xf32>):
      %e = aten.call %d {overload = "sin.default", args = [arg0], autodiff.recompute = "must_save"} : !aten.ref<4x4xf32>
      autodiff.yield %e
  }) : !aten.ref<4x4xf32>
  %z = autodiff.stop_gradient %k : !aten.ref<4x4xf32>
  %l = aten.call %z {overload = "sum.default", args = [arg0, none]} : !aten.ref<f32>
  %dx = autodiff.vjp %l, %x, %t {outs = 1, ins = 2, seeds = [none], create_graph = true, present = [0]}
    : !aten.ref<4x4xf32>"""
AUTODIFF_ARGUMENTS = "%x: !aten.ref<4x4xf32>, %t: !aten.ref<2xf32>"


def test_autodiff_ops_round_trip_and_verify():
    module = parse(body(AUTODIFF, AUTODIFF_ARGUMENTS))
    ir.verify(module)
    assert show(parse(show(module))) == show(module)
    vjp = next(op for op in module.walk() if isinstance(op, autodiff.VjpOp))
    assert ([*vjp.seeds], len(vjp.ins), vjp.present) == ([None], 2, (0,))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("saved = 1", "saved = 2", "forward yields 2 values"),
        ("gradients = [0]", "gradients = [1]", "position of its gradient"),
        ("^bb1(%g: !aten.ref<4x4xf32>", "^bb1(%g: !aten.ref<4xf32>", "backward's arguments"),
        ("autodiff.vjp %l, %x", "autodiff.vjp %x, %x", "one number"),
        ("present = [0]", "present = [1]", "the gradients"),
        ("autodiff.yield %e", "autodiff.yield", "what the body yields"),
    ],
)
def test_wrong_autodiff_ops_are_refused(old: str, new: str, fault: str):
    assert old in AUTODIFF
    with pytest.raises(ir.IRError, match=fault):
        ir.verify(parse(body(AUTODIFF.replace(old, new), AUTODIFF_ARGUMENTS)))


def test_schemas_are_read_as_torch_prints_them():
    import torch

    checked = 0
    assert torch.ops.aten._test_string_default is not None  # strings with both quotes and escapes
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            truth = getattr(packet, overload)._schema
            read = schema.parse_schema(str(truth).removeprefix("aten::"))
            assert read.name == f"{name}.{overload}"
            assert [a.name for a in read.arguments] == [a.name for a in truth.arguments]
            for ours, theirs in zip(read.arguments, truth.arguments, strict=True):
                assert ours.writes == bool(theirs.alias_info and theirs.alias_info.is_write)
                assert ours.keyword_only == theirs.kwarg_only
            assert len(read.returns) == len(truth.returns)
            checked += 1
    assert checked > 1500


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ((ir.Operand(0),), "takes 2 arguments"),
        ((ir.Operand(0), 1), "'dim' takes int"),
        ((ir.Operand(0), (1.5,)), "'dim' takes int"),
        (((ir.Operand(0),), (1,)), "'self' takes Tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args: tuple[ir.LiteralValue, ...], fault: str):
    parsed = schema.parse_schema("flip(Tensor self, int[] dim) -> Tensor")
    assert schema.check_arguments(parsed, (ir.Operand(0), (1, Size.symbol("s0")))) is None
    assert fault in (schema.check_arguments(parsed, args) or "")
