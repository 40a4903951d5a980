"""Values that are written as overrides are read back as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.commands.overrides import parse
from coterie.commands.written import written

LONG = "/home/someone/experiments/2026/fedmcc/pretraining/simclr_fashionmnist/run-one"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("conv3", "conv3"),
        (LONG, LONG),
        ("1", '"1"'),
        ("x, y", '"x, y"'),
        ("null", '"null"'),
        ('say "no"', '"say \\"no\\""'),
        (1e-3, "0.001"),
        (None, "null"),
        (True, "true"),
        ([0.5, "1", "a b"], '[0.5,"1",a b]'),
        ({"target": "a.b:C", "k": 5}, "{target:a.b:C,k:5}"),
    ],
)
def test_it_is_short_and_quoted_where_it_has_to_be(value, text):
    assert written(value) == text
    assert read_back(text) == value


def read_back(text):
    (override,) = parse([f"key={text}"])
    return override.value()


@given(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1))
def test_any_text_comes_back(text):
    assert read_back(written(text)) == text


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()))
def test_any_number_comes_back(value):
    found = read_back(written(value))
    assert found == value
    assert type(found) is type(value)
