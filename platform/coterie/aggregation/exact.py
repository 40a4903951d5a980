"""Exact weighted sums: no order or grouping of clients changes a bit of the mean.

A value v is split into two integers, v = h 2^-20 + l 2^-60 + r with |r| < 2^-61; h and l are
multiplied by the integer weight and summed in int64. Integer sums are associative, which averaging
over actors needs, and so do the masks of secure aggregation.

The split is exact in the values' own precision, float32 or float64, because scaling by a power of
two, rounding to an integer and the remainder are. Both precisions give the same sums.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract.phase import Phase, Tensors, WeightedUpdate
from coterie.errors import ContractError, RunError

_HIGH = 2.0**20
_LOW = 2.0**40  # between the limbs: 2^20 * 2^40 = 2^60
_MAX_WEIGHT = 2**23  # |l| <= 2^39 and 2^39 * 2^23 = 2^62
_MAX_SUM = 2**62  # of |h|, in units of 2^-20: sums of values stay under 2^42
_MAX_VALUE = 2.0**24  # weights of a network that learns stay far below
_EXACT_SUM = 2.0**28  # `summed` is exact up to here
_REACH = (_MAX_SUM // _MAX_WEIGHT - 1) / _HIGH  # of values added with the largest weight
_FLOAT = 2**53  # float64 holds every integer up to here
_BLOCK = 2**16  # elements per step, so that intermediates stay in the cache


class SumsExceededError(RunError):
    """The sums of a run exceed the exact range, which `check_weight` should have prevented."""


@dataclass
class FixedPointSum:
    """A running exact sum of flattened tensors.

    The integers are held as float64, which is faster to add to, as long as `weight` and `bound`
    show that they fit; then as int64.

    Attributes:
        high: Integers (elements,), in units of 2^-20.
        low: Integers (elements,), in units of 2^-60.
        weight: Sum of the weights.
        bound: Sum of weight times largest |h|, an upper bound on every element of `high`. It is an
            integer, so the range check does not depend on the order either.
    """

    high: Tensor
    low: Tensor
    weight: int = 0
    bound: int = 0

    def merge(self, other: "FixedPointSum") -> None:
        """Add another sum of the same tensors in place; check the range as `add` does."""
        self._grow(other.weight, other.bound)
        for own, added in ((self.high, other.high), (self.low, other.low)):
            for block, more in _blocks(own, added):
                block.add_(more.to(block.dtype))

    def add(self, values: Tensor, weight: int, largest: float) -> None:
        """Add `weight` times the flat values, at most `largest` in magnitude, in place.

        Raises:
            RunError: If the sum could leave the exact range; no order of clients would avoid it.
        """
        self._grow(weight, weight * math.ceil(largest * _HIGH))
        floating = self.high.is_floating_point()
        for block, high, low in _blocks(values, self.high, self.low):
            scaled = block * _HIGH
            rounded = scaled.round()
            rest = scaled.sub_(rounded).mul_(_LOW).round_()
            high.add_(rounded if floating else rounded.long(), alpha=weight)
            low.add_(rest if floating else rest.long(), alpha=weight)

    def mean(
        self, dtype: torch.dtype = torch.float64, start: int = 0, size: int | None = None
    ) -> Tensor:
        """Return the weighted mean (size,), which is exact where all values are equal.

        Args:
            dtype: Its dtype, to which it is rounded once.
            start: The first element.
            size: Number of elements; None for all from there.
        """
        size = len(self.high) - start if size is None else size
        means = torch.empty(size, dtype=dtype)
        limbs = (limb.narrow(0, start, size) for limb in (self.high, self.low))
        for mean, high, low in _blocks(means, *limbs):
            whole, high_rest = _divide(high, self.weight)
            part, low_rest = _divide(low, self.weight)
            rest = high_rest / _HIGH + low_rest / (_HIGH * _LOW)
            found = whole / _HIGH + (part / (_HIGH * _LOW) + rest / self.weight)
            mean.copy_(narrowed(found, dtype))
        return means

    def is_possible(self, layout: "Layout", limits: Collection[int | None]) -> bool:
        """Return whether contributions within the clients' limits can add up to this sum.

        Args:
            layout: Of the slot.
            limits: Each client's largest weight; None where contributions count alike.
        """
        means = sum(_MAX_VALUE if limit is None else _REACH * limit for limit in limits)
        most = means if layout.sum_limit is None else layout.sum_limit * len(limits)
        return (
            0 < self.weight <= sum(1 if limit is None else limit for limit in limits)
            and 0 <= self.bound <= most * _HIGH + self.weight
            and magnitude(self.high) <= self.bound
            and magnitude(self.low) <= self.weight * _LOW / 2
            and all(_is_whole(block) for limb in (self.high, self.low) for block in _blocks(limb))
        )

    def __reduce__(self) -> tuple[Callable[..., "FixedPointSum"], tuple[object, ...]]:
        """Pickle as NumPy arrays, which move between processes without a copy."""
        return _received, (self.high.numpy(), self.low.numpy(), self.weight, self.bound)

    def _grow(self, weight: int, bound: int) -> None:
        if self.weight + weight > _MAX_WEIGHT:
            total = self.weight + weight
            raise SumsExceededError(
                f"Weights sum to {total}, and at most {_MAX_WEIGHT} is possible; divide all "
                "weights by the same number."
            )
        if self.bound + bound > _MAX_SUM:
            size, limit = (self.bound + bound) / _HIGH, _MAX_SUM / _HIGH
            raise SumsExceededError(
                f"Weighted values sum to {size:.3g}, and at most {limit:.3g} is possible; "
                "training diverged; lower the learning rate."
            )
        self.weight += weight
        self.bound += bound
        fits = self.bound <= _FLOAT and self.weight * _LOW / 2 <= _FLOAT
        if self.high.is_floating_point() and not fits:
            self.high, self.low = _as_integers(self.high), _as_integers(self.low)


def _received(
    high: NDArray[np.generic], low: NDArray[np.generic], weight: int, bound: int
) -> FixedPointSum:
    with warnings.catch_warnings():
        # The memory may be read-only: received sums are merged into others, and never written.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return FixedPointSum(torch.from_numpy(high), torch.from_numpy(low), weight, bound)


def _as_integers(limb: Tensor) -> Tensor:
    """Convert float64 to int64 in its own memory."""
    integers = limb.view(torch.int64)
    for block, into in _blocks(limb, integers):
        into.copy_(block.long())
    return integers


def _blocks(*flat: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(tensor, _BLOCK) for tensor in flat), strict=True)


def _divide(total: Tensor, weight: int) -> tuple[Tensor, Tensor]:
    total = total.long()
    quotient = total.div(weight, rounding_mode="floor")
    return quotient.double(), (total - quotient * weight).double()


def narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 values once, to the nearest, to another dtype.

    PyTorch goes to 16 bits by way of float32, and so would take what is just off the middle between
    two numbers for the middle. Here the way there keeps a last bit of 1 where it loses any.
    """
    if dtype.itemsize >= torch.float32.itemsize:
        return values.to(dtype)
    near = values.to(torch.float32)
    lost = values - near
    other = torch.nextafter(near, lost.sign().float() * torch.inf)
    return torch.where((lost != 0) & (near.view(torch.int32) % 2 == 0), other, near).to(dtype)


