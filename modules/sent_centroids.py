"""The centroids that clients send, without those of too few samples, and k-means over them."""

from collections.abc import Mapping

from jaxtyping import Bool, Float, Float32
from torch import Tensor

from coterie.clustering.kmeans import KMeansResult, counted_means, kmeans
from coterie.contract import Outcome, Task, Tensors, concatenated, fewest
from coterie.errors import ConfigError, RunError

CENTROIDS = "centroids"


def check_sizes(sizes: Mapping[int, int], clusters: int) -> None:
    """Check that each client has as many samples as clusters.

    Args:
        sizes: Client to its number of samples.
        clusters: Centroids that a client sends.

    Raises:
        ConfigError: If a client has fewer.
    """
    client, least = min(sizes.items(), key=lambda item: item[1])
    if least < clusters:
        raise ConfigError(
            f"method.clusters={clusters}: client {client} has {least} samples, and each "
            "client mines as many centroids; lower it or choose fewer clients."
        )


def sent_centroids(
    points: Float[Tensor, "n d"],
    found: KMeansResult,
    task: Task,
    metrics: Mapping[str, float] | None = None,
) -> Outcome:
    """Return the gathered centroids, without those of fewer samples than the task's k-anonymity."""
    centroids, sizes = counted_means(points, found)
    kept = task.enough(sizes)
    return Outcome(
        gathered={CENTROIDS: centroids[kept]},
        metrics=metrics or {},
        smallest={CENTROIDS: fewest(sizes[kept])},
        note=withheld(kept, task),
    )


def joined_centroids(
    gathered: Mapping[int, Tensors], clusters: int, task: Task, *, seed: int, restarts: int
) -> Float32[Tensor, "k d"]:
    """Cluster all clients' centroids by k-means.

    Args:
        gathered: Client to what it sent.
        clusters: Number of clusters.
        task: Its k-anonymity is told in the error.
        seed: Seed of k-means.
        restarts: Its starts.

    Raises:
        RunError: If there are fewer centroids than clusters.
    """
    every = concatenated(gathered, CENTROIDS)
    if len(every) < clusters:
        raise RunError(
            f"method.clusters={clusters}: clients sent only {len(every)} centroids "
            f"of privacy.k_anonymity={task.k_anonymity} samples or more; give "
            "clients more samples, or ask for fewer clusters."
        )
    return kmeans(every, clusters, seed=seed, restarts=restarts).centroids


def withheld(kept: Bool[Tensor, "k"], task: Task) -> str:
    """Return a note on centroids that are not sent; "" if all are."""
    if bool(kept.all()):
        return ""
    return (
        f"it sends {int(kept.sum())} of {len(kept)} centroids; the others have fewer "
        f"samples than privacy.k_anonymity={task.k_anonymity}"
    )
