"""CC and Fed + CC: contrastive clustering, centralised and by federated averaging.

Li et al., "Contrastive Clustering"; baselines of FedMCC, eq. (2). One network sees both views, and
is trained at instance and cluster level at once. Fed + CC averages the encoder and both projectors.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import Entry, Role, ServerState, StateRoles, Task
from coterie.contract.clusterer import Clusterer
from coterie.gradcache import MicroBatched, Terms, Views, gradient_cached, through
from coterie.losses.contrastive import cluster_contrastive_loss, contrastive_loss, nt_xent
from coterie.losses.entropy import cluster_entropy
from coterie.modules.averaging import Averaging, AveragingConfig
from coterie.modules.client_module import ViewPairs
from coterie.networks.branch import ContrastiveBranch, cluster_count

PARTS = ("encoder", "instance", "cluster")
METRICS = frozenset({"loss", "instance", "cluster", "entropy"})


class CCConfig(AveragingConfig, MicroBatched):
    """Options of CC and Fed + CC."""

    clusters: PositiveInt | None = None
    """Number of clusters d2; by default the data's number of classes."""
    form: Literal["cc_code", "paper"] = "cc_code"
    """`cc_code`: symmetric NT-Xent at both levels, no outer ½; `paper`: FedMCC's eq. (2)."""
    include_positive: bool = False
    """Whether ξ includes the positive pair; only for form `paper`, CC's code always includes it."""
    learning_rate: PositiveFloat = 3e-4
    """Adam's learning rate."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Adam's weight decay."""
    instance_temperature: PositiveFloat = 0.5
    """τ_I."""
    cluster_temperature: PositiveFloat = 1.0
    """τ_C."""
    projection: PositiveInt = 128
    """Width of the instance projector's output, d1."""
    hidden: PositiveInt | None = None
    """Width of the heads' hidden layer; by default that of the representation, as in CC."""


class ContrastiveClustering(ViewPairs):
    """One network and the loss of CC over two views."""

    config: CCConfig

    def __init__(self, config: CCConfig, task: Task) -> None:
        super().__init__(config, task)
        clusters = cluster_count(config.clusters, task)
        self.online = ContrastiveBranch(task, config.projection, clusters, config.hidden)
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over all parameters."""
        decay = self.config.weight_decay
        return torch.optim.Adam(self.parameters(), lr=self.config.learning_rate, weight_decay=decay)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the loss of one batch of view pairs, and its terms."""
        (z_a, c_a), (z_b, c_b) = (through(self.project, view) for view in views)
        entropy = cluster_entropy(c_a) + cluster_entropy(c_b)
        instance, cluster = cc_terms(self.config, (z_a, z_b), (c_a, c_b))
        loss = instance + cluster - entropy
        return self.logged(
            {"loss": loss, "instance": instance, "cluster": cluster, "entropy": entropy}
        )

    def project(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return projections and soft assignments of a view."""
        hidden = self.online.encoder(view)
        return self.online.instance(hidden), self.online.cluster(hidden)


def cc_terms(
    config: CCConfig, z: tuple[Tensor, Tensor], c: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the contrastive terms at instance and at cluster level, before the entropy."""
    tau_i, tau_c = config.instance_temperature, config.cluster_temperature
    if config.form == "cc_code":
        return nt_xent(*z, tau_i), nt_xent(c[0].T, c[1].T, tau_c)
    instance = contrastive_loss(*z, tau_i, config.include_positive)
    cluster = cluster_contrastive_loss(*c, tau_c, config.include_positive)
    return 0.5 * instance, 0.5 * cluster


ROLES = StateRoles(
    *(Entry(pattern=f"online.{part}.*", role=Role.AVERAGE, slot=part) for part in PARTS),
    Entry(pattern="augment.*", role=Role.RESET),
)
"""All trained entries are averaged; clients keep nothing."""


class CC(Averaging[CCConfig, ContrastiveClustering]):
    """Contrastive clustering, centralised."""

    vmappable = True
    stage = "joint"
    metrics = METRICS
    network = ContrastiveClustering
    roles = ROLES

    class Config(CCConfig):
        """CC's configuration; 50 rounds of 20 epochs are its 1,000 epochs."""

        rounds: PositiveInt = 50
        epochs: PositiveInt = 20
        batch_size: Annotated[int, Field(ge=2)] = 256

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder and cluster projector."""
        online = self.global_module(server).online
        return Clusterer(online.encoder, online.cluster)


class FedCC(CC):
    """Contrastive clustering; encoder and both heads averaged.

    The loss is CC's in FedMCC's notation, eq. (2).
    """

    vmappable = True

    class Config(CCConfig):
        """Fed + CC's configuration; defaults that FedMCC has too are FedMCC's."""

        form: Literal["cc_code", "paper"] = "paper"
        """`paper`: FedMCC's eq. (2); `cc_code`: symmetric NT-Xent at both levels, no outer ½."""
        rounds: PositiveInt = 100
        epochs: PositiveInt = 5
        batch_size: Annotated[int, Field(ge=2)] = 128
