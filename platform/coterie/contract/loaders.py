"""A user's torch data as the engine's samples: rows to split, and loaders of clients' rows.

The engine sees row numbers. The data sets travel with them to the processes that train, through
the object store once per node; nothing is copied into arrays.
"""

import copy
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from coterie.contract.data import Indices
from coterie.contract.loader_content import arrays_of, arrays_of_loaders
from coterie.contract.samples import StreamedSamples
from coterie.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Source:
    """One data set of a user, which all clients share or one client has.

    Attributes:
        loader: The user's loader of the training samples.
        datamodule: The data module that it came from, whose hooks the Trainer calls; or None.
        validation: What `Trainer.validate` takes; None without.
        test: What `Trainer.test` takes; None without.
    """

    loader: DataLoader[Any]
    datamodule: Any = None
    validation: Any = None
    test: Any = None

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]  # checked when it was opened


@dataclass(frozen=True, kw_only=True)
class LoaderSamples(StreamedSamples):
    """Rows of a user's data sets in sequence; as samples they are only row numbers.

    Attributes:
        sources: The data sets.
        rebuild: Opens the sources again in another process, so that they need not travel; or None.
    """

    sources: tuple[Source, ...]
    rebuild: "Callable[[], tuple[Source, ...]] | None" = None

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        rebuild: "Callable[[], tuple[Source, ...]] | None" = None,
    ) -> "LoaderSamples":
        """Return the rows of these data sets."""
        return cls(
            shape=(sum(map(len, sources)), 1),
            dtype=np.dtype(np.float32),
            read=_numbers,
            sources=tuple(sources),
            rebuild=rebuild,
        )

    def __reduce__(self) -> Any:
        """Pickle the way to open the sources where there is one, else the sources."""
        if self.rebuild is not None:
            return _open_again, (self.rebuild,)
        return _with_sources, (self.sources,)

    def arrays(self) -> Iterator[NDArray[Any]]:
        """See `StreamedSamples.arrays`: what the data sets keep in memory."""
        for source in self.sources:
            yield from arrays_of(source.loader.dataset)

    def held_out(self) -> Iterator[NDArray[Any]]:
        """See `StreamedSamples.held_out`: what validation and test loaders keep in memory."""
        for source in self.sources:
            yield from arrays_of_loaders(source.validation)
            yield from arrays_of_loaders(source.test)

    def place(self, rows: Indices) -> tuple[Source, Indices]:
        """Return the source of a client's rows, and the rows within it.

        Raises:
            DataError: If they are of several sources.
        """
        ends = np.cumsum([len(source) for source in self.sources])
        first, last = (int(np.searchsorted(ends, row, "right")) for row in (rows[0], rows[-1]))
        if first != last:
            raise DataError(
                "partition: a client has rows of several data sets; with one data set for each "
                "client, leave the partition out."
            )
        return self.sources[first], rows - (ends[first] - len(self.sources[first]))


