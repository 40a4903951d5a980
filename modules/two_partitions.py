"""Compares two partitions of prototypes by how clearly quadratic classifiers separate them.

A graph's cut follows gaps between clusters wherever they run, and k-means halves the way between
means. Where there are gaps, as among digits, the cut's clusters are the clearer ones; where there
are none, as among representations of photographs, its borders are ragged, and k-means' are not. A
regression on products of features says which, without a label: the mean distance between its
largest and its second value.
"""

from dataclasses import dataclass

from jaxtyping import Int, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.clustering.lattice import nearest
from coterie.clustering.prototypes import margin
from coterie.contract import ServerState, Slots, Tensors
from coterie.modules.exact_sums import PRODUCTS, PROTOTYPES
from coterie.modules.own_labels import TARGETS, started
from coterie.modules.views import WIDE
from coterie.networks.quadratic import QuadraticClassifier, fit_sums, fitted, products_of

MEMBERS, MEANS = "members", "means"


@dataclass(frozen=True)
class Comparison:
    """How clearly quadratic classifiers separate the clusters of both partitions.

    Attributes:
        of_cut: Margin of the cut's clusters; see `clustering.prototypes.margin`.
        of_means: That of k-means' clusters.
        weights: The classifier of the cut's clusters.
        agreement: Share of the samples whose prototypes it gives their own cluster.
    """

    of_cut: float
    of_means: float
    weights: Int64[Tensor, "q k"]
    agreement: float


def label_sums(
    points: Int[Tensor, "n c"], prototypes: Tensors, by_means: Int64[Tensor, "m"]
) -> dict[str, Tensor]:
    """Return sums for classifiers of the cut's labels and of k-means' labels."""
    near = nearest(points, prototypes["points"])
    labels = [each[near] for each in (prototypes[MEMBERS].argmax(dim=1), by_means)]
    leading = products_of(points.shape[1], int(prototypes["counts"].sum()))
    sums = fit_sums(points, labels, prototypes[MEMBERS].shape[1], leading)
    return dict(zip((PRODUCTS, TARGETS), sums, strict=True))


def compared(sums: Tensors, prototypes: Tensors, by_means: Int64[Tensor, "m"]) -> Comparison:
    """Fit quadratic classifiers to both partitions' labels, and compare their margins.

    Args:
        sums: Of `label_sums`, over all samples.
        prototypes: With the cut's clusters.
        by_means: The prototypes' clusters by k-means.
    """
    points, counts, members = (prototypes[name] for name in ("points", "counts", MEMBERS))
    weights = fitted(sums[PRODUCTS], sums[TARGETS])
    values = QuadraticClassifier(weights, points.shape[1]).values(points)
    of_cut, of_means = values.chunk(2, dim=1)
    same = of_cut.argmax(dim=1) == members.argmax(dim=1)
    return Comparison(
        of_cut=margin(of_cut, members, counts),
        of_means=margin(of_means, one_hot(by_means, members.shape[1]).double(), counts),
        weights=weights[:, : members.shape[1]].contiguous(),
        agreement=float(counts[same].sum() / counts.sum()),
    )


def own_from(server: ServerState, prototypes: Tensors, partitions: Int64[Tensor, "s m"]) -> Slots:
    """Return the slots of fits to own labels, which start from partitions of the prototypes.

    Args:
        server: With the wide projection.
        prototypes: Their tensors; the first partition becomes their clusters.
        partitions: The cluster of each prototype, for each start.
    """
    width = server.slots[WIDE]["directions"].shape[1]
    members = one_hot(partitions, prototypes[MEMBERS].shape[1]).double()
    own = started(prototypes["counts"] @ members, width)
    clusters = {**prototypes, MEMBERS: members[0]}
    return {PROTOTYPES: clusters, MEANS: {MEMBERS: partitions}, **own}
