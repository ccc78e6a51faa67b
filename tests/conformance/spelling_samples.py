"""Programs for the other spellings of operators: overloads that `overload_samples` and torch's samples leave out."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.conformance.overload_samples import Program, aten, call, program, real, whole


def aliases() -> Iterator[Program]:
    x = real(4, 6)
    for name in (
        "alias",
        "contiguous",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "positive",
        "resolve_conj",
        "resolve_neg",
    ):
        yield program(f"{name}.default", x)
    yield program("_conj.default", torch.view_as_complex(real(3, 2)), gradients=False)
    yield program("_autocast_to_full_precision.default", x.bfloat16(), False, True, gradients=False)
    yield program(
        "_autocast_to_reduced_precision.default", x.float(), False, True, torch.float16, torch.bfloat16, gradients=False
    )
    yield program("to.dtype_layout", x, dtype=torch.float32)
    yield program("view_as.default", x, real(3, 8))
    yield program("reshape_as.default", x, real(3, 8))
    yield program("sum_to_size.default", x, (4, 1))


def views() -> Iterator[Program]:
    x, y = real(4, 6), real(2, 1, 3)
    yield program("_reshape_alias.default", x, (3, 8), (8, 1))
    yield program("permute.default", real(2, 3, 4), (2, 0, 1))
    yield program("t.default", x)
    yield program("flatten.using_ints", real(2, 3, 4), 1, 2)
    yield program("squeeze.default", y)
    yield program("squeeze_copy.default", y)
    yield program("hsplit.int", x, 2)
    yield program("vsplit.int", x, 2)
    yield program("dsplit.array", real(2, 3, 4), (1, 3))
    yield program("split.Tensor", x, 2, 1)
    yield program("split.default", x, (1, 3, 2), 1)
    yield program("unsafe_split.Tensor", x, 2, 1)
    yield program("tensor_split.sections", x, 4, 1)
    for n in (1, 2, 3):
        yield Program(f"atleast_{n}d.Sequence", lambda a, b, n=n: call(f"atleast_{n}d.Sequence")([a, b]), (real(), x))


def reductions() -> Iterator[Program]:
    x, b = real(4, 6), real(4, 6) > 0
    for name in ("all", "any"):
        yield program(f"{name}.dim", b, 1, gradients=False)
        yield program(f"{name}.dims", b, (0, 1), True, gradients=False)
    for name in ("std", "var", "std_mean", "var_mean"):
        yield program(f"{name}.dim", x, (1,), True, True)
    yield program("count_nonzero.dim_IntList", x, (1,), gradients=False)
    yield program("prod.default", x)
    yield program("median.default", x)
    yield program("nanmedian.default", x)
    for name in ("trapezoid", "trapz", "cumulative_trapezoid"):
        yield program(f"{name}.dx", x, dx=0.5)
    yield program("sort.default", x, 0, True)
    yield program("argsort.default", x, 1, True, gradients=False)
    yield program("one_hot.default", whole(5, low=0, high=4), 4, gradients=False)


def numbers() -> Iterator[Program]:
    x = real(3, 4)
    end = torch.tensor(3.0, dtype=torch.float64)
    yield program("copysign.Scalar", x, -2.0)
    yield program("lerp.Scalar", x, x + 1, 0.3)
    yield program("repeat_interleave.self_int", x, 2, 1)
    f64 = dict(dtype=torch.float64)
    for name in ("linspace", "logspace"):
        yield program(f"{name}.Scalar_Tensor", 1.0, end, 5, **f64, gradients=False)
        yield program(f"{name}.Tensor_Scalar", end, 7.0, 5, **f64, gradients=False)
        yield program(f"{name}.Tensor_Tensor", end, end + 4, 5, **f64, gradients=False)
    for name, args in (("arange.default", (5,)), ("arange.start", (2, 9)), ("eye.m", (3, 5))):
        yield Program(name, lambda x, n=name, a=args: x.sum() + call(n)(*a, **f64), (x,))
    yield Program("_efficientzerotensor.default", lambda x: x + aten._efficientzerotensor((3, 4), **f64), (x,))


def places() -> Iterator[Program]:
    x, i = real(5, 4), whole(2, 4, low=0, high=5)
    for name in ("pow_.Tensor", "float_power_.Tensor", "floor_divide_.Tensor", "ldexp_.default"):  # in place only
        yield Program(name, lambda x, y, n=name: call(n)(x.clone(), y), (real(3, 4, low=0.5), real(3, 4, low=0.5)))
    for kind in ("add", "multiply"):
        yield program("scatter.reduce", x, 0, i, real(2, 4), reduce=kind, gradients=False)
        yield program("scatter.value_reduce", x, 0, i, 2.5, reduce=kind, gradients=False)
    yield program("index_fill.int_Tensor", x, 0, whole(2, low=0, high=5), torch.tensor(2.0, dtype=torch.float64))
    yield program("searchsorted.Scalar", torch.sort(real(7)).values, 0.3, gradients=False)
    yield Program(
        "_index_put_impl.default", lambda x, i, v: aten._index_put_impl(x, [i], v, True), (x, i[0], real(4, 4))
    )
    yield Program(
        "_embedding_bag_forward_only.default",
        lambda w, i, o: aten._embedding_bag_forward_only(w, i, o)[0],
        (x, whole(6, low=0, high=5), torch.tensor([0, 2, 2])),
        gradients=False,
    )


def layers() -> Iterator[Program]:
    x = real(2, 3, 8)
    yield program("_fused_rms_norm.default", x, (8,), real(8), 1e-5, gradients=False)
    yield program("_native_batch_norm_legit.no_stats", x, real(3), real(3), True, 0.1, 1e-5, gradients=False)
    yield program("conv1d.default", x, real(4, 3, 3), real(4), (2,), (1,))
    yield program("conv2d.padding", real(1, 2, 5, 5), real(3, 2, 3, 3), real(3), (1, 1), "same")
    yield program("conv3d.default", real(1, 2, 4, 4, 4), real(3, 2, 2, 2, 2), real(3))
    yield program("max_pool1d.default", x, (2,))
    yield program("max_pool2d.default", real(1, 2, 6, 6), (2, 2))
    yield program("max_pool3d.default", real(1, 2, 4, 4, 4), (2, 2, 2))
    yield program("upsample_nearest1d.vec", x, (11,), None)
    yield program("_upsample_nearest_exact1d.vec", x, (11,), None)
    yield program("upsample_nearest2d.vec", real(1, 2, 4, 5), None, (2.0, 2.0))
    yield program("_upsample_nearest_exact2d.vec", real(1, 2, 4, 5), None, (2.0, 2.0))
    grid = real(1, 2, 3, 2, 3, low=-0.9, high=0.9)
    yield program("grid_sampler_3d.default", real(1, 2, 3, 4, 5), grid, 0, 0, False)
    cube = real(1, 2, 4, 4, 4)
    values, index = aten.max_pool3d_with_indices(cube, [2, 2, 2])
    window = ((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1), False)
    name = "max_pool3d_with_indices_backward.default"
    yield program(name, values, cube, *window, index, gradients=False)


def recurrent() -> Iterator[Program]:
    x, h = real(5, 2, 3), real(1, 2, 4)
    for kind, gates in (("rnn_tanh", 1), ("rnn_relu", 1), ("gru", 3)):
        parameters = (real(4 * gates, 3), real(4 * gates, 4), real(4 * gates), real(4 * gates))

        def whole_sequence(x, h, *p, k=kind):
            return call(f"{k}.input")(x, h, list(p), True, 1, 0.0, False, False, False)

        yield Program(f"{kind}.input", whole_sequence, (x, h, *parameters))
        yield program(f"{kind}_cell.default", x[0], h[0], *parameters)
    p = (real(16, 3), real(16, 4), real(16), real(16))
    yield Program(
        "lstm.input",
        lambda x, h, c, *p: aten.lstm(x, [h, c], list(p), True, 1, 0.0, False, False, False),
        (x, h, h + 0.1, *p),
    )
    yield Program("lstm_cell.default", lambda x, h, c, *p: aten.lstm_cell(x, [h, c], *p), (x[0], h[0], h[0] + 0.1, *p))


SPELLINGS = [p for group in (aliases, views, reductions, numbers, places, layers, recurrent) for p in group()]

_LIKE, _CHANCE = real(3, 4), real(3, 4, low=0.1, high=0.9)


DRAWS = [
    program("alpha_dropout.default", _LIKE, 0.3, True),
    program("bernoulli.Tensor", _LIKE, _CHANCE),
    program("bernoulli.p", _LIKE, 0.3),
    Program("bernoulli_.float", lambda x: call("bernoulli_.float")(x.clone(), 0.3), (_LIKE,)),
    program("dropout.default", _LIKE, 0.3, True),
    program("native_dropout.default", _LIKE, 0.3, True),
    program("normal.Tensor_Tensor", _LIKE, _CHANCE),
    program("normal.float_Tensor", 1.0, _CHANCE),
    program("normal_functional.default", _LIKE, 1.0, 2.0),
    program("rand_like.default", _LIKE),
    program("randint_like.default", _LIKE, 9),
    Program("normal.float_float", lambda x: aten.normal.float_float(1.0, 2.0, [3]) + x, (real(3),)),
    Program("randint.default", lambda x: aten.randint(9, [3]) + x, (real(3),)),
    Program("randperm.default", lambda x: aten.randperm(9) + x, (real(9),)),
]
"""Random numbers: other streams than eager's, so that only shapes and dtypes are compared."""
