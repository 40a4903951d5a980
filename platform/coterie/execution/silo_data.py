"""Data that stays with its clients (silos): read where it lies; only counts come back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.contingency import contingency
from coterie.config.component import load_target, target_of
from coterie.config.explain import one_of
from coterie.config.schema import RunConfig
from coterie.contract.client import ClientData
from coterie.contract.clusterer import Prediction
from coterie.contract.data import DataArrays, LocalDataModule
from coterie.contract.data_checks import check_data
from coterie.contract.phase import ServerState
from coterie.errors import ConfigError
from coterie.execution.predictor import Predictor

Tables = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What a client tells of the clusters of its data: counts, no sample and no embedding.

    Attributes:
        tables: "train" and, where it has one, "test" to the contingency table int64
            (clusters, classes); empty without labels, or while the model has no clusters.
        sizes: "train" to the number of its samples in each cluster, int64 (clusters,).
    """

    tables: Tables
    sizes: Tables

    @property
    def nbytes(self) -> int:
        """What is sent."""
        return sum(table.nbytes for part in (self.tables, self.sizes) for table in part.values())


@dataclass
class LocalData:
    """The data of the clients that run in this process, each read when it is first asked for.

    Attributes:
        config: The run's config.
        classes: The names of all clients' classes; a client's own labels are numbered by these.
    """

    config: RunConfig
    classes: tuple[str, ...]
    _read: dict[int, DataArrays] = field(default_factory=dict, repr=False)

    def arrays(self, client: int) -> DataArrays:
        """One client's data.

        Raises:
            DataError: If it is missing, unreadable or not fit to learn from.
        """
        if client not in self._read:
            module: LocalDataModule = load_target(target_of(self.config.data))(self.config.data)
            arrays = module.local_arrays(client)
            check_data(arrays)
            self._read[client] = arrays
        return self._read[client]

    def client_data(self, client: int, *, with_labels: bool) -> ClientData:
        """What a client trains on."""
        arrays = self.arrays(client)
        labels = self._numbered(arrays, arrays.labels) if with_labels else None
        rows = np.arange(len(arrays.samples), dtype=np.int64)
        return ClientData(samples=arrays.samples, rows=rows, labels=labels)

    def tally(self, predictor: Predictor, server: ServerState, key: str, client: int) -> Tally:
        """Count the clusters of a client's data under the server's model."""
        arrays, batch_size = self.arrays(client), self.config.evaluation.batch_size
        halves = [("train", arrays.samples, arrays.labels)]
        if arrays.test_samples is not None:
            halves.append(("test", arrays.test_samples, arrays.test_labels))
        tables, sizes = {}, {}
        for name, samples, labels in halves:
            found = predictor.predict_samples(server, key, samples, batch_size)
            if found.probabilities is None:
                continue
            numbered = self._numbered(arrays, labels)
            if numbered is not None:
                tables[name] = self._table(found, numbered)
            if name == "train":
                sizes[name] = np.bincount(_clusters(found), minlength=_count(found))
        return Tally(tables=tables, sizes=sizes)

    def _table(self, found: Prediction, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        known = labels >= 0
        return contingency(_clusters(found)[known], labels[known], _count(found), len(self.classes))

    def _numbered(
        self, arrays: DataArrays, labels: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """Labels by the classes of all clients; -1 stays."""
        if labels is None:
            return None
        places = [self.classes.index(name) for name in arrays.classes]
        return np.array([*places, -1], dtype=np.int64)[labels]


def _clusters(found: Prediction) -> NDArray[np.int64]:
    assert found.probabilities is not None
    clusters: NDArray[np.int64] = found.probabilities.argmax(dim=1).numpy()
    return clusters


def _count(found: Prediction) -> int:
    return 0 if found.probabilities is None else found.probabilities.shape[1]


def keeps_data_local(config: RunConfig) -> bool:
    """Whether the config's data stays with its clients."""
    return isinstance(load_target(target_of(config.data))(config.data), LocalDataModule)


def client_names(config: RunConfig) -> tuple[str, ...]:
    """The clients' names.

    Raises:
        ConfigError: If `cluster.client_resources` names another one.
    """
    module: LocalDataModule = load_target(target_of(config.data))(config.data)
    names = module.client_names
    for name in config.cluster.client_resources:
        if name not in names:
            raise ConfigError(f"cluster.client_resources.{name}: {one_of(name, names)}")
    return names
