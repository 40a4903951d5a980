"""A user's own torch data: a LightningDataModule, a DataLoader, a Dataset, or one for each client.

The engine sees rows, and classes to split them by; clients load their rows by the user's own
loader (`coterie.contract.loaders`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt, PrivateAttr
from torch.utils.data import ConcatDataset, DataLoader, Subset, SubsetRandomSampler, TensorDataset

from coterie.config.component import Component, load_target
from coterie.config.target import check_arguments
from coterie.contract.data import DataArrays
from coterie.contract.loaders import LoaderSamples, Source, has_length
from coterie.contract.own_module import own_base
from coterie.contract.seeds import seeded_everywhere
from coterie.errors import ConfigError, CoterieError, DataError, reason

_ATTRIBUTES = ("targets", "labels", "_labels", "y", "label")
_KEYS = ("label", "labels", "target", "targets", "class", "y")


class GivenData(Component):
    """Config keys of data that a user's class reads, or that a Python program gives."""

    module: str | None = None
    """Class of the data, package.module:Class: a LightningDataModule or a torch Dataset."""
    arguments: Mapping[str, Any] = {}
    """Arguments of the class."""
    is_object: bool = False
    """Whether the data was given as objects, in a Python program. Filled in."""

    _object: Any = PrivateAttr(default=None)

    def attach(self, data: Any) -> None:
        """Attach the data that a Python program gave."""
        self._object = data

    @property
    def given(self) -> Any:
        """The data that a Python program gave; None otherwise."""
        return self._object

    def path(self) -> str:
        """Return the class to build the data of.

        Raises:
            ConfigError: If there is none.
        """
        if self.module is None or self.is_object:
            raise ConfigError(
                "data: it was an object of a Python program; go on from that program, with "
                "resume=True."
                if self.is_object
                else "data.target: no class is given; set data.target=package.module:Class."
            )
        return self.module


class LightningData:
    """A user's torch data in the engine's form."""

    class Config(GivenData):
        """Where the data comes from."""

        loader_batch_size: PositiveInt | None = None
        """Batch size of a Dataset that comes without a loader; by default 32."""
        read_labels: bool = False
        """Whether to read every sample to get its class, if the data set does not list classes."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def arrays(self) -> DataArrays:
        """Open the data, of which only length and classes are read."""
        config, rebuild, size = self.config, None, self.config.loader_batch_size
        if config.given is None:
            rebuild = partial(open_path, config.path(), dict(config.arguments), size)
            sources = rebuild()
        else:
            sources = opened(config.given, size)
        every = [_labels(source.loader.dataset, read=config.read_labels) for source in sources]
        labels, classes = _numbered(every)
        owners = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
        alone = len(sources) == 1
        return DataArrays(
            name=name_of(config),
            samples=LoaderSamples.of(sources, rebuild),
            labels=labels,
            classes=classes,
            owners=None if alone else owners.astype(np.int64),
            owner_names=() if alone else tuple(f"client {n}" for n in range(len(sources))),
        )


def opened(data: Any, batch_size: int | None = None) -> tuple[Source, ...]:
    """Open data objects.

    Args:
        data: A LightningDataModule, a DataLoader, a Dataset with a length, or a list with one of
            them for each client.
        batch_size: Of loaders for a Dataset.

    Raises:
        DataError: If it is something else, or has no length.
    """
    if isinstance(data, list | tuple):
        return tuple(_open(each, batch_size) for each in data)
    return (_open(data, batch_size),)


def open_path(
    target: str, arguments: dict[str, Any], size: int | None = None
) -> tuple[Source, ...]:
    """Build data by its class, with the same random draws in every process."""
    with seeded_everywhere(0):
        try:
            kind = load_target(target)
        except ConfigError as error:
            raise ConfigError(f"data.{error}") from error
        check_arguments("data", kind, target, arguments)
        try:
            built = kind(**arguments)
        except Exception as error:
            raise DataError(
                f"data.target={target}: it cannot be built ({reason(error)})."
            ) from error
        return opened(built, size)


def _open(data: Any, batch_size: int | None) -> Source:
    if own_base(data, "LightningDataModule") is not None:
        return _open_module(data)
    if isinstance(data, DataLoader):
        return Source(loader=_checked(data))
    _check_length(data)
    if not hasattr(data, "__getitem__"):
        raise DataError(
            f"data: {type(data).__name__} is not data; give a LightningDataModule, a DataLoader or "
            "a Dataset."
        )
    return Source(loader=DataLoader(data, batch_size=batch_size or 32, shuffle=True))


def _open_module(data: Any) -> Source:
    try:
        data.prepare_data()
        data.setup("fit")
        loader = data.train_dataloader()
    except CoterieError:
        raise
    except Exception as error:  # the user's own code
        raise DataError(
            f"data: {type(data).__name__} could not be set up ({reason(error)})."
        ) from error
    if not isinstance(loader, DataLoader):
        raise DataError(
            f"data: train_dataloader of {type(data).__name__} gives a {type(loader).__name__}; "
            "give one DataLoader, whose rows can be split over the clients."
        )
    return Source(
        loader=_checked(loader),
        datamodule=data,
        validation=_held_out(data, "val_dataloader"),
        test=_held_out(data, "test_dataloader", "test"),
    )


def _held_out(data: Any, hook: str, stage: str | None = None) -> Any:
    """Return the loaders of a hook, after `setup(stage)`; None if the data module has none."""
    base = own_base(data, "LightningDataModule")
    if getattr(type(data), hook) is getattr(base, hook) and hook not in vars(data):
        return None
    if stage is not None:
        data.setup(stage)
    try:
        found = getattr(data, hook)()
    except DataError:  # Coterie's own data sets raise it if they hold nothing out
        return None
    return None if found is None or (isinstance(found, list) and not found) else found


def _checked(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return the loader if its data set has rows.

    One that samples from a list of rows has these only.
    """
    _check_length(loader.dataset)
    if not isinstance(loader.sampler, SubsetRandomSampler):
        return loader
    again = {
        name: getattr(loader, name)
        for name in ("batch_size", "collate_fn", "num_workers", "drop_last", "pin_memory")
    }
    return DataLoader(Subset(loader.dataset, [*loader.sampler.indices]), shuffle=True, **again)