def _largest(slot: str, layout: "Layout", values: Tensor, weight: int) -> float:
    largest = magnitude(values)
    check_positive(slot, weight)
    check_value(slot, layout, weight, largest)
    return largest


def check_positive(slot: str, weight: object) -> None:
    """Raise a ContractError unless a weight is a positive int; a bool is refused too."""
    if type(weight) is not int or weight <= 0:
        raise ContractError(f"Slot {slot!r} has weight {weight!r}; give a positive int.")


def check_value(slot: str, layout: "Layout", weight: int, largest: float) -> None:
    """Raise a ContractError if values of this magnitude are too large to be summed."""
    limit = layout.sum_limit
    if limit is not None and not weight * largest <= limit:
        raise ContractError(
            f"Slot {slot!r} has a sum of {weight * largest:.3g} over this client's samples, and "
            f"sums are exact up to {limit:.3g}; scale the features."
        )
    if limit is None and not largest <= _MAX_VALUE:
        raise ContractError(
            f"Slot {slot!r} has a value of {largest:.3g}; training diverged; lower the learning "
            "rate."
        )


def max_weights(sizes: Mapping[int, int], phase: Phase) -> dict[int, int]:
    """Return each client's largest weight, so that sums stay exact in any order of clients.

    Args:
        sizes: Client to its number of samples, for all clients of the phase.
        phase: Says how often samples count.
    """
    claims = {c: math.ceil(phase.repeats * (n + phase.received)) for c, n in sizes.items()}
    share = min(1.0, _MAX_WEIGHT / max(1, sum(claims.values())))
    return {client: max(1, math.floor(share * claim)) for client, claim in claims.items()}


