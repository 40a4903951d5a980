"""Data sets in shards, which `coterie import_data` makes: read when they are needed."""

from collections import Counter

import numpy as np

from coterie.contract.data import Indices
from coterie.datamodules.base import Half
from coterie.datamodules.custom_data import CustomData, PicturesConfig
from coterie.datamodules.image_files import Tally, read_images
from coterie.datamodules.shard_files import INDEX, ShardFiles, ShardIndex, ShardNames
from coterie.datamodules.source import Samples, Source
from coterie.errors import DataError


class Shards(CustomData["Shards.Config"]):
    """Samples in <path>/index.json and its shards, or in both <path>/train and <path>/test."""

    class Config(PicturesConfig):
        """Config of shards."""

        stream: bool = True
        """Whether to read samples on demand and keep none; false reads all at the start."""

    def has_test(self) -> bool:
        """Return whether both `train` and `test` are there."""
        return all((self.path / half / INDEX).is_file() for half in ("train", "test"))

    @property
    def streams(self) -> bool:
        """Whether samples are read when they are needed."""
        return self.config.stream

    def open_half(self, half: Half) -> Source:
        """Open the index; shards are mapped when rows are read.

        Raises:
            DataError: If it is missing or damaged, or pictures differ in size and none is set.
        """
        files = ShardFiles.open(self.path / half if self.has_test() else self.path)
        index, config = files.index, self.config
        if index.kind == "vectors" and config.size is not None:
            raise DataError(f"data.size: {self.title} holds feature vectors; leave it out.")
        if index.kind == "pictures" and index.shape is None and config.size is None:
            raise DataError(
                f"data.path={self.path}: its pictures differ in size; set data.size to resize them."
            )

        def read(rows: Indices) -> Samples:
            if index.kind == "vectors":
                return files.vectors(rows)
            names = [f"{files.folder}, {name}" for name in files.names(rows)]
            return read_images(files.pictures(rows), names, config.pixel_format)

        _tally(index, config).warn(config.pixel_format)
        labels, owners = files.numbers("label"), files.numbers("client")
        if half == "test" and self.has_test() and index.classes not in ((), self.train_classes):
            raise DataError(
                f"data.path={self.path}: its test shards have other classes than its training "
                "shards; import both halves at once."
            )
        return Source(
            count=len(files),
            read=read,
            labels=labels if index.classes else None,
            classes=index.classes,
            owners=owners if index.clients and bool(np.all(owners >= 0)) else None,
            owner_names=index.clients,
            names=ShardNames(files),
        )


def _tally(index: ShardIndex, config: PicturesConfig) -> Tally:
    """Return the counts of picture conversions, as far as the index has them."""
    converted = Counter({mode: count for mode, count in index.modes.items() if mode != config.mode})
    square = isinstance(config.size, int) or (config.size and config.size[0] == config.size[1])
    return Tally(
        count=sum(index.modes.values()),
        converted=converted,
        reshaped=index.oblong if square else 0,
        dark=0 if config.levels else index.dark,
    )
