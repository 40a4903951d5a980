"""What SimCLR, BYOL and SimSiam share: two views, a projector, the optimiser, FedU's rule.

Tun et al., "Contrastive encoder pre-training-based clustered federated learning for heterogeneous
data" (CP-CFL, section 4), pretrains encoders with them in one place. Lubana et al., "Orchestra:
Unsupervised Federated Learning via Globally Consistent Clustering" (appendix C), has them as
federated baselines: clients with a state, and the divergence-aware update of the predictor of
Zhuang et al., "Collaborative Unsupervised Visual Representation Learning" (FedU).
"""

from typing import Annotated, Any, Literal, TypeVar

import torch
from lightning import LightningModule
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.contract import (
    Entry,
    Rule,
    ServerState,
    Slots,
    Task,
    Tensors,
    load_tensors,
)
from coterie.contract.clusterer import Clusterer, UnitProjection, parameter_dtype
from coterie.gradcache import MicroBatched, Rows
from coterie.networks.heads import PredictionHead, Projector
from coterie.networks.views import batch_views
from modules.averaging import Averaging, AveragingConfig

Views = tuple[Rows, Rows]


class PretrainingConfig(AveragingConfig, MicroBatched):
    """What the pretrainers share; the defaults are CP-CFL's, on one client that has all data."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam (CP-CFL) or SGD with momentum (Orchestra's baselines)."""
    learning_rate: PositiveFloat = 1e-3
    """The optimiser's learning rate."""
    sgd_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """SGD's momentum; Adam has none to set."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """The optimiser's weight decay."""
    hidden: PositiveInt = 512
    """Width of the projector's hidden layer."""
    projection: PositiveInt = 512
    """Width of the projector's output."""
    rounds: PositiveInt = 30
    """Rounds; the optimiser starts afresh in each."""
    epochs: PositiveInt = 10
    """Local epochs a round; 30 rounds of 10 are CP-CFL's 300 epochs."""
    batch_size: Annotated[int, Field(ge=2)] = 500
    """Samples a batch, n."""


class PredictionConfig(PretrainingConfig):
    """What BYOL and SimSiam share: a predictor."""

    bottleneck: PositiveInt = 64
    """Width of the predictor's hidden layer."""
    predictor_threshold: Annotated[float, Field(ge=0.0)] | None = None
    """FedU's rule: a client whose encoder moved at least this far in its last turn goes on with its
    own predictor (0.4 in FedU); by default all take the global one."""


ConfigT = TypeVar("ConfigT", bound=PretrainingConfig)


class Branch(nn.Module):
    """An encoder and a projector on top of it.

    Args:
        task: Shapes and encoder.
        config: The projector's widths.
        batch_norm: Whether the projector's hidden layer is normalised.
    """

    def __init__(self, task: Task, config: PretrainingConfig, *, batch_norm: bool) -> None:
        super().__init__()
        self.encoder = task.encoder.build(task.shape)
        self.width: int = self.encoder.features  # type: ignore[assignment]  # an int, no submodule
        self.projector = Projector(self.width, config.hidden, config.projection, batch_norm)

    def forward(self, samples: Tensor) -> Tensor:
        """Projections (n, projection) of samples."""
        projections: Tensor = self.projector(self.encoder(samples))
        return projections


class TwoViews(LightningModule):
    """An online network that is trained on two views of each sample."""

    def __init__(self, config: PretrainingConfig, task: Task, *, batch_norm: bool) -> None:
        super().__init__()
        self.online = Branch(task, config, batch_norm=batch_norm)
        self.augment = task.augmentation.build(task.shape)
        self.config = config

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam or SGD over everything that takes a gradient."""
        config = self.config
        trained = [p for p in self.parameters() if p.requires_grad]
        rate, decay = config.learning_rate, config.weight_decay
        if config.optimizer == "adam":
            return torch.optim.Adam(trained, lr=rate, weight_decay=decay)
        momentum = config.sgd_momentum
        return torch.optim.SGD(trained, lr=rate, momentum=momentum, weight_decay=decay)

    def on_train_epoch_start(self) -> None:
        """Train mode, whatever the model was used for before."""
        self.train()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw two views of each sample, on the device."""
        whole = self.config.micro_batch_size is None
        return batch_views(self.augment, batch, parameter_dtype(self), whole=whole)


class TwoViewsPredicted(TwoViews):
    """The same with BatchNorm in the projector, and a predictor behind it."""

    config: PredictionConfig

    def __init__(self, config: PredictionConfig, task: Task) -> None:
        super().__init__(config, task, batch_norm=True)
        width, bottleneck = config.projection, config.bottleneck
        self.predictor = PredictionHead(width, bottleneck, width, batch_norm=True)


ModuleT = TypeVar("ModuleT", bound=TwoViews)
PredictedT = TypeVar("PredictedT", bound=TwoViewsPredicted)
PredictionT = TypeVar("PredictionT", bound=PredictionConfig)

ONLINE = (
    Entry(pattern="online.encoder.*", rule=Rule.AVERAGE, slot="encoder"),
    Entry(pattern="online.projector.*", rule=Rule.AVERAGE, slot="projector"),
    Entry(pattern="augment.*", rule=Rule.RESET),
)
PREDICTOR = Entry(pattern="predictor.*", rule=Rule.AVERAGE, slot="predictor")


class Pretraining(Averaging[ConfigT, ModuleT]):
    """A pretrainer: what it leaves behind is the encoder."""

    stage = "representation"

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The global encoder; its projector's outputs are what the losses compare."""
        online = self.global_module(server).online
        return Clusterer(online.encoder, projection=UnitProjection(online.projector))


class PredictedPretraining(Pretraining[PredictionT, PredictedT]):
    """A pretrainer with a predictor, which is averaged, and under FedU's rule kept as well."""

    def restore(self, module: PredictedT, kept: Tensors) -> None:
        """What the client kept replaces the global values."""
        load_tensors(module, kept)

    def keep(self, module: PredictedT, slots: Slots) -> Tensors | None:
        """The entries under `Rule.KEEP`, and by FedU's rule the predictor, for the next turn."""
        kept = self.rules.kept(module)
        threshold = self._config.predictor_threshold
        if threshold is not None and divergence(module, slots["encoder"]) >= threshold:
            kept |= self.rules.slot(module, "predictor")
        return kept or None


def divergence(module: TwoViews, before: Tensors) -> float:
    """How far training has moved the encoder: mean of ‖w − w_before‖₂ over its kernels (FedU).

    Without convolutions it is the mean over the weight matrices; 0 if nothing is trained.

    Args:
        module: The module after training.
        before: The slot "encoder" that training started from.
    """
    named = [(f"online.encoder.{name}", p) for name, p in module.online.encoder.named_parameters()]
    weights = [(n, p) for n, p in named if p.ndim > 2] or [(n, p) for n, p in named if p.ndim == 2]
    moves = [torch.dist(p.detach().cpu(), before[name].to(p.dtype)).item() for name, p in weights]
    return sum(moves) / len(moves) if moves else 0.0
