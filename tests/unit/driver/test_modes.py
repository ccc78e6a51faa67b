"""Modes: what each sets every option to, as data and as a table."""

from __future__ import annotations

import pytest

import isthmus
from isthmus import cli
from isthmus.driver.options import MODES, Options, mode_table, settable

TORCH_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@pytest.mark.row("I12")
def test_every_mode_of_torch_has_a_value_for_every_option() -> None:
    found = isthmus.list_mode_options()
    assert tuple(found) == TORCH_MODES
    assert all(list(options) == settable() for options in found.values())
    assert found["default"] == {name: getattr(Options(), name) for name in settable()}


@pytest.mark.row("I12")
@pytest.mark.parametrize("mode", TORCH_MODES)
def test_what_is_listed_is_what_a_mode_means(mode: str) -> None:
    (listed,) = isthmus.list_mode_options(mode).values()
    chosen = Options().with_settings(mode, None)
    assert listed == {name: getattr(chosen, name) for name in settable()}
    assert {name for name in listed if listed[name] != getattr(Options(), name)} == set(MODES[mode])


@pytest.mark.row("I12")
def test_graphs_are_replayed_in_the_modes_that_say_so() -> None:
    found = {mode: options["cuda_graphs"] for mode, options in isthmus.list_mode_options().items()}
    assert found == dict(zip(TORCH_MODES, (False, True, True, False), strict=True))


@pytest.mark.row("I12")
@pytest.mark.parametrize("command", [lambda: cli.main(["modes"]), lambda: cli.opt(["--list-modes"])])
def test_the_table_has_a_line_for_every_option(command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command() == 0
    printed = capsys.readouterr().out
    assert printed.rstrip("\n") == mode_table()
    lines = printed.splitlines()
    assert lines[0].split() == ["option", *TORCH_MODES]
    assert [line.split()[0] for line in lines[2:]] == settable()
    (graphs,) = (line for line in lines if line.startswith("cuda_graphs"))
    assert graphs.split()[1:] == ["false", "true", "*", "true", "*", "false"]


def test_an_unknown_mode_names_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'reduce-overhead'"):
        isthmus.list_mode_options("fast")
    with pytest.raises(ValueError, match="'reduce-overhead'"):
        isthmus.compile(lambda x: x, mode="fast")
