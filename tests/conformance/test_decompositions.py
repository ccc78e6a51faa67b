"""Every decomposition against eager torch, on torch's own sample inputs: values and gradients.

By default one sample of each operator that has a rule; ISTHMUS_SAMPLES=n takes n of every operator.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from isthmus.diagnostics import UnsupportedError
from isthmus.passes.decompose.table import DEFAULT, Rule, Table, load_rules
from tests.conformance.decomposed import TOLERANCE, check_gradients, check_values, decomposed, of_arguments
from tests.conformance.overload_samples import PROGRAMS, Program
from tests.conformance.spelling_samples import DRAWS, SPELLINGS

SAMPLES = int(os.environ.get("ISTHMUS_SAMPLES", "1"))

pytestmark = pytest.mark.filterwarnings("ignore")

LEFT_TO_THE_LIBRARY = re.compile(
    r"(linalg\.(?!cross|diagonal|norm|vector_norm|matrix_norm|vecdot|multi_dot|vander)|fft\.(?!fftshift|ifftshift)|"
    r"special\.(?!entr|ndtr$|xlog1py)|signal\.|sparse\.|masked\.|cholesky|lu|svd|pca_|qr|geqrf|ormqr|stft|istft|igamma|"
    r"triangular_solve|pinverse|histogram|matrix_exp|polygamma|quantile|nanquantile|gradient|_segment_reduce|frexp)"
)
"""Operators without a rule; they are only checked when more samples are asked for."""

UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Operators whose values mean nothing."""

LOOSE = {
    "nn.functional.hardsigmoid": 1e-7,  # torch's gradient holds 1/6 in single precision
}

WRONG_IN_TORCH = {
    "as_strided_scatter": "torch's gradient of `self` is that of the replaced elements, not of the others",
}

RANDOM_LIBRARY = ("multinomial", "nn.functional.rrelu")
"""Random operators that are left to the library: other streams at each call."""

SLOW = ("grid_sampler_3d",)


def named(op: OpInfo) -> str:
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


OPERATORS = {named(op): op for op in op_db if not op.name.startswith("jiterator")}


def main_dtype(op: OpInfo) -> torch.dtype | None:
    supported = op.supported_dtypes("cpu")
    return next((d for d in (torch.float64, torch.int64, torch.bool) if d in supported), None)