def _check_length(data: Any) -> None:
    if not has_length(data) or isinstance(data, torch.utils.data.IterableDataset):
        raise DataError(
            f"data: {type(data).__name__} has no rows that could be split over clients, because "
            "it is read in one go or has no length; give a Dataset with __len__ and __getitem__."
        )
    if not len(data):
        raise DataError(f"data: {type(data).__name__} has no samples; add some.")


def _labels(data: Any, *, read: bool) -> NDArray[Any] | None:
    """Return each sample's class as the data set lists it, or read if asked to; None if unknown."""
    if isinstance(data, Subset):
        inner = _labels(data.dataset, read=False)
        if inner is not None:
            return inner[np.asarray(data.indices, dtype=np.int64)]
    elif isinstance(data, ConcatDataset):
        parts = [_labels(part, read=False) for part in data.datasets]
        if all(part is not None for part in parts):
            return np.concatenate(parts)  # type: ignore[arg-type]  # just checked
    elif isinstance(data, TensorDataset) and len(data.tensors) > 1:
        return _column(data.tensors[-1], len(data))
    columns = getattr(data, "column_names", None)  # of a Hugging Face Dataset
    if isinstance(columns, Sequence):
        named = next((key for key in _KEYS if key in columns), None)
        return None if named is None else _column(data[named][:], len(data))
    for name in _ATTRIBUTES:
        found = _column(getattr(data, name, None), len(data))
        if found is not None:
            return found
    return _column([class_in(data[row]) for row in range(len(data))], len(data)) if read else None


def _column(values: Any, count: int) -> NDArray[Any] | None:
    """Return integers or texts (n,); None if the values are something else."""
    if values is None or callable(values) or isinstance(values, str | bytes):
        return None
    try:
        found = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values)
    except (TypeError, ValueError):
        return None
    fits = found.shape == (count,) and found.dtype.kind in "iubU"
    return found if fits else None


def class_in(sample: Any) -> Any:
    """Return a sample's class: a mapping's value under a usual name, or a tuple's second part."""
    if isinstance(sample, Mapping):
        found = next((sample[key] for key in _KEYS if key in sample), None)
    else:
        found = sample[1] if isinstance(sample, tuple | list) and len(sample) > 1 else None
    one = isinstance(found, torch.Tensor | np.generic | np.ndarray) and found.size
    if one and np.asarray(found).size == 1:
        found = np.asarray(found).item()
    return found if isinstance(found, int | str) else None


def _numbered(
    every: Sequence[NDArray[Any] | None],
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Enumerate the classes of all data sets by the order of their values."""
    known = [labels for labels in every if labels is not None]
    if not known or len(known) < len(every):
        return None, ()
    values, numbers = np.unique(np.concatenate(known), return_inverse=True)
    if len(values) > len(numbers) // 2 and len(values) > 1000:
        return None, ()  # such as a target to regress on
    return numbers.astype(np.int64), tuple(map(str, values))


def name_of(config: GivenData) -> str:
    """Return the name of the data's class."""
    given = config.given
    if given is None:
        return str(config.module).rpartition(":")[2]
    one = given[0] if isinstance(given, list | tuple) and given else given
    kind = one.dataset if isinstance(one, DataLoader) else one
    return type(kind).__name__
