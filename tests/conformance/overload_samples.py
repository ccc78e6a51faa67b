"""Programs for overloads that torch's own sample inputs do not reach: aliases, scalar forms, internal operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class Program:
    """A function and the tensors it takes; `gradients` where they are compared too."""

    name: str
    function: Callable[..., object]
    tensors: tuple[Tensor, ...]
    gradients: bool = True


def real(*shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low


def whole(*shape: int, low: int = 1, high: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randint(low, high, shape, generator=generator)


def call(name: str) -> Callable[..., object]:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


def program(name: str, *args: object, gradients: bool = True, **kwargs: object) -> Program:
    """A call of an overload; the tensors among the arguments are the program's."""
    tensors = tuple(a for a in args if isinstance(a, Tensor))

    def function(*given: Tensor) -> object:
        values = iter(given)
        return call(name)(*[next(values) if isinstance(a, Tensor) else a for a in args], **kwargs)

    return Program(name, function, tensors, gradients)


UNIT = (
    "arcsin arctan arcsinh arctanh absolute negative special_digamma special_psi special_erf special_erfc "
    "special_erfinv special_exp2 special_expit special_expm1 special_gammaln special_log1p special_sinc positive "
    "resolve_conj resolve_neg alias fix log_sigmoid_forward"
).split()


def pointwise() -> Iterator[Program]:
    unit = real(3, 4, low=0.1, high=0.9)
    for name in UNIT:
        yield program(f"{name}.default", unit)
    yield program("arccos.default", unit)
    yield program("arccosh.default", unit + 1.5)
    yield program("special_logit.default", unit, 0.2)
    yield program("special_multigammaln.default", unit + 3, 3)
    yield program("special_polygamma.default", 0, unit)
    yield program("polygamma.default", 0, unit)
    x, y = real(3, 4), real(4)
    yield program("arctan2.default", x, y)
    yield program("clip.default", x, -0.5, 0.5)
    yield program("clip.Tensor", x, y - 1, y + 1)
    yield program("clamp.default", x, None, 0.5)
    yield program("clamp_max.default", x, 0.5)
    for name in ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "fmod", "remainder"):
        yield program(f"{name}.Scalar", x, 0.7)
    for name in ("subtract", "multiply", "divide"):
        yield program(f"{name}.Tensor", x, y + 5)
    yield program("remainder.Scalar_Tensor", 2.5, y + 5)
    yield program("pow.Scalar", 1.7, x)
    for mode in ("floor", "trunc", None):
        for name in ("div", "divide"):
            yield program(f"{name}.Scalar_mode", x, 0.3, rounding_mode=mode)
        yield program("divide.Tensor_mode", x, y, rounding_mode=mode)
    yield program("floor_divide.Scalar", x, 0.3, gradients=False)
    yield program("float_power.Scalar", 1.5, x)
    yield program("float_power.Tensor_Scalar", x, 2)
    for name in ("xlogy.Scalar_Other", "special_xlog1py.other_scalar"):
        yield program(name, unit, 2.5)
    for name in ("xlogy.Scalar_Self", "special_xlog1py.self_scalar"):
        yield program(name, 2.5, unit)
    yield program("special_xlogy.default", unit, unit + 1)


def logic() -> Iterator[Program]:
    i, j = whole(3, 4), whole(4, low=0, high=4)
    for name in ("eq", "ne", "not_equal", "lt", "less", "le", "less_equal", "gt", "greater", "ge", "greater_equal"):
        yield program(f"{name}.Scalar", i, 4, gradients=False)
    for name in ("not_equal", "less", "less_equal", "greater", "greater_equal"):
        yield program(f"{name}.Tensor", i, j, gradients=False)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield program(f"{name}.Scalar", i, 6, gradients=False)
        yield program(f"{name}.Scalar_Tensor", 6, i, gradients=False)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield program(f"{name}.Tensor_Scalar", i, 2, gradients=False)
        yield program(f"{name}.Scalar_Tensor", 37, j, gradients=False)
    for name in ("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"):
        yield program(f"{name}.Tensor", i, j, gradients=False)
        yield program(f"{name}.Scalar", i, 2, gradients=False)
    yield program("isin.Tensor_Scalar", i, 3, gradients=False)
    yield program("isin.Scalar_Tensor", 3, i, gradients=False)
    x = real(3, 4)
    yield program("where.ScalarOther", x > 0, x, 2.0)
    yield program("where.ScalarSelf", x > 0, 2.0, x)
    yield program("where.Scalar", x > 0, 1.0, 2.0, gradients=False)
    yield program("masked_fill.Tensor", x, x > 0, torch.tensor(3.0, dtype=torch.float64))
    yield program("fill.Tensor", x, torch.tensor(3.0, dtype=torch.float64))


