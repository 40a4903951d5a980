"""A client's batches, which depend only on its seed and the step."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from coterie.contract.client import Batch, ClientData, Plan
from coterie.contract.data import Indices
from coterie.contract.samples import read_ahead
from coterie.contract.seeds import derive_seed
from coterie.errors import ContractError

_GATHERED = 256
"""Samples that are gathered from the data set at once; a batch may be larger."""


def share_of_steps(work: float, steps: int) -> int:
    """Return the steps that a client does of a task: a straggler's share, at least one."""
    return min(steps, max(1, math.floor(round(work * steps, 9))))


class SeededBatches:
    """The batches of a plan, one epoch per iteration.

    Every epoch is a new permutation of the client's data. A last batch of fewer than two samples is
    skipped, because batch norm and contrastive losses need two.

    Args:
        data: The client's samples.
        plan: Batch size and length.
        seed: The client's seed for this task.
        with_labels: Whether batches carry labels.
        work: Share of the plan's steps to do; see `share_of_steps`.

    Raises:
        ContractError: If the client has fewer than two samples.
    """

    def __init__(
        self,
        data: ClientData,
        plan: Plan,
        seed: int,
        *,
        with_labels: bool = False,
        work: float = 1.0,
    ) -> None:
        if len(data) < 2:
            raise ContractError(
                f"It has {len(data)} of the two samples that a batch needs; "
                "partition.smallest=2 joins such clients to others."
            )
        self._data, self._plan, self._seed, self._with_labels = data, plan, seed, with_labels
        whole, rest = divmod(len(data), plan.batch_size)
        self._per_epoch = whole + (rest >= 2)
        steps = plan.steps if plan.steps is not None else (plan.epochs or 0) * self._per_epoch
        self._end = plan.first_step + share_of_steps(work, steps)
        self._step = plan.first_step
        self._ahead = max(1, _GATHERED // plan.batch_size)

    @property
    def epochs(self) -> int:
        """The number of iterations that complete the plan."""
        if self._end == self._plan.first_step:
            return 0
        first = self._plan.first_step // self._per_epoch
        return -(-self._end // self._per_epoch) - first

    @property
    def steps(self) -> int:
        """The number of batches from the current step to the end of the plan."""
        return self._end - self._step

    def __len__(self) -> int:
        """Return the number of batches in a full epoch."""
        return self._per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current step to the end of its epoch or of the plan."""
        epoch = self._step // self._per_epoch
        order, first = self._order(epoch), epoch * self._per_epoch
        end = min(self._end, first + self._per_epoch)
        size, gathered = self._plan.batch_size, self._ahead * self._plan.batch_size
        start, stop = (self._step - first) * size, (end - first) * size
        parts = [order[i : min(i + gathered, stop)] for i in range(start, stop, gathered)]
        for positions, samples in read_ahead(self._data.take, parts, threaded=self._data.streamed):
            yield from self._batches(positions, samples)

    def _order(self, epoch: int) -> Indices:
        # Equal to default_rng, in half the time.
        generator = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "order", epoch)))
        return generator.permutation(len(self._data))

    def _batches(self, positions: Indices, samples: Tensor) -> Iterator[Batch]:
        """Yield the batches of several steps, whose samples are gathered together."""
        size = self._plan.batch_size
        parts = {"samples": samples, "positions": torch.from_numpy(positions)}
        if self._with_labels:
            parts["labels"] = self._data.take_labels(positions)
        for tensors in zip(*(torch.split(part, size) for part in parts.values()), strict=True):
            # Copies, because a tensor's alignment in memory may change how products are rounded.
            batch: Batch = {name: t.clone() for name, t in zip(parts, tensors, strict=True)}
            batch["seed"] = derive_seed(self._seed, "step", self._step)
            self._step += 1
            yield batch
