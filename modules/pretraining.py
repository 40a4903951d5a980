"""The base of methods that learn from two views: projector, predictor, optimiser, FedU's rule.

Tun et al., "Contrastive encoder pre-training-based clustered federated learning for heterogeneous
data" (CP-CFL, section 4), pretrains encoders with SimCLR, BYOL and SimSiam centrally. Lubana et
al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering" (appendix C),
uses them as federated baselines: stateful clients, and the divergence-aware update of the predictor
of Zhuang et al., "Collaborative Unsupervised Visual Representation Learning" (FedU).
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.config.method import MethodConfig
from coterie.contract import Entry, Role, ServerState, Slots, Task, Tensors, load_tensors
from coterie.contract.clusterer import Clusterer, UnitProjection
from coterie.gradcache import MicroBatched
from coterie.modules.averaging import Averaging, AveragingConfig, scaled_rate, sgd_or_adam
from coterie.modules.client_module import ViewPairs
from coterie.networks.ema import update_ema
from coterie.networks.heads import Projector, ProjectorNorm


class PretrainingConfig(AveragingConfig, MicroBatched):
    """Options of all pretrainers; the defaults are CP-CFL's, for one client with all data."""

    optimizer: Literal["adam", "sgd", "adamw"] = "adam"
    """Adam (CP-CFL), SGD with momentum (Orchestra's baselines) or AdamW."""
    learning_rate: PositiveFloat = 1e-3
    """The optimiser's learning rate."""
    base_participation: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """ρ for which `learning_rate` was tuned: ρ_new takes η·√(ρ_new/ρ), as in Orchestra's paper."""
    sgd_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """SGD's momentum; Adam ignores it."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """The optimiser's weight decay."""
    hidden: PositiveInt = 512
    """Width of the projector's hidden layer."""
    projection: PositiveInt = 512
    """Width of the projector's output."""
    projector_norm: ProjectorNorm = "none"
    """BatchNorm in the projector: `none`, `hidden` after its first layer, or `all`, where one
    without parameters also follows the last layer, as in SimSiam and Orchestra's code."""
    rounds: PositiveInt = 30
    epochs: PositiveInt = 10
    """Local epochs per round; 30 rounds of 10 are CP-CFL's 300 epochs."""
    batch_size: Annotated[int, Field(ge=2)] = 500

    def projector(self, width: int) -> nn.Module:
        """Return the projector on top of an encoder of this width."""
        return Projector(width, self.hidden, self.projection, self.projector_norm)


class CrossSilo(MethodConfig):
    """Defaults of the federated pretrainers: the cross-silo setting of Orchestra's baselines."""

    optimizer: Literal["adam", "sgd"] = "sgd"
    """SGD with momentum (Orchestra's baselines) or Adam (CP-CFL)."""
    learning_rate: PositiveFloat = 0.03
    """The optimiser's learning rate; across devices 0.003 for SimCLR, 0.01 for BYOL and SimSiam."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 1e-4
    """The optimiser's weight decay."""
    rounds: PositiveInt = 100
    """Rounds; the optimiser starts afresh in each."""
    epochs: PositiveInt = 10
    """Local epochs per round."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Samples per batch, n; 16 across devices."""


class FollowedConfig(PretrainingConfig):
    """Options of methods with a target network."""

    ema: ClassVar[frozenset[str]] = frozenset({"momentum"})

    momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """EMA of the target network."""


class PredictorConfig(PretrainingConfig):
    """Options of methods with a predictor."""

    projector_norm: ProjectorNorm = "hidden"
    """BatchNorm in the projector: `none`, `hidden` after its first layer, or `all`, where one
    without parameters also follows the last layer, as CP-CFL has it for BYOL."""
    bottleneck: PositiveInt = 64
    """Width of the predictor's hidden layer."""


class PredictionConfig(PredictorConfig):
    """Options of BYOL and SimSiam: a predictor that a client may keep."""

    predictor_threshold: Annotated[float, Field(ge=0.0)] | None = None
    """FedU's rule: a client whose encoder moved at least this far in its last task keeps its own
    predictor (0.4 in FedU); by default all clients take the global one."""


ConfigT = TypeVar("ConfigT", bound=PretrainingConfig)


