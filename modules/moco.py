"""MoCo: a view is contrasted with a queue of other samples' keys, made by a slower network.

He et al., "Momentum Contrast for Unsupervised Visual Representation Learning" (arXiv:1911.05722),
with the head of Chen et al.'s MoCo v2 (arXiv:2003.04297) and lightly's loss and queue. Query and
key network are averaged, with their running statistics; the queue never leaves its client.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from coterie.contract import Entry, Role, Slots, StateRoles, Task, Tensors, load_tensors
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.modules.lightly_parts import MoCoProjectionHead, NTXentLoss
from coterie.modules.pretraining import ONLINE, Followed, FollowedConfig, Pretraining
from coterie.precision import in_float32, unit_rows


class QueueContrast(Followed):
    """The query network, the key network, which follows it as an EMA, and the queue of keys."""

    config: "MoCo.Config"

    def __init__(self, config: "MoCo.Config", task: Task) -> None:
        super().__init__(config, task)
        self.criterion = NTXentLoss(config.temperature, (config.queue_size, config.projection))
        queue = self.criterion.memory_bank
        # Normal numbers in float32 differ in their last bits between kinds of CPUs.
        keys = torch.randn(queue.bank.shape, dtype=torch.float64)
        for name, start in (("bank", unit_rows(keys)), ("bank_ptr", queue.bank_ptr)):
            queue.register_buffer(name, start, persistent=True)  # lightly keeps them out of it
        self.to(task.dtype)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return −log exp(q·k₊/τ) / (exp(q·k₊/τ) + Σ_queue exp(q·k/τ)), eq. (1), and enqueue k₊."""
        query, key = through(self.online, views[0]), through(self.target, views[1])
        return self.logged({"loss": in_float32(self.criterion.forward)(query, key)})


class MoCo(Pretraining["MoCo.Config", QueueContrast]):
    """Contrasts a view with a queue of keys; both networks averaged. Clients keep their queue."""

    network = QueueContrast
    roles = StateRoles(
        *ONLINE,
        Entry(pattern="target.*", role=Role.AVERAGE, slot="target"),
        Entry(pattern="criterion.memory_bank.*", role=Role.KEEP),
    )

    class Config(FollowedConfig):
        """MoCo's configuration."""

        temperature: PositiveFloat = 0.2
        """τ; 0.07 in the first version."""
        queue_size: PositiveInt = 4096
        """Keys in a client's queue, K, random at first; 65,536 in the paper. If the queue is longer
        than a client's data, its negatives include older keys of the same sample."""
        hidden: PositiveInt = 2048
        projection: PositiveInt = 128
        projector_norm: Literal["none"] = "none"
        """The projector has no BatchNorm."""
        batch_size: Annotated[int, Field(ge=2)] = 256

        def projector(self, width: int) -> nn.Module:
            """Return lightly's head, of two layers."""
            head: nn.Module = MoCoProjectionHead(width, self.hidden, self.projection)
            return head

    def restore(self, module: QueueContrast, kept: Tensors) -> None:
        """Load the client's queue; in its first task it is random."""
        load_tensors(module, kept)

    def keep(self, module: QueueContrast, slots: Slots) -> Tensors:
        """Keep the queue."""
        return self.roles.kept(module)
