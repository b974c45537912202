"""Descriptions of files refuse what does not fit, in one line that names the part."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from navrl.io.contents import (
    Array,
    ListOf,
    MapOf,
    Maybe,
    Number,
    OneOf,
    Plain,
    Text,
    Unfit,
    check,
    check_bounds,
    like,
)  # fmt: skip


@pytest.mark.parametrize(
    "value, spec",
    [
        (3, Number(0, 5)),
        (0.5, Number(0, 5)),
        ("abc", Text(3, r"\w+")),
        (None, Maybe(Number())),
        ([1, 2], ListOf(Number(), 2)),
        ({"a": 1, "b": {}}, {"a": Number(), "b": {}, "c?": Text()}),
        ({"x": [1, "a", None, True, {"y": 2.5}]}, Plain()),
        (torch.zeros(2, 3), Array(torch.float32, (None, 3))),
        (
            {"w": torch.ones(2), "n": 3, "f": 0.5, "l": [1, "x"]},
            like({"w": torch.zeros(2), "n": 1, "f": 1.0, "l": [0, ""]}),
        ),
    ],
)
def test_what_fits(value: Any, spec: Any) -> None:
    check(value, spec)


@pytest.mark.parametrize(
    "value, spec, words",
    [
        (True, Number(), "is True, not a number"),
        (math.nan, Number(), "is nan"),
        (10**400, Number(0, 1e13, whole=True), "is an enormous number"),
        (2.0, Number(whole=True), "not a whole number"),
        ("a\nb\x1b[31m", Number(), "is 'a\\nb\\x1b[31m', not a number"),
        ("abcd", Text(3), "at most 3 characters"),
        (1, OneOf((True, False)), "not one of True, False"),
        ([1] * 9, ListOf(Number(), 8), "not a list of 0 to 8"),
        ({1: 2}, MapOf(Number()), "a key of"),
        ({"a": {"b": torch.ones(1)}}, Plain(), "a.b is a Tensor of 1"),
        ({"a": {}}, {"a": {"b": Number()}}, "a has no b"),
        ({}, {"a": Number()}, "a is missing"),
        (torch.zeros(2), Array(torch.float32, (3,)), "is torch.float32 [2], not torch.float32 [3]"),
        (torch.zeros(2, dtype=torch.complex64), Array(torch.float32, (2,)), "torch.complex64"),
        (torch.tensor([math.inf]), Array(torch.float32, (1,)), "is not finite"),
        (torch.zeros(2, 2).to_sparse(), Array(torch.float32, (2, 2)), "not a tensor"),
    ],
)
def test_what_does_not(value: Any, spec: Any, words: str) -> None:
    with pytest.raises(Unfit) as caught:
        check(value, spec)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_bounds_of_any_file() -> None:
    """What is small on disk and endless, or enormous, in memory."""
    check_bounds({"a": [torch.zeros(3), {"b": (1, "x")}]})
    twice: list = [1]
    for _ in range(60):
        twice = [twice, twice]
    itself: list = []
    itself.append(itself)
    for bad in (twice, itself, {"t": torch.zeros(1).expand(1 << 40)}, {"t": torch.zeros(9, 9).to_sparse()}):
        with pytest.raises(Unfit):
            check_bounds(bad)