def movement() -> Iterator[Program]:
    x = real(4, 6)
    for name in ("swapaxes", "swapdims"):
        yield program(f"{name}.default", x, 0, 1)
    yield program("movedim.int", real(2, 3, 4), 0, -1)
    yield program("moveaxis.int", real(2, 3, 4), 0, -1)
    yield program("moveaxis.intlist", real(2, 3, 4), (0, 1), (2, 0))
    yield program("adjoint.default", x)
    yield program("detach.default", x, gradients=False)
    yield program("detach_copy.default", x, gradients=False)
    yield program("select_copy.int", x, 1, -2)
    yield program("slice_copy.Tensor", x, 1, 1, -1, 2)
    yield program("slice_backward.default", real(4, 2), (4, 6), 1, 1, 5, 2)
    yield program("select_backward.default", real(4), (4, 6), 1, -2)
    yield program("split.sizes", x, (1, 3, 2), 1)
    yield program("split_copy.Tensor", x, 4, 1)
    yield program("unsafe_split_with_sizes.default", x, (2, 4), 1)
    yield program("squeeze_copy.dims", real(2, 1, 3, 1), (1, 3))
    yield program("_reshape_copy.default", x, (3, 8))
    yield program("_unsafe_view.default", x, (3, 8))
    for name in ("concat", "concatenate"):
        yield Program(f"{name}.default", lambda a, b, n=name: call(f"{n}.default")([a, b], 1), (x, real(4, 2)))
    yield Program("row_stack.default", lambda a, b: aten.row_stack([a, b]), (real(3), real(2, 3)))
    yield Program("meshgrid.default", lambda a, b: aten.meshgrid([a, b]), (real(3), real(2)))
    yield program("copy.default", x, real(6))
    yield Program("copy_.default", lambda a, b: a.clone().copy_(b), (x, real(1, 6)))
    yield Program("copy_.float32", lambda a, b: a.clone().copy_(b), (x, real(4, 6).float()))
    for k, shape in ((1, (2, 6)), (2, (2, 5, 6)), (3, (2, 4, 5, 6))):
        amounts = (1, 2) * k
        yield program(f"reflection_pad{k}d.default", real(1, *shape), amounts)
        yield program(f"replication_pad{k}d.default", real(1, *shape), amounts)
    yield program("_pad_circular.default", real(1, 2, 6), (2, 1))
    yield program("native_channel_shuffle.default", real(2, 6, 3, 3), 2)
    yield program("_to_copy.default", x, dtype=torch.float32)
    yield program("type_as.default", x, real(2).float())
    yield program("to.other", x, real(2).float())
    image = torch.view_as_complex(real(3, 2))
    yield program("view_as_real.default", image, gradients=False)
    yield program("view_as_real_copy.default", image, gradients=False)
    yield program("view_as_complex_copy.default", real(3, 2), gradients=False)
    for name in ("real", "imag", "conj", "conj_physical", "_conj_physical"):
        yield program(f"{name}.default", image, gradients=False)


def products() -> Iterator[Program]:
    a, b = real(3, 4), real(4, 5)
    yield program("ger.default", real(3), real(4))
    yield program("linalg_matmul.default", a, b)
    yield Program("chain_matmul.default", lambda x, y, z: aten.chain_matmul([x, y, z]), (a, b, real(5, 2)))
    for name in ("matrix_power", "linalg_matrix_power"):
        yield program(f"{name}.default", real(3, 3), 5)
    yield program("_addmm_activation.default", real(5), a, b, gradients=False)
    yield program("convolution.default", real(1, 4, 6), real(4, 2, 3), real(4), (2,), (1,), (1,), False, (0,), 2)
    yield program("convolution.default", real(1, 4, 6), real(4, 2, 3), real(4), (2,), (1,), (1,), True, (1,), 2)
    yield program("conv_tbc.default", real(6, 2, 3), real(3, 3, 4), real(4), 1)
    yield program("_cdist_forward.default", real(3, 4), real(5, 4), 1.0, None, gradients=False)
    yield program("_weight_norm.default", real(3, 4), real(3, 1), 0)
    for increasing in (True, False):
        yield program("vander.default", real(4), 3, increasing)
    yield program("norm.Scalar", a, 3)
    yield program("norm.ScalarOpt_dim", a, 2, (1,), True)
    yield program("norm.ScalarOpt_dtype", a, 2, dtype=torch.float64)
    yield program("norm.ScalarOpt_dim_dtype", a, 2, (1,), True, dtype=torch.float64)
    yield program("frobenius_norm.dim", a, (0, 1))
    yield program("affine_grid_generator.default", real(2, 2, 3), (2, 1, 4, 5), True)
    yield program("affine_grid_generator.default", real(1, 3, 4), (1, 1, 2, 3, 4), False)


