"""The forms of products that the model of costs chooses: those that were measured clearly fastest."""

from __future__ import annotations

import pytest

from isthmus.passes.analysis.products import Product, Side

TILE, DOTS = (6, 16), (3, 4)


def product(m, n, k, layout, **more):
    a = Side(layout[0] == "N", 4 * (k if layout[0] == "N" else m), more.get("work_a"))
    b = Side(layout[1] == "T", 4 * (k if layout[1] == "T" else n), more.get("work_b"))
    return Product(m, n, k, a, b, more.get("count", 1))


MEASURED = [
    (32, 128, 784, "NT", ("a", "b"), True),  # few rows: packing B costs a third of the product
    (128, 20, 400, "NT", ("a", "b"), True),
    (16, 1024, 256, "NT", ("a", "b"), True),
    (128, 784, 32, "TN", ("b",), False),  # few terms
    (32, 784, 128, "NN", ("b",), False),
    (400, 784, 128, "TN", ("b",), False),
    (64, 1024, 1024, "NN", (), False),  # rows of B share the sets of the caches
    (16, 1024, 128, "TN", (), False),
    (1024, 1024, 1024, "NN", (), False),
]


@pytest.mark.parametrize("m,n,k,layout,direct,dots", MEASURED)
def test_the_fastest_form_is_chosen(m, n, k, layout, direct, dots):
    form = product(m, n, k, layout).best(TILE, DOTS)
    assert form is not None
    assert (form.direct, form.dots) == (direct, dots)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_only_what_can_be_read_as_it_lies_is(layout):
    for n in (30, 32):
        for form in product(30, n, 40, layout).forms(TILE, DOTS):
            assert "a" not in form.direct or layout[0] == "N"
            if not form.dots:
                assert "b" not in form.direct or (layout[1] == "N" and n % TILE[1] == 0)
            else:
                assert layout == "NT"


def test_what_is_computed_is_packed():
    assert all("a" not in f.direct for f in product(32, 128, 784, "NT", work_a=1.0).forms(TILE, DOTS))
    assert all("b" not in f.direct for f in product(32, 784, 128, "NN", work_b=1.0).forms(TILE, DOTS))


def test_few_rows_have_tiles_along_k_alone():
    assert product(4, 128, 64, "NN").best(TILE, DOTS) is None
    form = product(4, 128, 64, "NT").best(TILE, DOTS)
    assert form is not None and form.dots


def test_a_batch_costs_what_its_products_cost():
    one, many = (product(64, 64, 64, "TN", count=count).best(TILE, DOTS) for count in (1, 10))
    assert one is not None and many is not None and many.cost == pytest.approx(10 * one.cost)
