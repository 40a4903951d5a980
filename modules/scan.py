"""SCAN: a sample and its neighbours get one cluster; then confident samples label themselves.

Van Gansbeke et al., "SCAN: Learning to Classify Images without Labels" (ECCV 2020), federated by
averaging, from a pretrained encoder (`encoder=pretrained encoder.freeze=false`). Each client finds
its samples' neighbours among its own samples, once, and keeps their positions.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Int64
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.clustering.nearest import nearest_others
from coterie.contract import (
    Client,
    Outcome,
    Phase,
    Plan,
    Schedule,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    derive_seed,
    load_slots,
)
from coterie.contract.client import ClientData, batch_seed
from coterie.contract.clusterer import Clusterer, parameter_dtype
from coterie.gradcache import MicroBatched, Terms, Views, gradient_cached, through
from coterie.losses.entropy import cluster_entropy
from coterie.losses.neighbours import neighbour_consistency
from coterie.losses.self_labels import UNSURE, balanced_cross_entropy, self_labels
from coterie.modules.averaging import Averaging, AveragingConfig
from coterie.modules.client_module import ClientModule
from coterie.modules.pretraining import ONLINE, Branch
from coterie.networks.branch import cluster_count
from coterie.networks.views import LazySamples, LazyViews
from coterie.precision import widened

Stage = Literal["clustering", "self-labelling"]
NEIGHBOURS = "neighbours"
METRICS: Mapping[Stage, frozenset[str]] = {
    "clustering": frozenset({"loss", "consistency", "entropy"}),
    "self-labelling": frozenset({"loss", "confident"}),
}


class NeighbourClusters(ClientModule):
    """An encoder, a linear head of one logit per cluster, and the loss of one stage.

    Args:
        stage: The stage.
    """

    config: "SCAN.Config"

    def __init__(self, config: "SCAN.Config", task: Task, stage: Stage) -> None:
        super().__init__(config, task, stage=stage)
        self.stage = stage
        clusters = cluster_count(config.clusters, task)
        self.online = Branch(task, lambda width: nn.Linear(width, clusters))
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)
        self._data: ClientData | None = None

    def start(self, data: ClientData, neighbours: Int64[Tensor, "n k"]) -> None:
        """Set the client's samples, and the positions of each one's neighbours among them."""
        self._data, self._neighbours = data, neighbours

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over all parameters that take a gradient."""
        rate, decay = self.config.learning_rate, self.config.weight_decay
        learned = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.Adam(learned, lr=rate, weight_decay=decay)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw one neighbour of each sample; without a client a sample is its own."""
        batch = super().on_before_batch_transfer(batch, dataloader_idx)
        seed, others = batch_seed(batch), batch["samples"]
        if self._data is not None:
            near = self._neighbours[batch["positions"]]
            draw = torch.Generator().manual_seed(derive_seed(seed, "neighbour"))
            chosen = torch.randint(near.shape[1], (len(near), 1), generator=draw)
            others = self._data.take(near.gather(1, chosen)[:, 0].numpy())
        return {**batch, "seed": seed, NEIGHBOURS: others}

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw a view of each sample, and take one of its neighbour or the sample as it is."""
        dtype = parameter_dtype(self)
        seeds = [derive_seed(batch["seed"], "view", number) for number in range(2)]
        view = LazyViews(self.augment, batch["samples"], seeds[0], dtype)
        other: LazyViews | LazySamples
        if self.stage == "clustering":
            other = LazyViews(self.augment, batch[NEIGHBOURS], seeds[1], dtype)
        else:
            other = LazySamples(batch["samples"], dtype)
        whole = self.config.micro_batch_size is None
        return (view[:], other[:]) if whole else (view, other)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the loss of one batch, and its terms."""
        if self.stage == "self-labelling":
            with torch.no_grad():
                labels = self_labels(through(self.online, views[1]), self.config.threshold)
            loss = balanced_cross_entropy(through(self.online, views[0]), labels)
            confident = (labels != UNSURE).to(loss).mean()
            return self.logged({"loss": loss, "confident": confident})
        anchors, neighbours = (through(self.online, view) for view in views)
        consistency = neighbour_consistency(anchors, neighbours)
        entropy = cluster_entropy(widened(anchors).softmax(dim=1))
        loss = consistency - self.config.entropy_weight * entropy
        return self.logged({"loss": loss, "consistency": consistency, "entropy": entropy})


class SCAN(Averaging["SCAN.Config", NeighbourClusters]):
    """Clusters samples with their neighbours; averaged. Clients keep the neighbours' positions."""

    stage = "clustering"
    scalable = False  # a batch without confident samples trains nothing
    roles = StateRoles(*ONLINE)

    class Config(AveragingConfig, MicroBatched):
        """SCAN's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"labelling_rounds"})

        clusters: PositiveInt | None = None
        """Number of clusters; by default the data's number of classes."""
        neighbours: PositiveInt = 20
        """Neighbours of each sample, K; of clients with fewer other samples all of these."""
        entropy_weight: Annotated[float, Field(ge=0.0)] = 5.0
        """λ of the entropy of the clusters' sizes."""
        threshold: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
        """Probability above which a sample's cluster becomes its label."""
        learning_rate: PositiveFloat = 1e-4
        """Adam's learning rate."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 1e-4
        """Adam's weight decay."""
        rounds: PositiveInt = 10
        """Rounds of clustering; the optimiser starts afresh in each."""
        epochs: PositiveInt = 10
        """Local epochs per round of clustering."""
        batch_size: Annotated[int, Field(ge=2)] = 128
        """Samples per batch of clustering."""
        labelling_rounds: NonNegativeInt = 10
        """Rounds of self-labelling, after those of clustering."""
        labelling_epochs: PositiveInt = 20
        """Local epochs per round of self-labelling."""
        labelling_batch_size: Annotated[int, Field(ge=2)] = 1000
        """Samples per batch of self-labelling."""

    def __init__(self, config: "SCAN.Config", task: Task) -> None:
        super().__init__(config, task)
        stages: tuple[tuple[Stage, int], ...] = (
            ("clustering", config.rounds),
            ("self-labelling", config.labelling_rounds),
        )
        self._schedule = Schedule(stages)
        self.rounds = self._schedule.rounds

    def build(self) -> NeighbourClusters:
        """Return the network and the loss of the first stage."""
        return NeighbourClusters(self._config, self._task, "clustering")

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round of the current stage."""
        phase, stage = super().next(server), self._schedule.at(server.round + 1)
        if phase is None or stage is None:
            return None
        return replace(phase, name=stage, stage=stage, metrics=METRICS[stage])

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train on neighbours, which the client finds in its first task, or on own labels."""
        config, kept = self._config, None
        stage: Stage = "clustering" if phase.stage == "clustering" else "self-labelling"
        module = client.module(stage, lambda: NeighbourClusters(config, self._task, stage))
        load_slots(module, slots)
        plan = Plan(batch_size=config.labelling_batch_size, epochs=config.labelling_epochs)
        if stage == "clustering":
            kept = client.state or self._find(client, module)
            module.start(client.data, kept[NEIGHBOURS])
            plan = Plan(batch_size=config.batch_size, epochs=config.epochs)
        fit = client.fit(module, plan)
        return Outcome(
            up=self.roles.contributions(module, phase.up, weight=len(client.data)),
            state=kept,
            metrics=fit.metrics,
        )

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder, and the head's probabilities."""
        online = self.global_module(server).online
        return Clusterer(online.encoder, nn.Sequential(online.projector, nn.Softmax(dim=1)))

    def _find(self, client: Client, module: NeighbourClusters) -> Tensors:
        """Find the neighbours of the client's samples by the global encoder."""
        points = client.embed(module.online.encoder).double().numpy()
        return {NEIGHBOURS: torch.from_numpy(nearest_others(points, self._config.neighbours))}
