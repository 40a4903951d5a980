"""Embeddings of a data set by one encoder, computed once and stored as shards of vectors.

A folder `train/` (and `test/`) of shards grows one shard at a time. `embedding.json` says what made
them, so that a job that was stopped goes on where it was, and no other job writes among them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coterie.contract.clusterer import to_unit
from coterie.contract.data import DataArrays, Samples
from coterie.datamodules.shard_files import (
    INDEX,
    Row,
    ShardIndex,
    entry_of,
    shard_name,
    write_index,
    write_shard,
)
from coterie.errors import ConfigError
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.paths import check_contained, check_ours

RECIPE = "embedding.json"


class _Half(NamedTuple):
    """The training or the test samples, with their metadata."""

    samples: Samples
    labels: NDArray[np.int64] | None
    owners: NDArray[np.int64] | None
    names: Sequence[str]

    def row(self, number: int, vector: NDArray[np.float32]) -> Row:
        """Return a sample's stored form, named by its name or else its number."""
        label = -1 if self.labels is None else int(self.labels[number])
        owner = -1 if self.owners is None else int(self.owners[number])
        return Row(vector, label, owner, self.names[number] if self.names else str(number))


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """An encoder, and how its embeddings are written.

    Attributes:
        encoder: In eval mode, on its device, with the attribute `features`.
        batch_size: Samples that pass the encoder at a time.
        shard_samples: Samples of a shard; batches do not cross shards.
        watch: Told of the number of samples done, after each batch and each shard that is there.
    """

    encoder: nn.Module
    device: torch.device
    batch_size: int
    shard_samples: int
    watch: Callable[[int], None]

    def write(self, out: Path, data: DataArrays) -> None:
        """Write the missing embeddings of the training and test samples.

        Args:
            out: The folder; a data set without test samples lies in it directly.
            data: The samples and what is known of them.
        """
        owners = None if data.owners is None else np.asarray(data.owners)
        train = _Half(data.samples, data.labels, owners, data.names)
        if data.test_samples is None:
            self._half(out, data, train)
            return
        self._half(out / "train", data, train)
        test = _Half(data.test_samples, data.test_labels, None, data.test_names)
        self._half(out / "test", data, test)

    def _half(self, folder: Path, data: DataArrays, half: "_Half") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, start in enumerate(range(0, len(half.samples), self.shard_samples)):
            rows = np.arange(start, min(start + self.shard_samples, len(half.samples)))
            if (folder / shard_name(number)).is_file():  # whole: shards are written atomically
                entries.append(entry_of(folder / shard_name(number), number, len(rows)))
                self.watch(len(rows))
                continue
            vectors = np.concatenate(list(self._vectors(half.samples, rows)))
            found = [
                half.row(row, vector) for row, vector in zip(rows.tolist(), vectors, strict=True)
            ]
            entries.append(write_shard(folder, number, found))
        index = ShardIndex(
            kind="vectors",
            shape=(int(self.encoder.features),),  # type: ignore[arg-type]  # an int, not a submodule
            classes=data.classes if half.labels is not None else (),
            clients=data.owner_names,
            shards=tuple(entries),
        )
        write_index(folder, index)

    def _vectors(self, samples: Samples, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Return the embeddings of some rows, batch by batch."""
        for start in range(0, len(rows), self.batch_size):
            batch = samples[rows[start : start + self.batch_size]]
            with torch.inference_mode():
                found = self.encoder(to_unit(torch.tensor(batch).to(self.device)))
            yield found.float().cpu().numpy()
            self.watch(len(batch))


def claim(out: Path, recipe: Mapping[str, Any]) -> bool:
    """Create the folder for this recipe's embeddings, or continue in it.

    Args:
        out: The folder.
        recipe: All that decides the embeddings, as plain values.

    Returns:
        Whether all embeddings are there already.

    Raises:
        ConfigError: If the folder holds something else, a link, or is another user's.
    """
    if out.is_dir():
        check_ours("out", out)
        check_contained("out", out)
    text = json.dumps(recipe, indent=2, ensure_ascii=False) + "\n"
    path = out / RECIPE
    begun = path.is_file() and any(each != path for each in out.iterdir())
    if begun:
        if path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"out={out}: it holds embeddings of other data or another encoder, see {RECIPE} in "
                "it; choose another folder."
            )
        # `test` is written last, where there is one.
        return any((out / half / INDEX).is_file() for half in ("test", "."))
    if not path.is_file() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out}: it is not empty; choose a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, text)
    return False
