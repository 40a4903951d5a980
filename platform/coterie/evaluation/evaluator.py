"""Scores server states: predicts on the backend, then calls pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coterie.clustering.contingency import contingency
from coterie.config.schema import EvaluationConfig
from coterie.contract.clusterer import Prediction, most_probable
from coterie.contract.data import DataArrays, Indices
from coterie.contract.metric import Metric
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.errors import ContractError
from coterie.evaluation.classification_metrics import classification_scores
from coterie.evaluation.cluster_assignment import assign_clusters
from coterie.evaluation.clustering_metrics import clustering_scores
from coterie.evaluation.custom_metrics import own_scores
from coterie.evaluation.label_distribution import class_spread, classes_held
from coterie.evaluation.local_test_sets import LocalTestEvaluator
from coterie.evaluation.probes import Probes
from coterie.evaluation.raw_baseline import raw_clusters
from coterie.evaluation.sampling import fixed_sample
from coterie.evaluation.scorer import FOUND, LOCAL, UNSUPERVISED, Evaluation, Scorer
from coterie.evaluation.unsupervised_evaluator import UnsupervisedEvaluator
from coterie.execution.backend import Backend
from coterie.execution.predictor import join, split_rows

_PROBE_SHARE = 0.8
"""Share of the samples that a probe is fitted on if there is no test set."""
_LEAST_LABELS = 2
"""Known labels needed to score: a probe needs one to fit and one to hold out."""


@dataclass
class Evaluator(Scorer):
    """Scorer of one run's server states on all its data.

    Attributes:
        data: The data set with its labels, which are used nowhere else.
        clusters: Clusters of k-means if the model has no head; 0 for no clustering.
        classifies: Whether the model predicts the data's classes, and is scored as a classifier.
        outliers: Whether the model's last cluster is that of outliers, see `Clusterer`.
        unsupervised: Evaluator of the metrics without labels, if the config asks for it.
        local: Evaluator on the clients' own test sets, if the config asks for it.
        parts: Each client's rows, if the classes that clients have are to be counted.
    """

    config: EvaluationConfig
    data: DataArrays
    backend: Backend
    clusters: int
    seed: int
    classifies: bool = False
    outliers: bool = False
    unsupervised: UnsupervisedEvaluator | None = None
    local: LocalTestEvaluator | None = None
    own: tuple[Metric, ...] = ()
    parts: Sequence[Indices] = ()
    sent: int = 0  # the driver has all data
    missed: tuple[int, ...] = ()
    _baseline: dict[str, float] | None = field(default=None, repr=False)

    @property
    def group(self) -> str:
        """The group of the metrics of `quick`: "clustering", "train", "test" or "local"."""
        if self.local is not None:
            return LOCAL
        if not self.classifies:
            return "clustering"
        return "test" if self._tests else "train"

    def quick(self, server: ServerState) -> dict[str, float]:
        """Return metrics on a fixed sample of the labelled data.

        For a clustering "acc", "nmi", "ari" and "kappa", unless k-means needs more samples than are
        labelled. For a classifier "acc" and "f1_macro", on the test set if there is one, or the
        metrics on the clients' test sets. If the config asks for them, "unsupervised/align" and so
        on, and "linear/acc" and "knn/acc" of the probes.
        """
        found = {} if self.unsupervised is None else self.unsupervised.quick(server)
        blind = {f"{UNSUPERVISED}/{name}": value for name, value in found.items()}
        probes = self._quick_probes(server) if self.labelled else {}
        return {**self._quick_labelled(server), **probes, **blind}

    def _quick_probes(self, server: ServerState) -> dict[str, float]:
        """Return scores of the probes that are due between rounds, on a fixed sample."""
        linear, knn = self.config.linear_probe_between, self.config.knn_between
        if not (linear or knn):
            return {}
        fit, held, test_labels = self.held_out()
        most, seed = self.config.max_samples, self._seed
        fit, held = fixed_sample(fit, most, seed), fixed_sample(held, most, seed)
        split, labels = ("train", self._labels) if test_labels is None else ("test", test_labels)
        train, test = self._predict(server, "train", fit), self._predict(server, split, held)
        features = train.embedding, test.embedding
        targets = self._labels[fit], labels[held]
        found = self._probes.linear(features, targets) if linear else {}
        scores = {f"linear/{name}": value for name, value in found.items()}
        return scores | ({"knn/acc": self._probes.knn(features, targets)} if knn else {})

    def _quick_labelled(self, server: ServerState) -> dict[str, float]:
        if self.local is not None:
            return self.local.scores(server)
        if self.classifies:
            return self._quick_classification(server)
        if not self.labelled or not self.clusters:
            return {}
        rows = self._labelled_sample(self._labels)
        prediction = self._predict(server, "train", rows)
        if prediction.probabilities is None and len(rows) < self.clusters:
            return {}
        assignments, _, _ = self._assign(prediction)
        return self._scores(assignments, self._labels[rows])

    def _assign(
        self, prediction: Prediction
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], nn.Module | None]:
        how = self.config.clustering
        return assign_clusters(prediction, self.clusters, self._seed, how, outliers=self.outliers)

    def final(self, server: ServerState) -> Evaluation:
        """Evaluate all that the config asks for, on all samples."""
        prediction = self._predict(server, "train", np.arange(len(self.data.samples)))
        assignments, confidence, table, head = None, None, None, None
        metrics: dict[str, Mapping[str, float]] = {}
        if self.classifies and self.labelled:
            metrics["train"] = self._class_scores(prediction, self._labels)
        elif self.clusters or prediction.probabilities is not None:
            assignments, confidence, head = self._assign(prediction)
        if assignments is not None:
            metrics |= self._found(prediction, assignments)
        if assignments is not None and self.labelled:
            table = self._table(assignments, self._labels)
            metrics["clustering"] = clustering_scores(table)
            if self.config.kmeans_baseline:
                metrics["kmeans_raw"] = self.kmeans_baseline()
        metrics |= self._held_out(server, prediction)
        if self.local is not None:
            metrics[LOCAL] = self.local.scores(server)
        if self.unsupervised is not None:
            metrics[UNSUPERVISED] = self.unsupervised.scores(server)
        if len(self.parts) and self.labelled:
            metrics["spread"] = classes_held(class_spread(self.data, self.parts)[0])
        if self.own:
            given = prediction.embedding, assignments, self._labels
            metrics |= own_scores(self.own, *given)
        return Evaluation(
            metrics=metrics,
            embedding=prediction.embedding,
            assignments=assignments,
            confidence=confidence,
            table=table,
            clusters=self._most_clusters(prediction),
            head=head,
        )

    def _found(
        self, prediction: Prediction, assignments: NDArray[np.int64]
    ) -> dict[str, Mapping[str, float]]:
        """Return the share of outliers, and the number of clusters if it was not known before."""
        found: dict[str, Mapping[str, float]] = {}
        if self.outliers:
            found["outliers"] = {"share": float((assignments < 0).mean())}
        if prediction.probabilities is not None:
            clusters = self._most_clusters(prediction)
            found |= {} if clusters == self.clusters else {FOUND: {"number": float(clusters)}}
        return found

    def _most_clusters(self, prediction: Prediction) -> int:
        """Return the number of clusters that samples can belong to."""
        given = prediction.probabilities
        return self.clusters if given is None else given.shape[1] - self.outliers

    def kmeans_baseline(self) -> dict[str, float]:
        """Return clustering metrics of k-means on the raw samples, computed once."""
        if self._baseline is None and self.labelled:
            assignments = raw_clusters(self.data.samples, self.clusters, self._seed)
            self._baseline = self._scores(assignments, self._labels)
        return self._baseline or {}

    @property
    def _seed(self) -> int:
        return derive_seed(self.seed, "evaluation") % 2**31

    @property
    def _labels(self) -> NDArray[np.int64]:
        labels = self.data.labels
        return np.full(len(self.data.samples), -1, np.int64) if labels is None else labels

    @property
    def labelled(self) -> bool:
        """Whether enough labels are known to score a model."""
        return int((self._labels >= 0).sum()) >= _LEAST_LABELS

    @property
    def _tests(self) -> bool:
        """Whether there is a test set with a known class."""
        labels = self.data.test_labels
        known = labels is not None and bool((labels >= 0).any())
        return self.data.test_samples is not None and known

    def _held_out(self, server: ServerState, train: Prediction) -> dict[str, Mapping[str, float]]:
        """Return metrics on the test set, or on a fifth of the training samples without one."""
        metrics: dict[str, Mapping[str, float]] = {}
        if not self.labelled:
            return {}
        fit, held, test_labels = self.held_out()
        labels = self._labels
        if test_labels is None:
            features = train.embedding[fit], train.embedding[held]
            targets = labels[fit], labels[held]
        else:
            test = self._predict(server, "test", np.arange(len(test_labels)))
            if self.classifies:
                metrics["test"] = self._class_scores(test, test_labels)
            elif test.probabilities is not None:
                found = most_probable(test.probabilities, self.outliers)[0].numpy()
                metrics["clustering_test"] = self._scores(found, test_labels)
            features = train.embedding[fit], test.embedding[held]
            targets = labels[fit], test_labels[held]
        return metrics | self._probes.scores(features, targets)

    def held_out(self) -> tuple[Indices, Indices, NDArray[np.int64] | None]:
        """Split the samples of known class for the probes.

        Returns:
            Training rows to fit on, rows to score on, and the classes of the test set. Without a
            test set the rows to score on are a fifth of the training rows, and the classes None.
        """
        known, test_labels = np.flatnonzero(self._labels >= 0), self.data.test_labels
        if test_labels is None or not self._tests:
            order = known[np.random.default_rng(self._seed).permutation(len(known))]
            cut = int(_PROBE_SHARE * len(order))
            return order[:cut], order[cut:], None
        return known, np.flatnonzero(test_labels >= 0), test_labels

    @property
    def _probes(self) -> Probes:
        return Probes(config=self.config, classes=len(self.data.classes), seed=self._seed)

    def _scores(
        self, assignments: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> dict[str, float]:
        return clustering_scores(self._table(assignments, labels))

    def _table(
        self, assignments: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return counts (clusters, classes) of the samples of known class.

        Outliers are one cluster more.
        """
        known = labels >= 0
        clusters = max(int(assignments.max()) + 1, self.clusters)
        classes = len(self.data.classes)
        own = np.where(assignments < 0, clusters, assignments)
        return contingency(own[known], labels[known], clusters + self.outliers, classes)

    def _class_scores(self, prediction: Prediction, labels: NDArray[np.int64]) -> dict[str, float]:
        """Return classification metrics on the samples of known class."""
        if prediction.probabilities is None:
            raise ContractError("A classifier gave no probabilities; give its Clusterer a head.")
        known = torch.from_numpy(labels >= 0)
        found, classes = prediction.probabilities.argmax(dim=1), len(self.data.classes)
        targets = torch.from_numpy(labels)[known]
        return classification_scores(found[known], targets, classes)

    def _quick_classification(self, server: ServerState) -> dict[str, float]:
        labels = {"train": self.data.labels, "test": self.data.test_labels}[self.group]
        if labels is None:
            return {}
        rows = self._labelled_sample(labels)
        return self._class_scores(self._predict(server, self.group, rows), labels[rows])

    def _labelled_sample(self, labels: NDArray[np.int64]) -> Indices:
        return fixed_sample(np.flatnonzero(labels >= 0), self.config.max_samples, self._seed)

    def _predict(self, server: ServerState, split: str, rows: Indices) -> Prediction:
        return join(self.backend.predict(server, split_rows(split, rows, self.config.batch_size)))
