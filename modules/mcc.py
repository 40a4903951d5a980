"""MCC's online and target networks, with the loss of one stage or of both at once.

Miao and Koyuncu, "Federated Momentum Contrastive Clustering", section II-B. Both views of a sample
pass both networks; no gradient reaches the target network, which is an EMA of the online one.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import Task, Tensors, load_tensors
from coterie.gradcache import MicroBatched, Terms, Views, gradient_cached, through
from coterie.losses.contrastive import cluster_contrastive_loss, contrastive_loss
from coterie.losses.entropy import cluster_entropy
from coterie.modules.client_module import ViewPairs
from coterie.networks.branch import ContrastiveBranch, cluster_count
from coterie.networks.ema import update_ema

Stage = Literal["representation", "clustering", "joint"]

PARTS: Mapping[Stage, tuple[str, ...]] = {
    "representation": ("encoder", "instance"),
    "clustering": ("cluster",),
    "joint": ("encoder", "instance", "cluster"),
}
"""The parts that each stage trains; slots of these names are sent back to the server."""

Heads = Sequence[Mapping[str, Any]]
"""The outputs of a network's heads by name, for each view that it saw."""

HEAD_LOSS = "head_loss/"
METRICS = frozenset({"loss", "instance", "cluster", "entropy"})


class MomentumConfig(MicroBatched):
    """Options of MCC and FedMCC; the defaults are the paper's (section IV)."""

    ema: ClassVar[frozenset[str]] = frozenset({"momentum"})

    clusters: PositiveInt | None = None
    """Number of clusters d2; by default the data's number of classes."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Samples per batch, n."""
    learning_rate: PositiveFloat = 3e-4
    """Adam's learning rate."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Adam's weight decay."""
    momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """EMA of the target network, m."""
    instance_temperature: PositiveFloat = 0.5
    """τ_I."""
    cluster_temperature: PositiveFloat = 1.0
    """τ_C."""
    projection: PositiveInt = 128
    """Width of the instance projector's output, d1."""
    hidden: PositiveInt | None = None
    """Width of the heads' hidden layer; by default that of the representation."""
    include_positive: bool = False
    """Whether ξ includes the positive pair, as in CC's code; in eq. (1) and (13) it does not."""
    representations: Literal["two", "four"] = "four"
    """`four` feeds both views to both networks; `two` feeds each view to one (section V)."""
    cluster_heads: Annotated[int, Field(ge=1, le=100)] = 1
    """Cluster projectors trained in parallel, of which the one with the lowest loss is kept (as in
    SCAN): a single one can end in a poor local optimum. The paper has one."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the clients in each round."""
    aggregate_target: bool = False
    """Ablation "update both" (Table VII): average the target network too."""
    restart_target: bool = False
    """The same ablation as FedU and FedEMA define it: in each round the target network starts as
    the global online network, and clients keep nothing."""

    @property
    def keeps_target(self) -> bool:
        """Whether clients keep a target network of their own."""
        return not (self.aggregate_target or self.restart_target)


