"""What a failed task tells of its error: all of the code, and of private samples nothing."""

import pytest

from coterie.execution.failure_trace import trace_of


def _fails(sample: float) -> None:
    try:
        {}[f"no {sample}"]
    except KeyError as error:
        raise ValueError(f"a sample is {sample}\nand more") from error


def _caught(sample: float) -> ValueError:
    with pytest.raises(ValueError, match="a sample is") as caught:
        _fails(sample)
    return caught.value


def test_the_error_and_what_it_came_from_are_told() -> None:
    first, second = trace_of(_caught(0.125), private=False).split("\n\n")
    assert first.endswith("KeyError: 'no 0.125'")
    assert f'File "{__file__}", line ' in second
    assert second.endswith("ValueError: a sample is 0.125")


def test_of_private_samples_only_the_type_and_the_place_are_told() -> None:
    place, kind = trace_of(_caught(0.125), private=True).splitlines()
    assert place.startswith(f'  File "{__file__}", line ')
    assert place.endswith(", in _fails")
    assert kind == "ValueError"


def test_it_is_short_and_printable() -> None:
    error = ValueError("\x1b" + "x" * 10**7)
    for _ in range(50):
        error.__context__, error = ValueError("y" * 10**4), error.__context__ or error
    text = trace_of(error, private=False)
    assert len(text) <= 10_000
    assert "\x1b" not in text


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise ValueError


def test_of_deep_calls_the_last_are_told() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- it has no text
        deep(500)
    lines = trace_of(caught.value, private=False).splitlines()
    assert len(lines) < 50
    assert lines[-1] == "ValueError"
