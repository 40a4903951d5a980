"""Checks the numbers that decide on memory and time when a program from a file calls operators.

PyTorch trusts these numbers: a pooling of 2^40 pixels loops in C++, where no signal ends it, and
`arange` from the least integer in steps of -1 ends the process. A graph may also square a size
again and again, to numbers of gigabytes, or repeat and join lists.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_SIDE = 1 << 16
"""The largest number in a layer's options, such as pixels of a kernel or of what it gives."""
_ELEMENTS = 1 << 29
"""The most numbers of a tensor that a call makes or repeats."""
_WHOLE = 1 << 53
"""Bounds of a series."""
_BITS = 64
"""The most bits of a sum or product of sizes."""
_POOLS = """
    adaptive_avg_pool adaptive_max_pool avg_pool conv conv_transpose max_pool upsample_bicubic
    upsample_bilinear upsample_linear upsample_nearest upsample_trilinear
"""
_LAYERS = frozenset(
    {f"{name}{axes}d" for name in _POOLS.split() for axes in (1, 2, 3)}
    | {"im2col", "col2im", "pad", "pixel_shuffle", "roll", "unfold"}
)
_SHAPED = frozenset(
    {"eye", "full", "new_full", "new_ones", "new_zeros", "ones", "zeros"}
    | {"tril_indices", "triu_indices"}
)
_SERIES = frozenset({"arange", "linspace"})
_REPEATED = frozenset({"one_hot", "repeat", "repeat_interleave", "tile"})
_JOINED = frozenset({"cat", "concat", "stack"})
_CHECKED = _LAYERS | _SHAPED | _SERIES | _REPEATED | _JOINED


def is_bounded(target: Any) -> bool:
    """Return whether the numbers in an operator's arguments are checked."""
    return isinstance(target, torch._ops.OpOverload) and _name(target) in _CHECKED


def bounded(target: Any, *args: Any, **options: Any) -> Any:
    """Call an operator of ATen, if the numbers in its arguments may occur in a network.

    Raises:
        RuntimeError: If they are not.
    """
    name, numbers = _name(target), [*_numbers([*args, *options.values()])]
    if name in _LAYERS:
        least = 1 if name.startswith("adaptive") else -_SIDE
        fits = all(least <= n <= _SIDE for n in numbers if isinstance(n, int))
    elif name in _SERIES:
        fits = _is_short(name, numbers, options)
    elif name in _JOINED:
        fits = sum(part.numel() for part in _tensors(args)) <= _ELEMENTS
    else:
        lists = [value for value in args if isinstance(value, list | tuple)]
        sizes = lists[0] if lists else numbers[:2] if name in _SHAPED else numbers[:1]
        size = math.prod(max(1, abs(number)) for number in sizes)  # without what fills it
        whole = [part.numel() for part in _tensors(args)] if name in _REPEATED else []
        fits = size * max([1, *whole]) <= _ELEMENTS
    if not fits:
        raise RuntimeError(f"its graph calls {name} for sizes that no network has")
    return target(*args, **options)


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


def _is_short(name: str, numbers: list[float], options: Any) -> bool:
    """Return whether a series such as `arange` has few elements and bounds of limited size."""
    if not all(math.isfinite(number) and abs(number) <= _WHOLE for number in numbers):
        return False
    if name == "linspace":
        return all(number <= _ELEMENTS for number in numbers[2:])
    first, last, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    step = options.get("step", step)
    return bool(step != 0 and abs(last - first) / abs(step) <= _ELEMENTS)


def _name(target: Any) -> str:
    """Return the name of an operator without its overload."""
    return str(target._schema.name).rpartition("::")[2].removesuffix("_")


def _numbers(values: Any) -> Iterator[float]:
    """Yield the numbers among arguments, also those within lists, without booleans."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, Tensor):
            yield value
