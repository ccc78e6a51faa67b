"""The list that `isthmus calibrate` leaves: how it follows from what was measured, where it is, who compiles by it."""

import json
import os
import sys
from dataclasses import replace

import pytest
import torch

import isthmus
from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import kernel, prim
from isthmus.driver import commands, machine, price_list
from isthmus.driver.api import compile_in
from isthmus.driver.machine import Machine
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.passes.analysis.prices import CPU, PRICES
from isthmus.runtime import cache

STATED = {cls.name: cls.COST for cls in machine.functions()}
R = price_list.REFERENCE
REFERENCE = Machine(
    R["bandwidth"],
    R["bandwidth"],
    R["flops"],
    R["launch"],
    R["library_call"],
    tuple((name, R["addition"] * cost) for name, cost in STATED.items()),
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ISTHMUS_PRICES", raising=False)
    isthmus.reset()
    torch.manual_seed(0)


def compiled(function, **options):
    """The function compiled anew, as another process would, and its session."""
    isthmus.reset()
    cache.current().forget_memory()
    own = Session(Options(**options), warm=True)
    return compile_in(own, function, "trace")[0], own


def chain(x):
    return (x.exp() + 1.0).log()


def partitions(session):
    (program,) = session.programs
    (module,) = program.lowering.kernels.values()
    (launch,) = kernel.launches(ir.function(module, "main"))
    return ir.literal(launch, "partitions")


# ---- from what was measured to prices


def test_the_reference_machine_has_the_defaults():
    assert price_list.prices_from(REFERENCE) == CPU


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"launch": 4 * R["launch"]}, {"launch_bytes": 32 << 10, "partition_bytes": 512 << 10, "part_flops": 8e6}),
        ({"flops": 2 * R["flops"]}, {"flops": 200e9, "flops_per_byte": 10.0, "part_flops": 4e6, "library_call": 300e3}),
        ({"library_call": R["library_call"] / 2}, {"library_call": 75e3}),
        (
            {"bandwidth": R["bandwidth"] / 2},
            {"launch_bytes": 4 << 10, "partition_bytes": 64 << 10, "additions_per_byte": 16.0, "flops_per_byte": 10.0},
        ),
        ({"launch": 1.3 * R["launch"], "bandwidth": 0.8 * R["bandwidth"]}, {}),
    ],
)
def test_prices_follow_what_was_measured(change, expected):
    assert price_list.prices_from(replace(REFERENCE, **change)) == replace(CPU, **expected)


def test_a_function_is_priced_by_the_others():
    seconds = dict(REFERENCE.functions)
    found = price_list.prices_from(
        replace(REFERENCE, functions=tuple({**seconds, "prim.exp": seconds["prim.exp"] * 0.4}.items()))
    )
    assert found == replace(CPU, functions=(("prim.exp", prim.ExpOp.COST / 2),))
    # all of them twice as dear: additions are
    twice = price_list.prices_from(replace(REFERENCE, functions=tuple((n, 2 * s) for n, s in seconds.items())))
    assert twice == replace(CPU, additions_per_byte=4.0)


def test_measuring_again_near_a_boundary_changes_nothing():
    near, nearer = (replace(REFERENCE, library_call=factor * R["library_call"]) for factor in (1.75, 1.25))
    first = price_list.prices_from(near)
    assert first.library_call == 2 * CPU.library_call
    assert price_list.prices_from(nearer, first) == first
    assert price_list.prices_from(nearer) == CPU
    assert price_list.prices_from(REFERENCE, first) == CPU


# ---- kept, and used from then on


def test_a_kept_list_is_used_until_it_is_forgotten(monkeypatch, capsys):
    assert price_list.chosen() is CPU
    prices = price_list.prices_from(replace(REFERENCE, launch=R["launch"] * 8))
    where = price_list.keep(REFERENCE, prices)
    assert price_list.chosen() == prices != CPU
    assert price_list.chosen("default") is CPU
    monkeypatch.setenv("ISTHMUS_PRICES", "default")
    assert price_list.chosen() is CPU
    monkeypatch.delenv("ISTHMUS_PRICES")
    cache.clear()
    assert price_list.chosen() == prices  # it is no entry of the cache
    assert commands.run(["calibrate", "--forget"]) == 0 and commands.run(["calibrate", "--forget"]) == 0
    assert capsys.readouterr().out.splitlines() == ["the defaults hold again", "nothing was measured on this machine"]
    assert not where.exists() and price_list.chosen() is CPU


