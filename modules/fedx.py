"""FedX: contrast and relations within a client's model, and between it and the global one.

Han et al., "FedX: Unsupervised Federated Learning with Cross Knowledge Distillation" (ECCV 2022):
local distillation between two views, and global distillation from the frozen global model, each by
a contrastive and a relational loss.
"""

from copy import deepcopy
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import Client, Entry, Outcome, Phase, Role, Slots, StateRoles, Task, Tensors
from coterie.contract.client import ClientData, batch_seed
from coterie.contract.clusterer import parameter_dtype
from coterie.contract.seeds import derive_seed
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.losses.contrastive import nt_xent
from coterie.losses.relational import relational_loss
from coterie.modules.pretraining import (
    ONLINE,
    PREDICTOR,
    CrossSilo,
    Pretraining,
    PretrainingConfig,
    TwoViews,
)
from coterie.networks.heads import Projector
from coterie.networks.views import LazyViews


class CrossDistillation(TwoViews):
    """Encoder, projector and predictor, beside the frozen global network."""

    frozen = ("global_model",)
    config: "FedX.Config"

    def __init__(self, config: "FedX.Config", task: Task) -> None:
        super().__init__(config, task)
        self.predictor = Projector(config.projection, config.hidden, config.projection)
        self.global_model = deepcopy(self.online).requires_grad_(False)
        self.data: ClientData | None = None
        self.to(task.dtype)

    def start_world(self) -> None:
        """Copy the online network into the global one."""
        self.global_model.load_state_dict(self.online.state_dict())

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw as many other samples of the client as the batch has, uniformly.

        Under a plain Trainer they are the batch's own.
        """
        batch = super().on_before_batch_transfer(batch, dataloader_idx)
        data, seed = self.data or ClientData.of_batch(batch), batch_seed(batch)
        draw = torch.Generator().manual_seed(derive_seed(seed, "others"))
        drawn = torch.randint(len(data), (len(batch["samples"]),), generator=draw)
        return {**batch, "seed": seed, "others": data.take(drawn.numpy())}

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw two views of each sample, and one of each other sample."""
        seed = derive_seed(batch["seed"], "view", 2)
        others = LazyViews(self.augment, batch["others"], seed, parameter_dtype(self))
        whole = self.config.micro_batch_size is None
        return *super().on_after_batch_transfer(batch, 0), others[:] if whole else others

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the sum of all four losses of one batch, and both relational ones."""
        _, b, others = views
        (z_a, p_a), (z_b, p_b), (z_others, _) = (through(self.project, view) for view in views)
        global_b, global_others = (through(self.global_model, view) for view in (b, others))
        tau, target = self.config.temperature, self.config.target_temperature
        contrast = nt_xent(z_a, z_b, tau) + nt_xent(p_a, global_b, tau)
        local = relational_loss(z_a, z_b, z_others, tau, target)
        far = relational_loss(p_a, p_b, global_others, tau, target)
        loss = contrast + local + far
        return self.logged({"loss": loss, "contrast": contrast, "relation": local + far})

    def project(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return projections and predictions of a view."""
        z = self.online(view)
        return z, self.predictor(z)


class FedX(Pretraining["FedX.Config", CrossDistillation]):
    """Contrast and relations between two views, and between the local and the global network.

    Clients keep nothing.
    """

    metrics = frozenset({"loss", "contrast", "relation"})
    network = CrossDistillation
    roles = StateRoles(*ONLINE, PREDICTOR, Entry(pattern="global_model.*", role=Role.RESET))

    class Config(CrossSilo, PretrainingConfig):
        """FedX's configuration; the defaults are its code's for CIFAR-10."""

        temperature: PositiveFloat = 0.1
        """τ of all four losses."""
        target_temperature: PositiveFloat = 0.1
        """τ' of the mean to which the relational losses pull both views."""
        learning_rate: PositiveFloat = 0.01
        """The optimiser's learning rate."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 1e-5
        hidden: PositiveInt = 256
        """Width of the hidden layers of projector and predictor."""
        projection: PositiveInt = 256
        """Width of the outputs of projector and predictor."""
        batch_size: Annotated[int, Field(ge=2)] = 64
        """Samples per batch, n; as many others are drawn for the relational losses."""

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train from the global model, with other samples of the same client."""
        client.module(self.stage, self.build).data = client.data
        return super().client(client, phase, slots)

    def restore(self, module: CrossDistillation, kept: Tensors) -> None:
        """Set the frozen network to the global one."""
        module.start_world()
