"""CCFC's and SCFC's network and loss, in stages that compare samples or clusters.

CCFC, section 3. The local network is trained beside the frozen global one, and a term keeps it
near.
"""

from collections import OrderedDict
from copy import deepcopy
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize

from coterie.clustering.kmeans import Metric, nearest_centroids
from coterie.contract import Task, Tensors, load_optimizer, optimizer_tensors
from coterie.contract.clusterer import parameter_dtype
from coterie.gradcache import MicroBatched, Terms, Views, gradient_cached, through
from coterie.losses.cosine import Pairs, cluster_contrast, negative_cosine
from coterie.modules.client_module import ViewPairs
from coterie.networks.branch import cluster_count
from coterie.networks.heads import Projector
from coterie.networks.views import LazySamples

Stage = Literal["samples", "clusters"]
"""The loss compares two views of a sample (SimSiam, SCFC), or the samples of a cluster (CCFC)."""

METRICS = frozenset({"loss", "contrast", "model"})


class SiameseConfig(MicroBatched):
    """Options of CCFC and SCFC; where the paper is silent, defaults of its code for MNIST."""

    clusters: PositiveInt | None = None
    """Number of clusters k, per client and globally; by default the data's number of classes."""
    model_weight: Annotated[float, Field(ge=0.0)] = 0.001
    """λ of the model-contrastive term: 0.001 for MNIST, 1 for Fashion-MNIST, 0.1 for CIFAR-10 and
    STL-10. 0 is the ablation † (Table 3)."""
    alone: NonNegativeInt | None = None
    """Ablation ‡ (Table 3): this client trains and clusters alone, without the term R."""
    alone_from: PositiveInt = 1
    """First round in which `alone` trains alone; before it all clients do, without the term R."""
    metric: Literal["euclidean", "cosine"] = "euclidean"
    """Distance to centroids: Euclidean, eq. (3), or the cosine between representations of unit
    length, as in the authors' code."""
    initial: Literal["common", "independent"] = "common"
    """Where clients start round 1: from the global network, or from their own random weights, whose
    average is the global network of round 2, as in the authors' code."""
    projection: PositiveInt = 256
    """Width of the projector's output z, which is clustered; 64 for Fashion-MNIST."""
    hidden: PositiveInt = 256
    """Width of the projector's hidden layer."""
    bottleneck: PositiveInt = 16
    """Width of the predictor's hidden layer."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's learning rate."""
    keep_optimizer: bool = False
    """Whether a client keeps Adam's moments between rounds of a stage, as in the authors' code, or
    else Adam starts afresh in each round."""
    restarts: PositiveInt = 10
    """Restarts of each k-means; the best result counts."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the clients in each round."""
    epochs: PositiveInt = 1
    """Local epochs per round."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Samples per batch."""


class SiameseNetwork(nn.Module):
    """Encoder f (backbone and projector) and predictor h, both with BatchNorm.

    The projector ends in a BatchNorm without parameters, as in SimSiam.
    """

    def __init__(self, config: SiameseConfig, task: Task) -> None:
        super().__init__()
        backbone = task.encoder.build(task.shape)
        width: int = backbone.features  # type: ignore[assignment]  # an int, not a submodule
        projector = nn.Sequential(
            Projector(width, config.hidden, config.projection, "hidden"),
            nn.BatchNorm1d(config.projection, affine=False),
        )
        self.encoder = nn.Sequential(OrderedDict(backbone=backbone, projector=projector))
        sizes = (config.projection, config.bottleneck, config.projection)
        self.predictor = Projector(*sizes, "hidden")

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return representations z and predictions p of samples in [0, 1], both (n, projection)."""
        z = self.encoder(samples)
        return z, self.predictor(z)


class ClusterSiamese(ViewPairs):
    """The local network w^l, the frozen global one w^g, and the loss of one stage.

    Args:
        stage: The stage, which says what term is added to the model-contrastive one.
        pairs: The pairs of a cluster's samples that count, in stage "clusters".
    """

    frozen = ("global_model",)
    centroids: Tensor
    config: SiameseConfig

    def __init__(
        self, config: SiameseConfig, task: Task, stage: Stage, pairs: Pairs = "exclude_self"
    ) -> None:
        super().__init__(config, task, stage=stage, pairs=pairs)
        self.stage, self.pairs = stage, pairs
        self.model_weight = 0.0 if config.alone is not None else config.model_weight
        self.online = SiameseNetwork(config, task)
        self.global_model = deepcopy(self.online).requires_grad_(False)
        count = cluster_count(config.clusters, task)
        self.register_buffer("centroids", torch.zeros(count, config.projection))
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)
        self._remembered: Tensors = {}
        self._adam: torch.optim.Adam | None = None

    def start(self, remembered: Tensors) -> None:
        """Copy the local network into the global one, and load Adam's remembered state."""
        self.global_model.load_state_dict(self.online.state_dict())
        self._remembered = remembered

    def remember(self) -> dict[str, Tensor]:
        """Return Adam's state after training."""
        return {} if self._adam is None else optimizer_tensors(self.online, self._adam)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the local network."""
        self._adam = torch.optim.Adam(self.online.parameters(), lr=self.config.learning_rate)
        load_optimizer(self.online, self._adam, self._remembered)
        return self._adam

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw two views of each sample in stage "samples", or else take the samples themselves."""
        if self.stage == "samples":
            return super().on_after_batch_transfer(batch, dataloader_idx)
        samples = LazySamples(batch["samples"], parameter_dtype(self))
        return (samples[:] if self.config.micro_batch_size is None else samples,)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return eq. (4) of a batch, or SCFC's loss of a batch of view pairs, and its two terms."""
        local = [through(self.online, view) for view in views]
        global_model = [through(self.global_model, view) for view in views]
        if self.stage == "samples":
            contrast = self._sample_contrast(local)
        else:
            contrast = self._cluster_contrast(local[0], global_model[0][0])
        matches = [
            negative_cosine(p, q) for (_, p), (_, q) in zip(local, global_model, strict=True)
        ]
        model = torch.stack(matches).mean()
        loss = contrast + self.model_weight * model
        return self.logged({"loss": loss, "contrast": contrast, "model": model})

    def _sample_contrast(self, local: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return SimSiam's loss, the mean of both directions."""
        (z_a, p_a), (z_b, p_b) = local
        return 0.5 * (negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a))

    def _cluster_contrast(self, local: tuple[Tensor, Tensor], z_world: Tensor) -> Tensor:
        """Return eq. (2), between samples with the same nearest global centroid, eq. (3).

        The global network does not change in a task, so a sample's label does not either. It comes
        from the forward pass that R needs anyway.
        """
        z, p = local
        labels = nearest_centroids(z_world, self.centroids, self.config.metric)
        return cluster_contrast(p, z, labels, len(self.centroids), self.pairs)


def in_metric(points: Tensor, metric: Metric) -> Tensor:
    """Return representations as k-means takes them: at unit length for "cosine"."""
    return normalize(points, dim=1) if metric == "cosine" else points