def test_a_new_list_is_seen_by_the_same_process():
    price_list.keep(REFERENCE, replace(CPU, launch_bytes=1))
    assert price_list.chosen().launch_bytes == 1
    price_list.keep(REFERENCE, replace(CPU, launch_bytes=2))
    assert price_list.chosen().launch_bytes == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"prices": 3}',
        '{"prices": [["lunch_bytes", 2.0]]}',
        '{"prices": [["dear", -1]]}',
        '{"prices": [["dear", NaN]]}',
        f'{{"prices": [["dear", {10**400}]]}}',
    ],
)
def test_a_list_that_says_nothing_is_left_out_loudly(content):
    price_list.keep(REFERENCE, CPU).write_text(content)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert price_list.chosen() is CPU


def test_a_list_that_others_may_write_is_not_read():
    where = price_list.keep(REFERENCE, replace(CPU, launch_bytes=1))
    where.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="others than you may write it"):
        assert price_list.chosen() is CPU


def test_a_kept_list_is_the_users_own_whatever_the_umask():
    before = os.umask(0o002)
    try:
        price_list.keep(REFERENCE, replace(CPU, launch_bytes=1))
    finally:
        os.umask(before)
    assert price_list.chosen().launch_bytes == 1


def test_a_folder_that_takes_no_file_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CompileError, match=r"cannot be kept[\s\S]*ISTHMUS_CACHE_DIR"):
        price_list.keep(REFERENCE, CPU)
    assert not price_list.forget()


def test_words_without_a_meaning_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="prices='fast'"):
        Options(prices="fast")
    monkeypatch.setenv("ISTHMUS_PRICES", "defualt")
    with pytest.raises(ValueError, match="ISTHMUS_PRICES='defualt'"):
        price_list.chosen()


def test_without_a_folder_there_is_nothing_to_keep(monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", "")
    assert price_list.chosen() is CPU
    with pytest.raises(CompileError, match="no folder"):
        price_list.keep(REFERENCE, CPU)


def test_a_program_kept_under_other_prices_is_not_used():
    x = torch.randn(256, 1024)
    ours, session = compiled(chain)
    ours(x)
    assert partitions(session) == 16
    ours, warm = compiled(chain)
    ours(x)
    assert not warm.programs[0].lowering.kernels  # from disk

    price_list.keep(REFERENCE, replace(CPU, partition_bytes=1 << 20))
    ours, session = compiled(chain)
    torch.testing.assert_close(ours(x), chain(x))
    assert partitions(session) == 2

    ours, warm = compiled(chain)
    ours(x)
    assert not warm.programs[0].lowering.kernels
    ours, session = compiled(chain, prices="default")
    ours(x)
    assert partitions(session) == 16
    price_list.forget()
    ours, warm = compiled(chain)
    ours(x)
    assert not warm.programs[0].lowering.kernels  # the first one is there yet


def test_both_directions_carry_the_list():
    price_list.keep(REFERENCE, replace(CPU, dear=9.0))
    x = torch.randn(4, 4, requires_grad=True)
    ours, session = compiled(lambda x: chain(x).sum())
    ours(x).backward()
    (program,) = session.programs
    modules = [*program.stages.values(), *program.lowering.kernels.values()]
    carried = [ir.literal(func, PRICES) for module in modules for func in ir.functions(module).values()]
    assert len(carried) >= 5 and set(carried) == {(("dear", 9.0),)}


def test_explain_names_the_prices():
    x = torch.randn(4, 4)
    assert "  prices: the defaults\n" in str(isthmus.explain(chain, capture="trace")(x))
    price_list.keep(REFERENCE, replace(CPU, dear=9.0, functions=(("prim.exp", 5.0),)))
    assert "  prices: the defaults but dear 9, prim.exp 5\n" in str(isthmus.explain(chain, capture="trace")(x))


# ---- measuring


def test_the_command_measures_prints_and_keeps(monkeypatch, capsys):
    monkeypatch.setattr(machine, "LARGE", 1 << 12)
    monkeypatch.setattr(machine, "functions", lambda: iter([prim.ExpOp, prim.PowOp, prim.AcoshOp]))
    threads = torch.get_num_threads()
    assert commands.run(["calibrate", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "launch_bytes" in printed and "prim.acosh" in printed and "kept" not in printed
    assert price_list.measured() is None and torch.get_num_threads() == threads
    assert commands.run(["calibrate"]) == 0
    assert "programs are compiled by it from now on" in capsys.readouterr().out
    where = price_list.place()
    assert where is not None
    content = json.loads(where.read_text())
    assert {name for name, _ in content["measured"]["functions"]} == {"prim.exp", "prim.pow", "prim.acosh"}
    assert all(content["measured"][name] > 0.0 for name in ("bandwidth", "flops", "launch", "library_call"))
    assert price_list.measured() == price_list.chosen()


def test_nothing_is_measured_that_nobody_asks_for(monkeypatch):
    monkeypatch.delitem(sys.modules, "isthmus.driver.machine")
    compiled(chain)[0](torch.randn(4))
    assert "isthmus.driver.machine" not in sys.modules