class Branch(nn.Module):
    """An encoder and a projector on top of it.

    Args:
        projector: Builds the projector from the encoder's width.
    """

    def __init__(self, task: Task, projector: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.encoder = task.encoder.build(task.shape)
        width: int = self.encoder.features  # type: ignore[assignment]  # an int, no submodule
        self.projector = projector(width)

    def forward(self, samples: Tensor) -> Tensor:
        """Return projections (n, projection) of samples."""
        projections: Tensor = self.projector(self.encoder(samples))
        return projections


class TwoViews(ViewPairs):
    """An online network that is trained on two views of each sample."""

    config: PretrainingConfig

    def __init__(self, config: PretrainingConfig, task: Task) -> None:
        super().__init__(config, task)
        self.online = Branch(task, config.projector)
        self.augment = task.augmentation.build(task.shape)
        self.learning_rate = scaled_rate(
            config.learning_rate, config.participation, config.base_participation
        )
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam or SGD over the parameters that take a gradient."""
        return sgd_or_adam(self, self.learning_rate, self.config.sgd_momentum)


class Followed(TwoViews):
    """An online network with a target, which follows it by EMA without gradients."""

    config: FollowedConfig

    def __init__(self, config: FollowedConfig, task: Task) -> None:
        super().__init__(config, task)
        self.target = Branch(task, config.projector)
        self.start_target()
        self.target.requires_grad_(False)
        self.to(task.dtype)

    def start_target(self) -> None:
        """Copy the online network into the target."""
        self.target.load_state_dict(self.online.state_dict())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the target's parameters, ξ ← m ξ + (1 − m) θ, but not its running statistics."""
        update_ema(self.target, self.online, self.config.momentum)


class TwoViewsPredicted(TwoViews):
    """An online network, trained on two views, with a predictor that has BatchNorm."""

    config: PredictorConfig

    def __init__(self, config: PredictorConfig, task: Task) -> None:
        super().__init__(config, task)
        width, bottleneck = config.projection, config.bottleneck
        self.predictor = Projector(width, bottleneck, width, "hidden")
        self.to(task.dtype)


ModuleT = TypeVar("ModuleT", bound=TwoViews)
PredictedT = TypeVar("PredictedT", bound=TwoViewsPredicted)
PredictionT = TypeVar("PredictionT", bound=PredictionConfig)

ONLINE = (
    Entry(pattern="online.encoder.*", role=Role.AVERAGE, slot="encoder"),
    Entry(pattern="online.projector.*", role=Role.AVERAGE, slot="projector"),
    Entry(pattern="augment.*", role=Role.RESET),
)
PREDICTOR = Entry(pattern="predictor.*", role=Role.AVERAGE, slot="predictor")


class Pretraining(Averaging[ConfigT, ModuleT]):
    """A pretrainer, whose result is the encoder."""

    stage = "representation"

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder, with the projector's outputs, which the losses compare."""
        online = self.global_module(server).online
        return Clusterer(online.encoder, projection=UnitProjection(online.projector))


class PredictedPretraining(Pretraining[PredictionT, PredictedT]):
    """A pretrainer with a predictor, which is averaged, and by FedU's rule also kept by clients."""

    def restore(self, module: PredictedT, kept: Tensors) -> None:
        """Load what the client kept over the global values."""
        load_tensors(module, kept)

    def keep(self, module: PredictedT, slots: Slots) -> Tensors | None:
        """Return the entries under `Role.KEEP` and, by FedU's rule, the predictor."""
        kept = self.roles.kept(module)
        threshold = self._config.predictor_threshold
        if threshold is not None and divergence(module, slots["encoder"]) >= threshold:
            kept |= self.roles.slot(module, "predictor")
        return kept or None


def divergence(module: TwoViews, before: Tensors) -> float:
    """Return how far training moved the encoder: mean ‖w − w_before‖₂ over its kernels (FedU).

    As in the authors' code, kernels of shortcuts (`downsample`) do not count. Without convolutions
    it is the mean over the weight matrices; 0 if nothing is trained.

    Args:
        module: The module after training.
        before: The entries of the encoder before training, as in the slot "encoder".
    """
    named = [(f"online.encoder.{name}", p) for name, p in module.online.encoder.named_parameters()]
    kernels = [(n, p) for n, p in named if p.ndim > 2 and ".downsample." not in n]
    weights = kernels or [(n, p) for n, p in named if p.ndim == 2]
    moves = [torch.dist(p.detach().cpu(), before[name].to(p.dtype)).item() for name, p in weights]
    return sum(moves) / len(moves) if moves else 0.0
