"""Names of groups of final metrics, and tables of the metrics that can be compared."""

from collections.abc import Mapping

from coterie.config.record_names import RESERVED

GROUPS = {
    "clustering": "clusters",
    "clustering_test": "clusters, test set",
    "kmeans_raw": "k-means on raw samples",
    "train": "classes, training set",
    "test": "classes, test set",
    "linear": "linear probe",
    "knn": "nearest neighbours",
    "unsupervised": "without labels",
    "local": "clients' own models",
    "holdout": "what clients hold out",
    "outliers": "samples in no cluster",
    "clusters": "clusters that were found",
    "groups": "groups of clients",
}
"""The engine's groups of metrics."""

_COUNTED = ("bytes", "items", "modelled_seconds", "seconds", "participants", "failures", "dropped")
_WORK = ("absent", "stragglers", "epsilon", "set_size", "steps", "time_step")
_NOT_OWN = {*RESERVED, *GROUPS, *_COUNTED, *_WORK, "loss"}

Scores = Mapping[str, float]


def is_own(name: str) -> bool:
    """Return whether a method or module reports a metric itself, by the name's first part."""
    return name.partition("/")[0] not in _NOT_OWN


def group_name(group: str) -> str:
    """Return a group of metrics in words: "kmeans_raw" is "k-means on raw samples"."""
    share = group.removeprefix("labels_")
    return GROUPS.get(group, group if share == group else f"fine-tuned, {share} of labels")


def score_tables(metrics: Mapping[str, Scores]) -> list[dict[str, Scores]]:
    """Return the metrics by row name in tables.

    Clusters, classifiers, then each other group alone.
    """
    clusters: dict[str, Scores] = {}
    classifiers: dict[str, Scores] = {}
    others: list[dict[str, Scores]] = []
    for group, scores in metrics.items():
        if "nmi" in scores:
            clusters[group_name(group)] = scores
        elif "acc" in scores:
            classifiers[group_name(group)] = scores
        elif scores:
            others.append({group_name(group): scores})
    return [table for table in (clusters, classifiers, *others) if table]
