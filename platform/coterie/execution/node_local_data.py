"""Node-local data: each client's data is read in place, and only counts leave."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.contingency import contingency
from coterie.config.component import load_target, target_of
from coterie.config.explain import one_of
from coterie.config.schema import RunConfig
from coterie.contract.client import ClientData
from coterie.contract.data import DataArrays, NodeLocalDataModule
from coterie.contract.data_checks import check_data
from coterie.contract.phase import ServerState
from coterie.errors import ConfigError
from coterie.execution.predictor import ChunkPredictor

Tables = Mapping[str, NDArray[np.int64]]


def is_node_local(config: RunConfig) -> bool:
    """Return whether the config's data stays where its clients are."""
    return isinstance(load_target(target_of(config.data))(config.data), NodeLocalDataModule)


def node_local_names(config: RunConfig) -> tuple[str, ...]:
    """Return the names of node-local clients, in the order of their numbers.

    Raises:
        ConfigError: If `cluster.client_resources` names a client that does not exist.
    """
    module: NodeLocalDataModule = load_target(target_of(config.data))(config.data)
    names = module.client_names
    for name in config.cluster.client_resources:
        if name not in names:
            raise ConfigError(f"cluster.client_resources.{name}: {one_of(name, names)}")
    return names


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What a node-local client reports about its clusters: only counts.

    Attributes:
        tables: "train" and, where there are test samples, "test" to the contingency table int64
            (clusters, classes); empty without labels, or if the model has no clusters.
        sizes: "train" to the number of its samples in each cluster, int64 (clusters,).
    """

    tables: Tables
    sizes: Tables

    @property
    def nbytes(self) -> int:
        """The size of the message in bytes."""
        return sum(table.nbytes for part in (self.tables, self.sizes) for table in part.values())


@dataclass
class NodeLocalData:
    """The data of the node-local clients in this process, each read on first use.

    Attributes:
        classes: The class names of all clients; labels are indices into them.
    """

    config: RunConfig
    classes: tuple[str, ...]
    _read: dict[int, DataArrays] = field(default_factory=dict, repr=False)

    def arrays(self, client: int) -> DataArrays:
        """Return one client's data.

        Raises:
            DataError: If it is missing, unreadable or cannot be learned from.
        """
        if client not in self._read:
            module: NodeLocalDataModule = load_target(target_of(self.config.data))(self.config.data)
            arrays = module.local_arrays(client)
            check_data(arrays, whole=False)
            self._read[client] = arrays
        return self._read[client]

    def client_data(self, client: int, *, with_labels: bool) -> ClientData:
        """Return one client's data as its method trains on it."""
        arrays = self.arrays(client)
        labels = self._global_labels(arrays, arrays.labels) if with_labels else None
        rows = np.arange(len(arrays.samples), dtype=np.int64)
        return ClientData(samples=arrays.samples, rows=rows, labels=labels)

    def tally(self, predictor: ChunkPredictor, server: ServerState, key: str, client: int) -> Tally:
        """Count clusters and classes of a client's data under the server's model."""
        arrays, batch_size = self.arrays(client), self.config.evaluation.batch_size
        splits = [("train", arrays.samples, arrays.labels)]
        if arrays.test_samples is not None:
            splits.append(("test", arrays.test_samples, arrays.test_labels))
        tables, sizes = {}, {}
        for name, samples, labels in splits:
            prediction = predictor.predict_samples(server, key, samples, batch_size)
            if prediction.probabilities is None:
                continue
            clusters = prediction.probabilities.argmax(dim=1).numpy()
            count = prediction.probabilities.shape[1]
            global_labels = self._global_labels(arrays, labels)
            if global_labels is not None:
                known = global_labels >= 0
                tables[name] = contingency(
                    clusters[known], global_labels[known], count, len(self.classes)
                )
            if name == "train":
                sizes[name] = np.bincount(clusters, minlength=count)
        return Tally(tables=tables, sizes=sizes)

    def _global_labels(
        self, arrays: DataArrays, labels: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """Return a client's labels as indices into all clients' classes; -1 stays."""
        if labels is None:
            return None
        places = [self.classes.index(name) for name in arrays.classes]
        return np.array([*places, -1], dtype=np.int64)[labels]
