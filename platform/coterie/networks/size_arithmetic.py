"""Sums and products of sizes in a program from a file, limited to 64 bits.

A graph may square a size again and again, to numbers of gigabytes, or repeat and join lists.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

_BITS = 64


def add(one: Any, other: Any) -> Any:
    """Add two numbers or tensors."""
    return _checked(one, other, operator.add)


def mul(one: Any, other: Any) -> Any:
    """Multiply two numbers or tensors."""
    return _checked(one, other, operator.mul)


BOUNDED: Mapping[Any, Callable[..., Any]] = {operator.add: add, operator.mul: mul}
"""Functions of Python that programs call, and what is called in their place."""


def _checked(one: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Apply a function to two numbers or tensors, and check the result.

    Raises:
        RuntimeError: If it is of lists, or a whole number of more than 64 bits.
    """
    if isinstance(one, list | tuple | str) or isinstance(other, list | tuple | str):
        raise RuntimeError("its graph computes with lists as numbers")  # noqa: TRY004 - as PyTorch
    found = function(one, other)
    if isinstance(found, int) and found.bit_length() > _BITS:
        raise RuntimeError(f"its graph makes a size of more than {_BITS} bits")
    return found
