"""Small finished runs of the digits, for tests of what is done with a run afterwards."""

from pathlib import Path

from coterie import Federation
from coterie.commands.compose import compose
from coterie.run.federation import RunResult

TINY = (
    "experiment=fedmcc_digits", "cluster=serial", "data.limit=200", "encoder.width=8",
    "encoder.features=16", "method.cluster_heads=2", "method.representation_rounds=2",
    "method.representation_epochs=1", "method.clustering_rounds=2", "method.clustering_epochs=1",
    "evaluation.every=0", "evaluation.figures=false", "evaluation.linear_probe=false",
    "evaluation.knn=false", "evaluation.kmeans_baseline=false", "tracking.progress=none",
)  # fmt: skip
WITHOUT_CLUSTERS = ("method.clustering_rounds=0",)
"""FedMCC without its second stage: its clusters are those of k-means."""


def train(folder: Path, *overrides: str) -> RunResult:
    return Federation(compose(*TINY, *overrides, f"run_dir={folder}")).run()
