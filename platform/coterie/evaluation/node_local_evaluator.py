"""Evaluates a run on node-local data, whose clients return only contingency tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from coterie.clustering.contingency import Table
from coterie.config.schema import EvaluationConfig
from coterie.contract.phase import ServerState
from coterie.evaluation.clustering_metrics import clustering_scores
from coterie.evaluation.scorer import FOUND, Evaluation, Scorer
from coterie.execution.backend import Backend
from coterie.execution.node_local_data import Tally
from coterie.execution.packing import pack_server


@dataclass
class NodeLocalEvaluator(Scorer):
    """Scorer of server states by the sum of the clients' contingency tables.

    No samples, embeddings or assignments leave a client, so there are no probes, no k-means and no
    figure of the embedding; a model without clusters has no score.

    Attributes:
        classifies: Whether the model's head predicts classes; the metric then is the accuracy.
        outliers: Whether the model's last cluster is that of outliers, see `Clusterer`.
        sent: Bytes of models sent down and of tables sent up so far.
        missed: Clients that could not be reached so far.
    """

    config: EvaluationConfig
    backend: Backend
    clients: int
    classifies: bool = False
    outliers: bool = False
    sent: int = 0
    missed: tuple[int, ...] = ()

    @property
    def group(self) -> str:
        """The group of the metrics of `quick`."""
        return "train" if self.classifies else "clustering"

    def quick(self, server: ServerState) -> dict[str, float]:
        """Return "acc", "nmi", "ari" and "kappa" on all clients' data; {} without any."""
        return self._scores(sum_tables(self._tallies(server)).get("train"))

    def final(self, server: ServerState) -> Evaluation:
        """Return metrics on the training samples and, if clients have any, the test samples."""
        tallies = self._tallies(server)
        tables = sum_tables(tallies)
        groups = {self.group: "train", "test" if self.classifies else "clustering_test": "test"}
        metrics: dict[str, Mapping[str, float]] = {
            group: self._scores(tables[split]) for group, split in groups.items() if split in tables
        }
        if self.outliers and tallies:
            sizes = np.sum([tally.sizes["train"] for tally in tallies], axis=0)
            metrics["outliers"] = {"share": float(sizes[-1] / sizes.sum())}
            metrics[FOUND] = {"number": len(sizes) - 1.0}
        return Evaluation(
            metrics=metrics,
            embedding=torch.empty(0, 0),
            assignments=None,
            confidence=None,
            table=tables.get("train"),
        )

    def _scores(self, table: Table | None) -> dict[str, float]:
        if table is None or not table.sum():
            return {}
        if self.classifies:
            return {"acc": float(np.trace(table) / table.sum())}
        return clustering_scores(table)

    def _tallies(self, server: ServerState) -> list[Tally]:
        """Return the reachable clients' counts."""
        told = self.backend.tally(server, range(self.clients))
        model = sum(slot.nbytes for slot in pack_server(server).slots.values())
        self.missed += tuple(client for client, tally in enumerate(told) if tally is None)
        self.sent += sum(model + tally.nbytes for tally in told if tally is not None)
        return [tally for tally in told if tally is not None]


def sum_tables(tallies: Sequence[Tally]) -> dict[str, Table]:
    """Add up the clients' tables by split."""
    sums: dict[str, Table] = {}
    for tally in tallies:
        for split, table in tally.tables.items():
            sums[split] = sums[split] + table if split in sums else np.array(table)
    return sums