class MomentumContrast(ViewPairs):
    """The online and the target network of one client, and the loss of one stage.

    Args:
        stage: The stage, which says what terms of eq. (6) are optimised.
    """

    config: MomentumConfig

    def __init__(self, config: MomentumConfig, task: Task, stage: Stage) -> None:
        super().__init__(config, task, stage=stage)
        clusters = cluster_count(config.clusters, task)
        sizes = (config.projection, clusters, config.hidden, config.cluster_heads)
        self.online = ContrastiveBranch(task, *sizes)
        self.target = ContrastiveBranch(task, *sizes)
        self.target.load_state_dict(self.online.state_dict())
        self.augment = task.augmentation.build(task.shape)
        self.stage = stage
        self.requires_grad_(False)
        for part in PARTS[stage]:
            self.online.get_submodule(part).requires_grad_(True)
        self.to(task.dtype)

    def start_target(self, kept: Tensors) -> None:
        """Set the target: at first the global model, later the one that the client kept."""
        self.target.load_state_dict(self.online.state_dict())
        load_tensors(self, kept)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the parts that the stage trains."""
        trained = [p for p in self.parameters() if p.requires_grad]
        decay = self.config.weight_decay
        return torch.optim.Adam(trained, lr=self.config.learning_rate, weight_decay=decay)

    def on_train_epoch_start(self) -> None:
        """Switch both networks to train mode; a frozen encoder stays in eval mode."""
        super().on_train_epoch_start()
        if self.stage == "clustering":
            self.online.encoder.eval()

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the stage's loss of one batch of view pairs, and its terms."""
        # Section V's ablation: the online network sees view a only, the target network view b.
        two = self.config.representations == "two"
        to_online, to_target = (views[:1], views[1:]) if two else (views, views)
        if self.stage == "clustering" and not two:  # the frozen encoder sees each view once
            online, target = zip(*(through(self.project_both, v) for v in views), strict=True)
        else:
            online = tuple(through(self.project, v, self.online) for v in to_online)
            with torch.no_grad():
                target = tuple(through(self.project, v, self.target) for v in to_target)
        zero = torch.zeros((), device=self.device)
        terms = {"instance": zero, "cluster": zero, "entropy": zero}
        if self.stage != "clustering":
            terms["instance"] = self._instance_loss(online, target)
        if self.stage != "representation":
            terms |= self._cluster_loss(online, target)
        loss = terms["instance"] + terms["cluster"] - terms["entropy"]
        return self.logged({"loss": loss, **terms})

    def project(self, view: Tensor, network: ContrastiveBranch) -> dict[str, Any]:
        """Return a network's projections of a view by the heads that the stage trains."""
        # Stage 2's frozen global encoder serves both networks (Algorithm 2).
        encoder = (self.online if self.stage == "clustering" else network).encoder
        return self._project(network, encoder(view))

    def project_both(self, view: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return both networks' projections of the frozen encoder's representations."""
        hidden = self.online.encoder(view)
        online = self._project(self.online, hidden)
        with torch.no_grad():
            return online, self._project(self.target, hidden)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update P_T ← m P_T + (1 − m) P_O for the parts that the stage trains."""
        for part in PARTS[self.stage]:
            target, online = self.target.get_submodule(part), self.online.get_submodule(part)
            update_ema(target, online, self.config.momentum)

    def _project(self, network: ContrastiveBranch, hidden: Tensor) -> dict[str, Any]:
        heads = [part for part in PARTS[self.stage] if part != "encoder"]
        projected = {head: network.get_submodule(head)(hidden) for head in heads}
        if "cluster" in projected and self.config.cluster_heads > 1:
            projected["cluster"] = projected["cluster"].unbind()
        return projected

    def _instance_loss(self, online: Heads, target: Heads) -> Tensor:
        """Return L_I of eq. (8)."""
        z_online, z_target = ([view["instance"] for view in net] for net in (online, target))
        tau, positive = self.config.instance_temperature, self.config.include_positive
        loss = contrastive_loss(z_online[0], z_target[-1], tau, positive)
        if self.config.representations == "two":
            return loss
        return 0.5 * (loss + contrastive_loss(z_target[0], z_online[-1], tau, positive))

    def _cluster_loss(self, online: Heads, target: Heads) -> dict[str, Tensor]:
        """Return L_C of eq. (9), the mean over cluster projectors if there are several."""
        c_online, c_target = ([view["cluster"] for view in net] for net in (online, target))
        heads = self.config.cluster_heads
        if heads == 1:
            cluster, entropy = self._one_cluster_loss(c_online, c_target)
            return {"cluster": cluster, "entropy": entropy}
        every = [
            self._one_cluster_loss([c[i] for c in c_online], [c[i] for c in c_target])
            for i in range(heads)
        ]
        own = {f"{HEAD_LOSS}{i}": loss - entropy for i, (loss, entropy) in enumerate(every)}
        cluster, entropy = (torch.stack(term).mean() for term in zip(*every, strict=True))
        return {"cluster": cluster, "entropy": entropy, **own}

    def _one_cluster_loss(
        self, c_online: Sequence[Tensor], c_target: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return L and H of eq. (9); the caller subtracts H, as the printed sum would collapse."""
        tau, positive = self.config.cluster_temperature, self.config.include_positive
        entropy = torch.stack([cluster_entropy(c) for c in (*c_online, *c_target)]).sum()
        loss = cluster_contrastive_loss(c_online[0], c_target[-1], tau, positive)
        if self.config.representations == "four":
            other = cluster_contrastive_loss(c_target[0], c_online[-1], tau, positive)
            loss = 0.5 * (loss + other)
        return loss, entropy
