"""Orchestra's online and target networks, its loss, and the memory of a task's projections.

Orchestra, section 4 and algorithm 1.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.config.method import MethodConfig
from coterie.contract import Task
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import Prediction, parameter_dtype, to_unit
from coterie.gradcache import UNCOUPLED, Terms
from coterie.modules.averaging import scaled_rate
from coterie.modules.client_module import ClientModule
from coterie.modules.pretraining import Branch
from coterie.modules.rotation import TURNS, check_rotatable, drawn_turns, rotated
from coterie.networks.ema import update_ema
from coterie.networks.views import two_views
from coterie.precision import cross_entropy, in_float32, unit_rows


class OrchestraConfig(MethodConfig):
    """Options of a client's training; defaults are the paper's for 100 devices (appendix C)."""

    absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": UNCOUPLED}
    ema: ClassVar[frozenset[str]] = frozenset({"momentum"})

    batch_size: Annotated[int, Field(ge=2)] = 16
    """Samples per batch."""
    learning_rate: PositiveFloat = 0.003
    """SGD's learning rate η; 0.01 with 10 silos."""
    base_participation: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Participation ρ that `learning_rate` was tuned for: another ρ_new scales it by √(ρ_new/ρ)
    (appendix C.4). By default it is not scaled."""
    sgd_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """SGD's momentum; its buffer starts at zero in each task of a client."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 1e-4
    """SGD's weight decay."""
    momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.996
    """EMA of the target network, m; 0.99 with 10 silos. With 0 the target equals the online network
    after each step: "no target model" of table 6."""
    temperature: PositiveFloat = 0.1
    """Temperature of the softmax over the global centroids."""
    teacher_view: Literal["augmented", "plain"] = "augmented"
    """Input of the target network and of the rotations: `augmented`, a separate view, as in
    Orchestra's code; `plain`, the sample itself, as in algorithm 1."""
    rotation_task: bool = True
    """Whether the student also learns to predict rotations; without it (table 6) only `momentum`
    and the clusters' balance prevent collapse."""
    projection: PositiveInt = 512
    """Width of the projector's output."""
    hidden: PositiveInt = 512
    """Width of the projector's hidden layer."""
    global_clusters: Annotated[int, Field(ge=2)] = 32
    """Number of global clusters G, a few times the number of classes; 256 for CIFAR-100."""
    memory: Annotated[int, Field(ge=2)] = 128
    """Number of the target's last projections that a client clusters."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the clients in each round, ρ."""


def projected_encoder(task: Task, hidden: int, projection: int) -> Branch:
    """Return an encoder and a projector, whose output is not normalised to unit length.

    The projector ends in a BatchNorm without parameters, as in Orchestra's code: projections that
    are not centred lie in a narrow cone, where Sinkhorn cannot separate clusters.
    """
    return Branch(
        task,
        lambda width: nn.Sequential(
            nn.Linear(width, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, projection, bias=False),
            nn.BatchNorm1d(projection, affine=False),
        ),
    )


class GlobalClusters(nn.Module):
    """Head that maps representations to unit projections and global clusters' probabilities."""

    centroids: Tensor

    def __init__(self, projector: nn.Module, centroids: Tensor, temperature: float) -> None:
        super().__init__()
        self.projector, self.temperature = projector, temperature
        self.register_buffer("centroids", centroids)

    def forward(self, representations: Tensor) -> Prediction:
        """Map (n, features) to projections (n, projection) and probabilities (n, G)."""
        z = unit_rows(self.projector(representations))
        return Prediction(z, cluster_logits(z, self.centroids, self.temperature).softmax(dim=1))


class OrchestraModel(ClientModule):
    """The online and the target network of one client, and the loss of eq. (3) and (4).

    Attributes:
        centroids: The global centroids (G, projection), unit rows; clients do not train them.
        memory: The target's last projections (memory, projection), unit rows, newest first.
        remembered: Positions of their samples in the client's data, int64 (memory,); −1 in rows
            that are not written yet.
    """

    config: OrchestraConfig
    centroids: Tensor
    memory: Tensor
    remembered: Tensor

    def __init__(self, config: OrchestraConfig, task: Task) -> None:
        super().__init__(config, task)
        check_rotatable(task.shape, "Orchestra")
        widths = config.hidden, config.projection
        self.online, self.target = (projected_encoder(task, *widths) for _ in range(2))
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.rotation = nn.Linear(config.projection, TURNS)
        drawn = torch.randn(config.global_clusters, config.projection)
        self.register_buffer("centroids", unit_rows(drawn))
        self.register_buffer("memory", torch.zeros(config.memory, config.projection))
        self.register_buffer("remembered", torch.full((config.memory,), -1))
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD over the online network and the rotation head."""
        config = self.config
        return torch.optim.SGD(
            [p for p in self.parameters() if p.requires_grad],
            lr=scaled_rate(config.learning_rate, config.participation, config.base_participation),
            momentum=config.sgd_momentum,
            weight_decay=config.weight_decay,
        )

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw the teacher's and the student's view, and rotate each of the teacher's images."""
        samples, seed, dtype = batch["samples"], batch_seed(batch), parameter_dtype(self)
        teacher, student = two_views(self.augment, samples, seed, dtype)
        if self.config.teacher_view == "plain":
            teacher = to_unit(samples, dtype)
        turns = drawn_turns(len(samples), seed).to(teacher.device)
        return teacher, student, rotated(teacher, turns), turns, batch["positions"]

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Terms:
        """Return the loss of one batch, and its terms."""
        teacher, student, turned, turns, positions = batch
        with torch.no_grad():
            z = self.remember(teacher, positions)
            wanted = self._logits(z).softmax(dim=1)
        z = unit_rows(self.online(student))
        # Eq. (4); algorithm 1 prints a minus before H, which is already positive.
        cluster = cross_entropy(self._logits(z), wanted)
        if not self.config.rotation_task:
            return self.logged({"loss": cluster, "cluster": cluster})
        # Eq. (3) prints an accuracy; the cross-entropy is meant.
        rotation = cross_entropy(self.rotation(self.online(turned)), turns)
        loss = cluster + rotation
        return self.logged({"loss": loss, "cluster": cluster, "rotation": rotation})

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update T ← m T + (1 − m) O."""
        update_ema(self.target, self.online, self.config.momentum)

    @torch.no_grad()
    def remember(self, views: Tensor, positions: Tensor) -> Tensor:
        """Project views with the target network, and put the projections into the memory.

        Returns:
            Unit projections (batch, projection).
        """
        z = unit_rows(self.target(views))
        size = len(self.memory)
        kept = torch.cat([z.flip(0).to(self.memory.dtype), self.memory])
        self.memory.copy_(kept[:size])
        self.remembered.copy_(torch.cat([positions.flip(0), self.remembered])[:size])
        return z

    def recollect(self) -> Tensor:
        """Return the written rows of the memory, only the newest of each sample, on the CPU."""
        newest: dict[int, int] = {}
        for row, position in enumerate(self.remembered.tolist()):
            newest.setdefault(position, row)
        newest.pop(-1, None)
        return self.memory[list(newest.values())].detach().cpu()

    def _logits(self, z: Tensor) -> Tensor:
        return cluster_logits(z, self.centroids, self.config.temperature)


@in_float32
def cluster_logits(z: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """Return similarities (n, G) of unit rows z (n, d) and unit centroids, over the temperature."""
    return z @ centroids.T / temperature