def normal_forms() -> Iterator[Program]:
    x = real(3, 5)
    for name in ("_softmax", "_log_softmax"):
        yield program(f"{name}.default", x, 1, False)
    yield program("special_softmax.default", x, 1, None)
    yield program("special_log_softmax.default", x, 1)
    yield program("special_logsumexp.default", x, (1,))
    yield program("_log_softmax_backward_data.default", x, torch.log_softmax(x, 1), 1, torch.float64)
    target = whole(3, low=0, high=5)
    for reduction in (0, 1, 2):
        yield program("nll_loss.default", x, target, None, reduction, 2)
        yield program("nll_loss_forward.default", x, target, real(5), reduction, 2, gradients=False)
    places = whole(2, 4, 4, low=0, high=3)
    yield program("nll_loss2d.default", real(2, 3, 4, 4), places, None, 1, 1)
    yield program("nll_loss2d_forward.default", real(2, 3, 4, 4), places, None, 1, 1, gradients=False)
    batch, weight, mean, variance = real(4, 3, 2), real(3), real(3), real(3, low=0.5)
    for training in (True, False):
        statistics = (mean, variance, training, 0.1, 1e-5)
        name = "_native_batch_norm_legit_functional.default"
        yield program(name, batch, weight, weight, *statistics, gradients=False)
    yield program(
        "_native_batch_norm_legit_no_training.default",
        batch,
        weight,
        weight,
        mean,
        variance,
        0.1,
        1e-5,
        gradients=False,
    )
    yield program("_prelu_kernel.default", real(2, 3, 4), real(1, 3, 1))
    q = real(2, 3, 4, 8)
    yield program(
        "_scaled_dot_product_flash_attention_for_cpu.default", q, q + 0.5, q - 0.5, 0.0, True, gradients=False
    )


def resizing() -> Iterator[Program]:
    shapes = {1: (1, 2, 6), 2: (1, 2, 4, 6), 3: (1, 2, 3, 4, 6)}
    for k, linear in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
        size = (9, 8, 7)[:k]
        yield program(f"upsample_nearest{k}d.default", real(*shapes[k]), size)
        yield program(f"_upsample_nearest_exact{k}d.default", real(*shapes[k]), size)
        yield program(f"{linear}.default", real(*shapes[k]), size, False)
        yield program(f"{linear}.default", real(*shapes[k]), size, True)
        yield program(f"{linear}.default", real(*shapes[k]), tuple(3 * s for s in shapes[k][2:]), False)
    yield program("upsample_bicubic2d.default", real(*shapes[2]), (9, 8), False)
    for k in (2, 3):
        yield program(f"_adaptive_avg_pool{k}d.default", real(*shapes[k]), (2, 3, 4)[:k])
    yield program("col2im.default", real(1, 12, 6), (4, 5), (2, 3), (1, 1), (1, 0), (3, 1))


def positions() -> Iterator[Program]:
    x, i = real(5, 4), whole(3, low=-5, high=5)
    yield Program("_unsafe_index.Tensor", lambda x, i: aten._unsafe_index(x, [i, None]), (x, i))
    yield Program(
        "_unsafe_index_put.default", lambda x, i, v: aten._unsafe_index_put(x, [i], v, True), (x, i, real(3, 4))
    )
    yield program("scatter.value", x, 0, whole(2, 4, low=0, high=5), 1.5)
    yield program("bucketize.Scalar", 0.3, torch.sort(real(7)).values, gradients=False)
    offsets, rows = torch.tensor([0, 2, 2]), whole(6, low=0, high=5)
    for mode in (0, 1):
        yield Program(
            "_embedding_bag.default",
            lambda w, i, o, m=mode: aten._embedding_bag(w, i, o, False, m)[0],
            (x, rows, offsets),
        )


PROGRAMS = [p for group in (pointwise, logic, movement, products, normal_forms, resizing, positions) for p in group()]
