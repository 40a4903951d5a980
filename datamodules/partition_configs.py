"""Partitions as components: `partition: {target: coterie.datamodules.partition_configs:IID, …}`."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from coterie.config.file_digest import with_digest
from coterie.config.given_path import given_path
from coterie.config.partition import PartitionConfig
from coterie.contract.data import DataArrays, Indices
from coterie.datamodules import partitions
from coterie.datamodules.dirichlet import dirichlet
from coterie.datamodules.partition_files import read_partition
from coterie.datamodules.partitions import Labels
from coterie.errors import DataError

# YAML has lists where Python has tuples.
Group = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
Groups = Annotated[tuple[Group, ...], Field(strict=False, min_length=1)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)]


class _Clients(PartitionConfig):
    clients: int = Field(ge=1)
    """Number of clients."""

    def _labels(self, data: DataArrays) -> Labels:
        name, labels, size = type(self).__name__, data.labels, len(data.samples)
        if labels is None:
            raise DataError(
                f"The partition {name} needs labels, which the data set lacks; use partition=iid."
            )
        unknown = int((labels < 0).sum())
        if unknown:
            raise DataError(
                f"The partition {name} needs every sample's label, but {unknown} of {size} are "
                "unknown; leave these samples out, or use partition=iid."
            )
        if self.clients > size:
            raise DataError(
                f"clients={self.clients}: {name} has {size} samples to deal out; set "
                f"partition.clients={size} or lower."
            )
        return labels


class IID(_Clients):
    """Random parts whose sizes differ by at most one."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows; see `partitions.iid`."""
        return partitions.iid(len(data.samples), self.clients, seed)


class ClassBlocks(_Clients):
    """Disjoint blocks of C/K consecutive classes (FedMCC's non-IID setting)."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows; see `partitions.class_blocks`. The seed has no effect."""
        return partitions.class_blocks(self._labels(data), self.clients)


class PMixture(_Clients):
    """A share p of a client's samples from its own class, the rest from all (CCFC's setting)."""

    p: float = Field(ge=0, le=1)
    """0 is IID, 1 is one class per client."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows; see `partitions.p_mixture`."""
        return partitions.p_mixture(self._labels(data), self.clients, self.p, seed)


class Dirichlet(_Clients):
    """Class proportions drawn from a Dirichlet distribution (Orchestra's setting)."""

    alpha: float = Field(gt=0, allow_inf_nan=False)
    """Concentration: 1e5 is close to IID, 1e-3 close to one class per client."""

    equal_sizes: bool = False
    """Whether clients have equal sizes (±1)."""

    min_samples: int = Field(default=2, ge=0)
    """Minimum number of samples per client; proportions are drawn again, a limited number of times,
    until it is reached. The default is 2 because training skips batches of one sample."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows; see `dirichlet.dirichlet`."""
        return dirichlet(
            self._labels(data),
            self.clients,
            self.alpha,
            seed,
            equal_sizes=self.equal_sizes,
            min_samples=self.min_samples,
        )


class KClasses(_Clients):
    """k classes per client, each held equally often (CF-CL: 10 devices, 3 classes each)."""

    k: int = Field(ge=1)
    """Classes per client."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows; see `partitions.k_classes`."""
        return partitions.k_classes(self._labels(data), self.clients, self.k, seed)


class Grouped(_Clients):
    """Groups of clients with overlapping classes and few samples (CP-CFL's setting)."""

    groups: Groups = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9))
    """Classes of each group, from 0."""

    counts: Counts = (20, 20, 5, 5)
    """Numbers of samples of a group's classes, assigned to the classes at random per client."""

    shared: bool = False
    """Whether clients may share samples: each draws from the whole data, as CP-CFL's clients do if
    a class has too few samples for all (STL-10)."""

    merge: Literal["none", "groups", "all"] = "none"
    """`groups` merges the clients of each group, `all` merges all clients: the same samples, for
    centralised references."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows, merged if configured; see `partitions.grouped`."""
        known = self._labels(data)
        parts = partitions.grouped(
            known, self.clients, self.groups, self.counts, seed, shared=self.shared
        )
        if self.merge == "none":
            return parts
        return partitions.merged(parts, self._members() if self.merge == "groups" else None)

    def membership(self) -> Indices:
        """Return each client's true group (clients,), to evaluate a clustering of clients."""
        if self.merge == "all":
            return np.zeros(1, np.int64)
        return self._members() if self.merge == "none" else np.arange(len(self.groups))

    def _members(self) -> Indices:
        return partitions.client_groups(self.clients, len(self.groups))


class ByClient(PartitionConfig):
    """The clients that the data names: `client_folders`, `manifest`, `npz`."""

    smallest: PositiveInt = 1
    """Clients with fewer samples are merged into one client, with the next smallest if needed, as
    if their owners had pooled their samples."""

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows, in the order of `owner_names`. The seed has no effect.

        Raises:
            DataError: If the data names no clients, or one has no sample.
        """
        if data.owners is None:
            raise DataError(
                f"partition=by_client: data={data.name} does not say whose samples are whose; "
                "choose data that does (client_folders, or a column or array of clients), or "
                "partition=iid."
            )
        parts = [np.flatnonzero(data.owners == owner) for owner in range(len(data.owner_names))]
        for name, part in zip(data.owner_names, parts, strict=True):
            if not len(part):
                raise DataError(
                    f"partition=by_client: client {name} has no sample; "
                    "take it out, or give it more."
                )
        return partitions.with_small_joined(parts, self.smallest)


class FromFile(PartitionConfig):
    """A split that `coterie partition` wrote."""

    path: str = Field(min_length=1)
    """The file partition.parquet."""
    digest: str | None = None
    """SHA-256 of the file. Filled in from the file; a given value must match, so that a run is
    resumed with the split that it began with."""

    @model_validator(mode="before")
    @classmethod
    def _find_out(cls, given: Any) -> Any:
        """Fill in the digest if the file exists; `split` reports a missing one."""
        return with_digest(given, file="path", digest="digest", section="partition")

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return each client's rows; see `partition_files.read_partition`. The seed is ignored."""
        return read_partition(given_path("partition.path", self.path), data)


class Rest(FromFile):
    """One client with the samples that no client of the file has, as data for pretraining.

    The file is the split of the later run, written by `coterie partition`.
    """

    def split(self, data: DataArrays, seed: int) -> list[Indices]:
        """Return the remaining rows, as one client. The seed has no effect.

        Raises:
            DataError: If the file does not fit the data, or no rows remain.
        """
        held = np.concatenate(super().split(data, seed))
        left = np.setdiff1d(np.arange(len(data.samples)), held)
        if not len(left):
            raise DataError(
                f"partition.path={self.path}: its clients have all {len(data.samples)} samples of "
                f"data={data.name}, so nothing is left; give one that leaves some."
            )
        return [left.astype(np.int64)]
