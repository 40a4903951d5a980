"""Gradient caching: the exact gradient of a batch-coupled loss, one micro-batch's graph at a time.

FedMCC, section VI, after Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory
Limited Setup" (arXiv:2101.06983). Pass 1 represents the batch in micro-batches without a graph. The
loss over all representations gives α = ∂L/∂representation. Pass 2 represents each micro-batch
again, from the same random state, and back-propagates ⟨α, representation⟩.

Pass 2 is the backward of an autograd function, so `backward` on the loss gives the parameters'
gradients as usual: by Lightning, with gradient scaling or clipping, or by a bare loop.

Coupling of samples inside the networks is not cached: BatchNorm in train mode takes its statistics
from the micro-batch, and the gradient is exactly that of L(cat(net(micro-batch))).
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from coterie.errors import ContractError
from coterie.gradcache.replay import Generators, Sums, autocast_now, check_leaves

Terms = Mapping[str, Tensor]
"""A loss under "loss", and other scalars to log."""


class Rows(Protocol):
    """Source of micro-batches: a tensor (n, …), or views that are drawn on access."""

    def __len__(self) -> int:
        """Return the number of samples, n."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return these rows; the same on every access."""


@dataclass(frozen=True)
class Segment:
    """Representations of a batch by a network.

    Attributes:
        apply: Maps a micro-batch to its representations: tensors (micro-batch, …), or dicts, lists
            and tuples of them.
        network: The network that `apply` uses. If any of its parameters requires a gradient, and
            gradients are recorded, the part is passed twice.
        samples: The batch.
        micro_batch_size: Maximum size of a micro-batch; with 2, three samples where one would be
            left over. The batch is split as evenly as possible.
    """

    apply: Callable[[Tensor], Any]
    network: nn.Module
    samples: Rows
    micro_batch_size: int

    def pieces(self) -> list[slice]:
        """Return the micro-batches.

        For batch norm, none has a single sample unless the size is 1.
        """
        n, size = len(self.samples), self.micro_batch_size
        count = max(1, min(-(-n // size), n // min(size, 2)))
        bounds = [n * i // count for i in range(count + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(bounds)]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that require a gradient."""
        return [p for p in self.network.parameters() if p.requires_grad]


def cached_loss(loss: Callable[[], Terms]) -> dict[str, Tensor]:
    """Return a loss whose `backward` needs the graph of one micro-batch at a time.

    The random state and autocast of pass 1 are replayed in pass 2; buffers, such as running
    statistics, are updated once.

    Args:
        loss: Returns the terms. It represents the batch by `represented`, and must not use
            parameters that require a gradient elsewhere.

    Returns:
        The terms; "loss" can be back-propagated once, the other terms are detached.

    Raises:
        ContractError: If the loss itself uses parameters that require a gradient.
    """
    run = _Run()
    running = _RUNNING.set(run)
    try:
        terms = dict(loss())
    finally:
        _RUNNING.reset(running)
    if not run.parameters or not terms["loss"].requires_grad:
        return terms
    run.differentiate(terms["loss"])
    detached = {name: term.detach() for name, term in terms.items()}
    return detached | {"loss": _Cached.apply(run, detached["loss"], *run.parameters)}


def represented(part: Segment) -> Any:
    """Represent a part's whole batch within a cached loss, in micro-batches without a graph."""
    return _RUNNING.get().represent(part)


@dataclass
class _Pass:
    """The state of one segment between the passes, and α, the loss's gradients of its outputs."""

    part: Segment
    leaves: list[Tensor] = field(default_factory=list)
    alphas: list[Tensor | None] = field(default_factory=list)
    generators: list[Generators] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trained = self.part.parameters() if torch.is_grad_enabled() else []

    @torch.no_grad()
    def represent(self) -> Any:
        """Run pass 1: compute representations of the whole batch, as leaves of the loss's graph."""
        if self.trained:
            self.buffers = [buffer.clone() for buffer in self.part.network.buffers()]
        structure = None
        for piece in self.part.pieces():
            samples = self.part.samples[piece]
            self.generators.append(Generators.now(samples).shared(self.generators))
            flat, structure = tree_flatten(self.part.apply(samples))
            # Allocated whole: small tensors per piece would fragment the memory.
            if not self.leaves:
                n = len(self.part.samples)
                self.leaves = [_leaf(n, rows) for rows in flat]
            for leaf, rows in zip(self.leaves, flat, strict=True):
                leaf[piece] = rows
        # Autocast caches copies of weights, which were made without a graph here.
        torch.clear_autocast_cache()
        if self.trained:
            self.leaves = [
                leaf.requires_grad_() if leaf.is_floating_point() else leaf for leaf in self.leaves
            ]
        assert structure is not None  # there is at least one piece
        return tree_unflatten(self.leaves, structure)

    def again(self, upstream: Tensor) -> Iterator[tuple[Tensor | None, ...]]:
        """Run pass 2: compute the gradients of each micro-batch."""
        for buffer, value in zip(self.part.network.buffers(), self.buffers, strict=True):
            buffer.copy_(value)
        for piece, generators in zip(self.part.pieces(), self.generators, strict=True):
            samples = self.part.samples[piece]
            with generators.replayed(), torch.enable_grad():
                flat, _ = tree_flatten(self.part.apply(samples))
            pairs = [
                (output, (alpha[piece] * upstream).to(output.dtype))
                for output, alpha in zip(flat, self.alphas, strict=True)
                if alpha is not None and output.requires_grad
            ]
            if pairs:
                outputs, weights = zip(*pairs, strict=True)
                yield torch.autograd.grad(outputs, self.trained, weights, allow_unused=True)


def _leaf(n: int, rows: Tensor) -> Tensor:
    """Allocate n rows; float32 in place of float16, since α is not scaled yet and may be tiny."""
    dtype = torch.float32 if rows.dtype == torch.float16 else rows.dtype
    return rows.new_empty(n, *rows.shape[1:], dtype=dtype)


class _Run:
    """State of a batch between its two passes."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []
        self._autocast = autocast_now()
        self._done = False

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all segments, each once."""
        return list(dict.fromkeys(p for one in self.passes for p in one.trained))

    def represent(self, part: Segment) -> Any:
        """Run pass 1 of a segment."""
        self.passes.append(_Pass(part))
        return self.passes[-1].represent()

    def differentiate(self, loss: Tensor) -> None:
        """Compute α, the loss's gradient, of every representation."""
        leaves = [leaf for one in self.passes for leaf in one.leaves if leaf.requires_grad]
        check_leaves(loss, leaves)
        # The loss's own products are in float32, and so have to be those of its gradient.
        with torch.autocast(loss.device.type, enabled=False):
            alphas = iter(torch.autograd.grad(loss, leaves, allow_unused=True))
        for one in self.passes:
            one.alphas = [next(alphas) if leaf.requires_grad else None for leaf in one.leaves]
            one.leaves = []

    def gradients(self, upstream: Tensor) -> list[Tensor | None]:
        """Run pass 2, and return the gradient of each parameter."""
        if self._done:
            raise ContractError("A cached loss was back-propagated twice; compute it again.")
        self._done = True
        sums = Sums()
        with self._buffers_kept(), self._autocast():
            for one in self.passes:
                if one.trained:
                    for gradients in one.again(upstream):
                        sums.add(zip(one.trained, gradients, strict=True))
        return [sums.totals().get(parameter) for parameter in self.parameters]

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Restore the buffers to their values after pass 1."""
        networks = dict.fromkeys(one.part.network for one in self.passes)
        buffers = [buffer for network in networks for buffer in network.buffers()]
        values = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)


_RUNNING: ContextVar[_Run] = ContextVar("cached loss")
"""The cached loss that is being computed."""


class _Cached(torch.autograd.Function):
    """A loss whose backward is pass 2."""

    @staticmethod
    def forward(ctx: Any, run: _Run, value: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.run.gradients(upstream)