def samples_of(op: OpInfo, dtype: torch.dtype, gradients: bool, count: int) -> list[SampleInput]:
    """A few samples, spread over what torch has."""
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    if len(samples) <= count:
        return samples
    if count == 1:
        return [samples[len(samples) * 2 // 3]]  # the first ones are often 0-d
    return [samples[round(k * (len(samples) - 1) / (count - 1))] for k in range(count)]


def check(op: OpInfo, sample: SampleInput, dtype: torch.dtype, gradients: bool) -> None:
    """Compare one sample; skips what eager refuses and what has no compiled form."""
    function, tensors = of_arguments(op.op, (sample.input, *sample.args), sample.kwargs)
    tensors = [t.detach().requires_grad_(gradients and t.requires_grad) for t in tensors]
    with torch.no_grad():
        try:
            function(*[t.clone() for t in tensors])
        except Exception as error:
            pytest.skip(f"eager: {error}")
    try:
        program = decomposed(function, tensors)
    except UnsupportedError as error:
        pytest.skip(str(error))
    tolerance = LOOSE.get(op.name, TOLERANCE.get(dtype, 1e-10))
    if op.name in UNINITIALIZED or op.name in RANDOM_LIBRARY:
        return
    with torch.no_grad():
        check_values(program, function, [t.detach() for t in tensors], tolerance)
    if gradients and not program.random and not program.library and named(op) not in WRONG_IN_TORCH:
        check_gradients(program, function, tensors, 10 * tolerance)


CHOSEN = [n for n in OPERATORS if SAMPLES > 1 or not (n in SLOW or LEFT_TO_THE_LIBRARY.match(n))]


@pytest.mark.row("P5")
@pytest.mark.parametrize("name", CHOSEN)
def test_operator(name: str) -> None:
    """Values to 1e-10, gradients to 1e-9 in double precision."""
    op = OPERATORS[name]
    dtype = main_dtype(op)
    if dtype is None:
        pytest.skip("neither double precision nor integers")
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for sample in samples_of(op, dtype, differentiable, SAMPLES):
        check(op, sample, dtype, differentiable)


MANY_DTYPES = (
    "abs add amax argmax arange bitwise_and cat clamp cos cumsum div/floor_rounding div/trunc_rounding "
    "div/no_rounding_mode eq exp floor_divide fmod gather ge index_add index_put index_select isfinite logical_and "
    "masked_fill matmul max/binary max/reduction_no_dim mean minimum mul ne neg nn.functional.gelu "
    "nn.functional.layer_norm nn.functional.relu nn.functional.silu nn.functional.softplus pow prod reciprocal "
    "remainder round rsqrt rsub scatter_add sigmoid sign softmax sqrt sub sum tril var where"
).split()

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


def dtype_cases() -> Iterator[tuple[str, torch.dtype]]:
    for name in MANY_DTYPES:
        for dtype in DTYPES:
            if dtype in OPERATORS[name].supported_dtypes("cpu"):
                yield name, dtype


@pytest.mark.parametrize(("name", "dtype"), list(dtype_cases()), ids=str)
def test_dtype(name: str, dtype: torch.dtype) -> None:
    """Promotion and rounding: the result's dtype exactly, its value to the dtype's precision."""
    op = OPERATORS[name]
    for sample in samples_of(op, dtype, False, SAMPLES):
        check(op, sample, dtype, gradients=False)


STRUCTURED = (
    "softmax log_softmax nn.functional.cross_entropy nn.functional.scaled_dot_product_attention "
    "nn.functional.layer_norm nn.functional.batch_norm nn.functional.group_norm var std"
).split()


@pytest.mark.parametrize("name", STRUCTURED)
def test_elementary_form(name: str) -> None:
    """Structured primitives written out give the same values and gradients."""
    op = OPERATORS[name]
    for sample in samples_of(op, torch.float64, True, 6):
        function, tensors = of_arguments(op.op, (sample.input, *sample.args), sample.kwargs)
        leaves: list[Tensor] = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        program = decomposed(function, leaves, "decompose{to=elementary}")
        with torch.no_grad():
            check_values(program, function, [t.detach() for t in leaves], 1e-10)
        if not program.random and not set(program.library) - {"bernoulli.p"}:
            check_gradients(program, function, leaves, 1e-9)


@pytest.mark.row("P5")
@pytest.mark.parametrize(
    "sample", [*PROGRAMS, *SPELLINGS], ids=[f"{k}-{p.name}" for k, p in enumerate([*PROGRAMS, *SPELLINGS])]
)
def test_overload(sample: Program) -> None:
    """Overloads that torch's samples do not reach; none may be left to the library."""
    function, tensors = of_arguments(sample.function, sample.tensors, {})
    leaves = [t.detach().requires_grad_(sample.gradients and t.is_floating_point()) for t in tensors]
    program = decomposed(function, leaves)
    assert not program.library
    with torch.no_grad():
        check_values(program, function, [t.detach() for t in leaves], 1e-10)
    if sample.gradients:
        check_gradients(program, function, leaves, 1e-9)


@pytest.mark.parametrize("sample", DRAWS, ids=lambda p: p.name)
def test_draw(sample: Program) -> None:
    """Random numbers have eager's shapes and dtypes, and are no library calls."""
    function, tensors = of_arguments(sample.function, sample.tensors, {})
    program = decomposed(function, tensors)
    assert program.random and not program.library
    wanted = function(*tensors)
    assert isinstance(wanted, tuple)
    assert [(t.shape, t.dtype) for t in program.run(tensors)] == [(t.shape, t.dtype) for t in wanted]


# ---- the table itself


@pytest.fixture(autouse=True)
def _rules_are_noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note each overload whose rule is looked up."""
    find = Table.find

    def noting(self: Table, overload: str) -> Rule | None:
        rule = find(self, overload)
        if rule is not None:
            LOOKED_UP.add(overload)
        return rule

    monkeypatch.setattr(Table, "find", noting)
    yield


LOOKED_UP: set[str] = set()

UNREACHED = (
    r"(rand|randn|randint|randperm)\.(generator|low_generator)$|"  # a generator has no compiled form
    r"(bmm|mm)\.dtype$|"  # torch has it on a GPU only
    r"(alias|contiguous|detach|lift|lift_fresh|positive|resolve_conj|resolve_neg|split)\.default$|"  # resolved before
    r"embedding_renorm\.default$|"  # refuses: the library's
    r"to\.prim_|tensor_split\.tensor_indices_or_sections$"  # scripts only; reads numbers from a tensor
)
"""Rules that no captured program of a CPU reaches."""


def test_every_rule_is_of_an_operator() -> None:
    load_rules()
    schemas = torch._C._jit_get_all_schemas()
    names = {f"{s.name.removeprefix('aten::')}.{s.overload_name or 'default'}" for s in schemas}
    # an overload that torch has in place only is looked up by the name that its functional form would have
    assert [o for o in DEFAULT if o not in names and o.replace(".", "_.", 1) not in names] == []


def test_every_rule_has_a_sample(request: pytest.FixtureRequest) -> None:
    """Of the tests above, which must have run for this one to say anything."""
    here = [item for item in request.session.items if item.path == request.path]
    if len(here) < len(CHOSEN) + len(PROGRAMS) + len(SPELLINGS) + len(DRAWS):
        pytest.skip("only a part of the samples was run")
    rules = set(DEFAULT)
    used = {o for o in LOOKED_UP if o in rules} | {re.sub(r"_(?=\.)", "", o, count=1) for o in LOOKED_UP}
    assert sorted(o for o in rules - used if not re.match(UNREACHED, o)) == []
