"""`isthmus calibrate`: measure this machine once and compile by its own prices from then on."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from isthmus.dialects import prim
from isthmus.driver import price_list
from isthmus.driver.machine import Machine, measure, measures
from isthmus.passes.analysis.prices import CPU, Prices


def calibrate(console: Console, *, keep: bool = True) -> Prices:
    """Measure, print the list beside the defaults, and keep it (unless told not to)."""
    before = price_list.measured()
    machine = _measured()
    prices = price_list.prices_from(machine, before or CPU)
    console.print(facts_table(machine))
    console.print(price_table(machine, prices))
    changed = len(prices.differences)
    console.print(f"{changed} of them differ from the defaults" if changed else "all as the defaults", highlight=False)
    if keep:
        same = "the same list as before" if prices == before else "programs are compiled by it from now on"
        console.print(f"kept in {price_list.keep(machine, prices)}: {same}", highlight=False, soft_wrap=True)
    return prices


def _measured() -> Machine:
    """Measure, with a bar on the terminal."""
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(measures()))

        def note(what: str) -> None:
            progress.update(task, description=what, advance=1)

        return measure(note)


def facts_table(machine: Machine) -> Table:
    """What was measured, as a table."""
    table = Table("measured", "here", "reference", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = (
        ("memory, one thread, GB/s", machine.bandwidth / 1e9, price_list.REFERENCE["bandwidth"] / 1e9),
        ("memory, all threads, GB/s", machine.bandwidth_of_all / 1e9, None),
        ("products, one thread, GFLOPS", machine.flops / 1e9, price_list.REFERENCE["flops"] / 1e9),
        ("launch and barrier, us", machine.launch * 1e6, price_list.REFERENCE["launch"] * 1e6),
        ("library call, us", machine.library_call * 1e6, price_list.REFERENCE["library_call"] * 1e6),
    )
    for name, here, reference in rows:
        table.add_row(name, f"{here:.3g}", "" if reference is None else f"{reference:.3g}")
    return table


def price_table(machine: Machine, prices: Prices) -> Table:
    """The list beside the defaults, as a table: every price of a function, and every other that is not the default."""
    table = Table("price", "default", "here", "ps an element")
    for column in table.columns[1:]:
        column.justify = "right"
    for f in fields(Prices):
        default, here = getattr(CPU, f.name), getattr(prices, f.name)
        if f.name != "functions" and (f.name in _SCALED or here != default):
            table.add_row(f.name, f"{default:g}", _marked(here, default))
    stated = {op.name: op.COST for op in prim.PRIM_OPS}
    own = dict(prices.functions)
    for name, seconds in machine.functions:
        here = own.get(name, stated[name])
        table.add_row(name, f"{stated[name]:g}", _marked(here, stated[name]), f"{seconds * 1e12:.0f}")
    return table


_SCALED = (
    "launch_bytes",
    "partition_bytes",
    "additions_per_byte",
    "flops",
    "flops_per_byte",
    "part_flops",
    "library_call",
)


def _marked(here: float, default: float) -> str:
    return f"{here:g}" if here == default else f"{here:g} *"