def sum_limit(clients: int) -> float:
    """Return the largest sum over samples that each client may send, given their number."""
    return min(_EXACT_SUM, _MAX_SUM // max(1, clients) / _HIGH)


def check_weight(slot: str, layout: "Layout", weight: int, largest: float, limit: int) -> None:
    """Raise a ContractError if a contribution takes more than its client's share of the range."""
    if weight > limit:
        raise ContractError(
            f"Slot {slot!r} has weight {weight}, and this client's samples allow {limit}; declare "
            "Phase.repeats if each counts more than once, and set aggregation.rule=equal for more "
            f"than {_MAX_WEIGHT:,} samples over all clients."
        )
    if layout.sum_limit is None and weight * largest > _REACH * limit:
        raise ContractError(
            f"Slot {slot!r} has a value of {largest:.3g} with weight {weight}, over this client's "
            "share of the exact sums; training diverged."
        )


@dataclass(frozen=True)
class Layout:
    """The names, shapes and dtypes of a slot's tensors, in the order of a flat vector.

    Attributes:
        names: The tensors' names, sorted.
        sum_limit: The largest magnitude of sums over samples; None of means.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    sum_limit: float | None = None

    @classmethod
    def of(cls, tensors: Tensors, sum_limit: float | None = None) -> "Layout":
        """Return the layout of a slot, its tensors sorted by name.

        Args:
            tensors: The slot's tensors.
            sum_limit: Of sums over samples, their largest magnitude.

        Raises:
            ContractError: If a tensor is not floating: a mean of integers is not an integer.
        """
        names = tuple(sorted(tensors))
        for name in names:
            if not tensors[name].is_floating_point():
                kind = tensors[name].dtype
                raise ContractError(
                    f"{name!r} is {kind} and cannot be averaged; give it another role."
                )
        shapes = tuple(tuple(tensors[name].shape) for name in names)
        dtypes = tuple(tensors[name].dtype for name in names)
        return cls(names, shapes, dtypes, sum_limit)

    def flatten(self, tensors: Tensors) -> Tensor:
        """Concatenate the tensors into one vector, float64 if any of them is, else float32."""
        if not self.names:
            return torch.zeros(0)
        kinds = {tensors[name].dtype for name in self.names}
        kind = torch.float64 if torch.float64 in kinds else torch.float32
        return torch.cat([tensors[name].detach().reshape(-1).to(kind) for name in self.names])

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Split a flat vector into tensors of these names and shapes, in the vector's dtype."""
        parts = zip(self.names, self.shapes, torch.split(flat, self.sizes), strict=True)
        return {name: part.reshape(shape) for name, shape, part in parts}

    def restore(self, flat: Tensor) -> dict[str, Tensor]:
        """Split a flat float64 vector into the tensors, in their own dtypes."""
        pairs = zip(self.split(flat).items(), self.dtypes, strict=True)
        return {name: narrowed(part, dtype) for (name, part), dtype in pairs}

    def mean(self, sums: FixedPointSum) -> dict[str, Tensor]:
        """Return a sum's mean as the tensors, in their own dtypes."""
        found, start = {}, 0
        fields = zip(self.names, self.shapes, self.dtypes, self.sizes, strict=True)
        for name, shape, dtype, size in fields:
            found[name] = sums.mean(dtype, start, size).reshape(shape)
            start += size
        return found

    def zeros(self) -> FixedPointSum:
        """Return an empty sum."""
        return FixedPointSum(*torch.zeros(2, self.elements, dtype=torch.float64))

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def elements(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)


def totals(
    sums: Mapping[str, FixedPointSum], layouts: Mapping[str, Layout]
) -> dict[str, FixedPointSum]:
    """Return each slot's sum, in alphabetical order; zeros without contributions."""
    return {slot: sums.get(slot) or layouts[slot].zeros() for slot in sorted(layouts)}


def _is_whole(block: tuple[Tensor, ...]) -> bool:
    (values,) = block
    return not values.is_floating_point() or bool((values == values.round()).all())


def magnitude(values: Tensor) -> float:
    """Return the largest absolute value: 0 for an empty tensor, NaN or infinity if one occurs."""
    if not values.numel():
        return 0.0
    low, high = (bound.item() for bound in torch.aminmax(values.detach()))
    return float(max(-low, high))


class ExactMeans:
    """Exact weighted means of several slots; slots without contributions are absent.

    Args:
        layouts: Slot to layout, for every slot that may be contributed to.
    """

    def __init__(self, layouts: dict[str, Layout]) -> None:
        self._layouts = layouts
        self.sums: dict[str, FixedPointSum] = {}

    def add(self, client: int, contributions: Mapping[str, WeightedUpdate]) -> None:
        """Add one client's contributions: all of them or, if one is refused, none.

        Args:
            client: Its number, which makes no difference to the sum.
            contributions: Slot to contribution.

        Raises:
            ContractError: If a weight is not a positive integer, or a value is not finite or too
                large.
            RunError: If a sum could leave the exact range, which ends the run.
        """
        # Copies: what is checked is what is added, whatever a client's threads write meanwhile.
        flat = {slot: self._layouts[slot].flatten(c.tensors) for slot, c in contributions.items()}
        largest = {
            slot: _largest(slot, self._layouts[slot], flat[slot], c.weight)
            for slot, c in contributions.items()
        }
        for slot, contribution in contributions.items():
            sums = self.sums.get(slot) or self._layouts[slot].zeros()
            sums.add(flat[slot], contribution.weight, largest[slot])
            self.sums[slot] = sums

    def merge(self, others: Mapping[str, FixedPointSum]) -> None:
        """Add another process's sums."""
        for slot, sums in others.items():
            if slot in self.sums:
                self.sums[slot].merge(sums)
            else:
                self.sums[slot] = FixedPointSum(
                    sums.high.clone(), sums.low.clone(), sums.weight, sums.bound
                )

    def result(self) -> dict[str, WeightedUpdate]:
        """Return each slot's mean and total weight."""
        return {
            slot: WeightedUpdate(weight=sums.weight, tensors=self._layouts[slot].mean(sums))
            for slot, sums in sorted(self.sums.items())
        }
