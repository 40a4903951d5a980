"""An encoder with the two projectors of contrastive clustering."""

from torch import nn

from coterie.config.explain import show
from coterie.contract.method import Task
from coterie.errors import ConfigError
from coterie.networks.heads import ClusterHead, ClusterHeads, Projector


class ContrastiveBranch(nn.Module):
    """Encoder f, instance-level projector g_I and cluster-level projector g_C (CC; FedMCC, fig. 2).

    Args:
        projection: Width d1 of the instance projector's output.
        clusters: Number of clusters d2.
        hidden: Width of both projectors' hidden layer; by default that of the representation.
        heads: Cluster-level projectors side by side.
    """

    def __init__(
        self,
        task: Task,
        projection: int,
        clusters: int,
        hidden: int | None = None,
        heads: int = 1,
    ) -> None:
        super().__init__()
        self.encoder = task.encoder.build(task.shape)
        width: int = self.encoder.features  # type: ignore[assignment]  # an int, not a submodule
        self.instance = Projector(width, hidden or width, projection)
        self.cluster: nn.Module = (
            ClusterHead(width, hidden or width, clusters)
            if heads == 1
            else ClusterHeads(width, hidden or width, clusters, heads)
        )


def known_count(configured: int | None, task: Task) -> int | None:
    """Return the configured number of clusters, or else the number of classes; refuse 1."""
    count = configured or task.classes or None
    if count == 1:
        raise ConfigError("method.clusters=1: there is nothing to tell apart; set 2 or more.")
    return count


def cluster_count(configured: int | None, task: Task) -> int:
    """Return the number of clusters: as configured, else the data's number of classes.

    Raises:
        ConfigError: If it is below two, or unknown.
    """
    count = task.classes if configured is None else configured
    if count < 2:
        source = "the data has no classes" if configured is None else "it must be at least 2"
        raise ConfigError(f"method.clusters={show(configured)}: {source}; set it to 2 or more.")
    return count