def _numbers(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return rows.astype(np.float32)[:, None]


def _with_sources(sources: tuple[Source, ...]) -> LoaderSamples:
    return LoaderSamples.of(sources)


def _open_again(rebuild: Callable[[], tuple[Source, ...]]) -> LoaderSamples:
    return LoaderSamples.of(rebuild(), rebuild)


def loader_of(
    source: Source, rows: Indices, seed: int, *, ordered: bool = False, joins_last: bool = False
) -> Any:
    """Return a loader with the user's settings, limited to a client's rows.

    Args:
        source: The data set.
        rows: Its rows to load.
        seed: Of the order, and of the loader's workers.
        ordered: Whether to load all rows in order, for an evaluation.
        joins_last: Whether a last batch of one row joins the batch before it.

    Raises:
        DataError: If the loader would give no batch.
    """
    given = source.loader
    places = [int(row) for row in rows]
    subset: Dataset[Any] = Subset(given.dataset, places)
    generator = torch.Generator().manual_seed(seed)
    common: dict[str, Any] = {
        "collate_fn": given.collate_fn,
        "num_workers": given.num_workers,
        "pin_memory": given.pin_memory,
        "timeout": given.timeout,
        "worker_init_fn": given.worker_init_fn,
        "multiprocessing_context": given.multiprocessing_context,
        "generator": generator,
    }
    if given.num_workers:
        common["prefetch_factor"] = given.prefetch_factor
    if ordered:
        size = _batch_size(given)
        return DataLoader(subset, batch_size=size, **common)
    batches = given.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return DataLoader(subset, batch_sampler=_RestrictedBatches(batches, places), **common)
    if given.batch_size is not None and given.drop_last and len(places) < given.batch_size:
        raise DataError(
            f"data: a client has {len(places)} samples, fewer than its loader's batch_size="
            f"{given.batch_size} with drop_last=True, so it has no batch; lower the batch size, "
            "or take fewer clients."
        )
    sampler = _sampler(given.sampler, places, generator)
    size = given.batch_size
    joins = joins_last and not given.drop_last
    if size is not None and joins and size < len(places) and len(places) % size == 1:
        joined = _JoinedBatches(sampler, size, drop_last=False)
        return DataLoader(subset, batch_sampler=joined, **common)
    return DataLoader(
        subset,
        batch_size=size,
        drop_last=given.drop_last if size is not None else False,
        sampler=sampler,
        **common,
    )


def _batch_size(loader: DataLoader[Any]) -> int | None:
    own = getattr(loader.batch_sampler, "batch_size", None)
    return loader.batch_size if loader.batch_size is not None or own is None else int(own)


def _sampler(given: Any, places: list[int], generator: torch.Generator) -> Any:
    """Return the user's sampler, limited to a client's rows and with positions among them."""
    count = range(len(places))
    if isinstance(given, SequentialSampler):
        return SequentialSampler(count)
    if isinstance(given, RandomSampler):
        return RandomSampler(count, replacement=given.replacement, generator=generator)
    if isinstance(given, WeightedRandomSampler):
        weights = given.weights[places].tolist()
        return WeightedRandomSampler(weights, len(places), given.replacement, generator)
    return _Restricted(given, places)


class _Restricted(Sampler[int]):
    """A user's sampler of row numbers, limited to one client's rows."""

    def __init__(self, given: Any, places: list[int]) -> None:
        self._given, self._positions = given, {row: at for at, row in enumerate(places)}

    def __iter__(self) -> Iterator[int]:
        return (self._positions[row] for row in self._given if row in self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to a sampler that shuffles by it."""
        if hasattr(self._given, "set_epoch"):
            self._given.set_epoch(epoch)


class _RestrictedBatches(Sampler[list[int]]):
    """A user's batches of row numbers, limited to one client's rows."""

    def __init__(self, given: Any, places: list[int]) -> None:
        self._given, self._positions = given, {row: at for at, row in enumerate(places)}

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._given:
            own = [self._positions[row] for row in batch if row in self._positions]
            if own:
                yield own


class _JoinedBatches(BatchSampler):
    """Batches in which a last batch of one row is joined to the one before it."""

    def __iter__(self) -> Iterator[list[int]]:
        before: list[int] = []
        for batch in super().__iter__():
            joins = len(batch) == 1
            if before and not joins:
                yield before
            before = before + batch if joins else batch
        if before:
            yield before

    def __len__(self) -> int:
        """Return the number of batches if the last of them has one row and is joined."""
        return super().__len__() - 1


def data_with(source: Source, training: Any, validation: Any) -> dict[str, Any]:
    """Return the arguments of `Trainer.fit`: loaders, or the user's data module with them.

    The Trainer calls the data module's hooks, such as `on_after_batch_transfer`.

    Args:
        source: The data set.
        training: The loader of the training samples; None for `Trainer.validate`.
        validation: The loader of what is held out; None without.
    """
    if source.datamodule is None:
        if training is None:
            return {"dataloaders": validation}
        return {"train_dataloaders": training, "val_dataloaders": validation}
    found = copy.copy(source.datamodule)
    held = partial(_given, [] if validation is None else validation)
    found.prepare_data = found.setup = partial(_given, None)
    found.train_dataloader = partial(_given, training)
    found.val_dataloader = found.test_dataloader = held
    return {"datamodule": found}


def _given(value: Any, stage: str = "") -> Any:
    """Return the value; a module-level function, so that hooks made from it can be pickled."""
    return value


def has_length(data: object) -> bool:
    """Return whether a data set knows its number of samples."""
    if not isinstance(data, Sized):
        return False
    try:
        return len(data) >= 0
    except (TypeError, NotImplementedError):
        return False


def split_held_out(rows: Indices, share: float, seed: int) -> tuple[Indices, Indices]:
    """Split a client's rows into those to train on and those held out, both sorted.

    Args:
        rows: Sorted rows (n,).
        share: Of the rows to hold out; at least one if it is above 0, and never all.
        seed: Of the draw.
    """
    if not share or len(rows) < 2:
        return rows, rows[:0]
    count = min(max(1, round(share * len(rows))), len(rows) - 1)
    order = np.random.default_rng(seed).permutation(len(rows))
    return np.sort(rows[order[count:]]), np.sort(rows[order[:count]])
