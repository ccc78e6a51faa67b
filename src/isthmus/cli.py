"""Command lines: `isthmus-opt` runs passes over .mlir text, `isthmus` traces and explains programs."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import IO, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline, parse_spec
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError, VerifyException
from xdsl.utils.lexer import Span
from xdsl.utils.target import Target
from xdsl.xdsl_opt_main import xDSLOptMain

from isthmus import __version__, ir
from isthmus.diagnostics import CompileError, IRError, SourceLocation
from isthmus.dialects import dialect_factories
from isthmus.importing import import_code
from isthmus.passes import PASSES, load_pass
from isthmus.passes.pipelines import PassFailure, Pipeline, check_pass, module_text, pass_text

TARGETS = {
    "llvm": "isthmus.codegen.targets:LLVMTarget",
    "asm": "isthmus.codegen.targets:AssemblyTarget",
    "ptx": "isthmus.codegen.nvptx.targets:PtxTarget",
    "nvptx": "isthmus.codegen.nvptx.targets:NvptxTarget",
}


class PlacingParser(Parser):
    """A parser that remembers where in the text each op begins."""

    def __init__(self, ctx: Context, text: bytes, name: str) -> None:
        super().__init__(ctx, text, name)
        self.places: dict[Operation, Span] = {}

    def parse_operation(self) -> Operation:
        """Read an op."""
        start = self._current_token.span
        op = super().parse_operation()
        self.places[op] = start
        return op


class IsthmusOpt(xDSLOptMain):
    """The driver of `isthmus-opt`; see `isthmus-opt --help`."""

    places: Mapping[Operation, Span] = {}
    """Where the ops of the program stand in its text, and how many lines of the file are before that text."""
    lines_before = 0
    version_format = f"isthmus-opt {__version__} (xdsl {{xdsl_version}})"

    def register_all_dialects(self) -> None:
        """Register the dialects; each is imported when it is met."""
        for name, factory in dialect_factories().items():
            self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        """Register every pass by name; each is imported when it is used."""
        for name in PASSES:
            self.register_pass(name, partial(load_pass, name))

    def register_all_targets(self) -> None:
        """Register the IR's own text and those that come after it."""
        self.available_targets["mlir"] = partial(_load_target, "xdsl.targets.mlir:MLIRTarget")
        for name, where in TARGETS.items():
            self.available_targets[name] = partial(_load_target, where)

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        """Add to xDSL's options: printing around passes, a list of passes, reproducers."""
        super().register_all_arguments(arg_parser)
        group = arg_parser.add_argument_group("isthmus")
        group.add_argument("--print-ir-before-all", action="store_true", help="print the IR before each pass (stderr)")
        group.add_argument("--print-ir-after-all", action="store_true", help="print the IR after each pass (stderr)")
        group.add_argument(
            "--load",
            action="append",
            metavar="CODE",
            help="run a file.py or import a module before: it adds passes, rules, ops",
        )
        group.add_argument("--list-passes", action="store_true", help="list the passes with their contracts and exit")
        group.add_argument("--list-modes", action="store_true", help="print the options of every mode and exit")
        group.add_argument(
            "--reproducer",
            metavar="FILE",
            default="isthmus-reproducer.mlir",
            help="where the IR before a failing pass is kept (default: %(default)s)",
        )

    def setup_pipeline(self) -> None:
        """Build the pipeline with our checks and prints between passes. IRError when a pass or an option is none."""
        for spec in parse_pipeline(self.args.passes):
            check_pass(spec)
        super().setup_pipeline()
        inherited = self.pipeline.callback

        def between(before: ModulePass | None, module: ModuleOp, after: ModulePass | None) -> None:
            try:
                if inherited is not None:
                    inherited(before, module, after)
                if not self.args.disable_verify:
                    ir.verify_order(module)
            except (IRError, VerifyException) as error:
                raise self.shown(error, module) from error
            if before is not None and self.args.print_ir_after_all:
                _print_stage(f"after {pass_text(before)}", module)
            if after is not None and self.args.print_ir_before_all:
                _print_stage(f"before {pass_text(after)}", module)

        self.pipeline = Pipeline(self.pipeline.passes, between)

    def parse_chunk(self, chunk: IO[bytes], file_extension: str, start_offset: int = 0) -> ModuleOp | None:
        """Read a program; text without any op is a module without any. IRError where it is several programs."""
        text = chunk.read()
        if all(not line.strip() or line.lstrip().startswith(b"//") for line in text.splitlines()):
            return ModuleOp([])
        if (self.args.frontend or file_extension) != "mlir":
            return super().parse_chunk(BytesIO(text), file_extension, start_offset)
        parser = PlacingParser(self.ctx, text, self.get_input_name())
        module = parser.parse_module(not self.args.no_implicit_module)
        self.places, self.lines_before = parser.places, start_offset
        if any(isinstance(op, ModuleOp) for op in module.ops):
            raise IRError("the text holds several programs", cure="put '// -----' between them and --split-input-file")
        return module

    def shown(self, error: IRError | VerifyException, module: ModuleOp) -> Exception:
        """Add the op that breaks its rule and where it stands to an error that has no line of a user's program."""
        if isinstance(error, IRError) and error.location is not None:
            return error
        for op in module.walk(reverse=True):  # what is inside before what is around it
            try:
                op.verify(verify_nested_ops=False)
            except (IRError, VerifyException):
                return type(error)(f"{self._place(op)}{error}\n    {str(op).partition(chr(10))[0]}")
        return error

    def _place(self, op: Operation) -> str:
        if op not in self.places:
            return ""
        at = self.places[op].get_location()
        return f"{SourceLocation(at.file, at.line + self.lines_before, at.col)}: "

    def output_resulting_program(self, prog: ModuleOp) -> str:
        """Give the text of the target. CompileError where it is of kernels and there are none yet."""
        from isthmus.dialects import kernel

        target = parse_spec(self.args.target).name
        if target in TARGETS and not any(kernel.launches(f) for f in ir.functions(prog).values()):
            raise CompileError(f"nothing to print as {target}: no kernel is made yet", cure=_KERNELS_FIRST)
        return super().output_resulting_program(prog)


