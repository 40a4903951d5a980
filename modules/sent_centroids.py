"""The centroids that a client sends, without those of too few samples."""

from collections.abc import Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from coterie.clustering.kmeans import KMeansResult, counted_means
from coterie.contract import Outcome, Task, fewest

CENTROIDS = "centroids"


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


def withheld(kept: Bool[Tensor, "k"], task: Task) -> str:
    """Return a note on centroids that are not sent; "" if all are."""
    if bool(kept.all()):
        return ""
    return (
        f"it sends {int(kept.sum())} of {len(kept)} centroids; the others have fewer "
        f"samples than privacy.k_anonymity={task.k_anonymity}"
    )
