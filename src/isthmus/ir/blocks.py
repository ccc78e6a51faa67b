"""Functions, blocks, and the order of definitions and uses."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from isthmus.diagnostics import IRError
from isthmus.ir.locations import source_location
from isthmus.ir.ops import operands_of


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Give the functions of a module by name, in order."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}


def function(module: ModuleOp, name: str) -> FuncOp:
    """Give the function of that name; IRError naming what there is otherwise."""
    found = functions(module)
    if name not in found:
        raise IRError(f"the module has no function @{name}, only {', '.join('@' + n for n in found) or 'none'}")
    return found[name]


def erase_unused(block: Block, keep: Callable[[Operation], bool]) -> int:
    """Erase ops without used results that `keep` does not hold, last first; give their number."""
    erased = 0
    op = block.last_op
    while op is not None:
        previous = op.prev_op
        if all([r.first_use is None for r in op.results]) and not keep(op):
            op.detach()
            op.erase()
            erased += 1
        op = previous
    return erased


def verify_order(root: Operation) -> None:
    """Check that every operand is defined before its use (xDSL does not). IRError names the first culprit."""
    for region in root.regions:
        _verify_region(region, set())


def _verify_region(region: Region, visible: set[SSAValue]) -> None:
    for block in region.blocks:
        defined = visible | set(block.args) if visible else set[SSAValue](block.args)
        for op in block.ops:
            for index, operand in enumerate(operands_of(op)):
                if operand not in defined:
                    raise IRError(
                        f"operand {index} is used before it is defined",
                        op=op.name,
                        location=source_location(op),
                    )
            for inner in op.regions:
                _verify_region(inner, set() if isinstance(op, FuncOp) else defined)
            defined.update(op.results)


def verify(module: ModuleOp) -> None:
    """Check the module: every op's verifier, then SSA order. IRError on the first fault."""
    try:
        module.verify()
    except VerifyException as error:
        raise IRError(str(error)) from error
    verify_order(module)


def block_arguments(func: FuncOp) -> tuple[BlockArgument, ...]:
    """Give the arguments of a function."""
    return tuple(func.body.block.args)