_KERNELS_FIRST = "first -p fuse,schedule,plan-memory (on a GPU: 'fuse{target=gpu},schedule-gpu,plan-memory')"


def _load_target(where: str) -> type[Target]:
    module, _, name = where.partition(":")
    return cast(type[Target], getattr(import_module(module), name))


def _print_stage(title: str, module: ModuleOp) -> None:
    sys.stderr.write(f"// ---- IR {title}\n{module_text(module)}")


def _list_passes() -> None:
    for name in PASSES:
        print(f"{name}\n    {' '.join((load_pass(name).__doc__ or '').split())}")


def opt(argv: Sequence[str] | None = None) -> int:
    """Run `isthmus-opt`; 0 when everything went well, 1 after a message on stderr otherwise."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    driver = None
    try:
        _load_code(arguments)
        if "--list-passes" in arguments:
            _list_passes()
            return 0
        if "--list-modes" in arguments:
            return main(["modes"])
        driver = IsthmusOpt("Run passes over programs as .mlir text, print what becomes of them.", arguments)
        driver.run()
    except PassFailure as failure:
        _report(failure, driver.args.reproducer if driver else "isthmus-reproducer.mlir")
        return 1
    except FileNotFoundError as error:
        print(f"error: there is no {error.filename}", file=sys.stderr)
        return 1
    except UnicodeDecodeError as error:
        print(f"error: {driver.get_input_name() if driver else 'the input'} is no text: {error}", file=sys.stderr)
        return 1
    except _MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


_MISTAKES = (
    CompileError,
    ParseError,
    VerifyException,
    DiagnosticException,
    ArgSpecParseError,
    ImportError,
    ValueError,
    OSError,
)
"""What the text, the options or a file that is not there can cause: told in a sentence, without a stack."""


def _load_code(arguments: Sequence[str]) -> None:
    """Run what `--load` names: before passes are looked up, since it may add some."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--load", action="append", default=[])
    for where in parser.parse_known_args(arguments)[0].load:
        import_code(where)


def _report(failure: PassFailure, path: str) -> None:
    print(f"error: {failure}", file=sys.stderr)
    if not isinstance(failure.error, CompileError | VerifyException):
        traceback.print_exception(failure.error, file=sys.stderr)
    print(f"note: {failure.keep(path)}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `isthmus trace|explain|modes`; see `isthmus --help`."""
    commands = import_module("isthmus.driver.commands")
    return cast(int, commands.run(list(sys.argv[1:] if argv is None else argv)))
