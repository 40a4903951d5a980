"""`clusters.html`: a page on which the data's owner looks at clusters and names them.

The page is one file with its pictures in it; it loads nothing from elsewhere, and sends nothing.
"""

import base64
import io
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image

from coterie.checkpoints.checkpoint import server_slots
from coterie.clustering.contingency import OUTLIER
from coterie.config.about import about
from coterie.config.component import load_target, target_of
from coterie.config.parquet_growth import ParquetTable
from coterie.config.regular_files import open_regular
from coterie.config.schema import RunConfig
from coterie.contract.clusterer import Prediction, most_probable
from coterie.contract.data import DataArrays, SampleBatch
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, DataError, reason
from coterie.evaluation.canvas import COLOURS
from coterie.execution.batch_predictor import BatchPredictor
from coterie.execution.node_local_data import is_node_local
from coterie.execution.predictor import join
from coterie.models.loading import load_model
from coterie.models.named_clusters import model_digest
from coterie.models.saved_model import model_folder, read_description
from coterie.models.saved_program import load_program
from coterie.networks.heads import Centroids
from coterie.run.cluster_views import (
    Assigned,
    PrototypeMap,
    Rows,
    add_halves,
    examined,
    pairs_of,
    prototype_map,
    views_of,
)
from coterie.run.outputs import utf8_name
from coterie.tracking.atomic import replacing
from coterie.tracking.formatting import display_path
from coterie.tracking.page_template import page_template
from coterie.tracking.run_directory import RunDirectory

_TEMPLATE = Path(__file__).with_name("clusters.html.jinja")
_SIDE = 96
_SMALL = 32
"""Side up to which a thumbnail is stored without loss."""
_ROWS = 256
_NEEDED = ("sample", "cluster", "confidence")
_COLUMNS = {
    **dict(zip(_NEEDED, (pa.int64(), pa.int32(), pa.float32()), strict=True)),
    "name": pa.string(),
}
"""The columns of a run's assignments that the page needs, or compares where they are."""

Watch = Callable[[Iterable[Any], int], Iterable[Any]]
"""Passes items on, given how many there will be, for example with a progress bar."""


@dataclass(frozen=True)
class ClusterPage:
    """Writer of the page of a run.

    Attributes:
        pictures: Pictures at either end of a cluster.
        samples: Samples that the model looks at again.
    """

    directory: RunDirectory
    config: RunConfig
    pictures: int = 24
    samples: int = 2000
    watch: Watch = field(default=lambda items, total: items)

    def write(self, path: Path) -> None:
        """Write the page, for its owner only.

        Raises:
            ConfigError: If the run has no clusters.
            DataError: If it has no model, or its data is missing or another than the run's.
        """
        model_folder(self.directory.path)  # raises if it has none
        content = self._of_prototypes() if is_node_local(self.config) else self._of_samples()
        parts = page_template(_TEMPLATE).generate(
            title=self.config.experiment,
            about=about([self.config]),
            folder=self.directory.path.name,
            path=shlex.quote(display_path(self.directory.path)),
            model=model_digest(self.directory.model),
            colours=COLOURS,
            **content,
        )
        with replacing(path, private=True) as temporary, temporary.open("wb") as file:
            for part in parts:
                file.write(part.encode("utf-8", "backslashreplace"))

    def _clusters(self) -> int:
        found: int | None = read_description(self.directory.model)["clusters"]
        if found is None:
            private = self.config.privacy.dp.clip is not None
            remedy = (
                "privacy.dp leaves out those of the evaluation, so choose a method that finds its "
                "own, such as kmeans"
                if private
                else "resume it with evaluation.clusters=K"
            )
            raise ConfigError(f"run={self.directory.path}: its model has no clusters; {remedy}.")
        return found

    @property
    def _outliers(self) -> bool:
        return bool(read_description(self.directory.model)["outliers"])

    def _of_samples(self) -> dict[str, Any]:
        """Return the page's content where this machine may see the samples."""
        data: DataArrays = load_target(target_of(self.config.data))(self.config.data).arrays()
        assigned = self._assigned(data)
        views = views_of(assigned, self.pictures)
        seed = derive_seed(self.config.seed, "show") % 2**31
        places = examined(assigned, self.samples, seed)
        found = self._looked_at(data, assigned.rows[places])
        assert found.probabilities is not None  # the model has clusters
        pairs = pairs_of(assigned, places, found.probabilities)
        add_halves(views, assigned, places, found.embedding, seed)
        shown = [rows for view in views for rows in (view.certain, view.uncertain)]
        shown += [half.rows for view in views for half in view.halves]
        shown += [pair.rows for pair in pairs]
        rows = np.unique(np.concatenate(shown))
        confidence = dict(zip(assigned.rows.tolist(), assigned.confidence.tolist(), strict=True))
        return {
            "samples": len(assigned.rows),
            "views": views,
            "pairs": pairs,
            "planes": {view.key: view.plane._asdict() for view in views if view.plane},
            "confidence": confidence,
            "small": max(data.shape[1:], default=0) <= _SMALL,
            "names": {row: data.names[row] for row in rows.tolist()} if len(data.names) else {},
            "thumbnails": thumbnails(data, rows),
        }

    def _of_prototypes(self) -> dict[str, Any]:
        """Return the page's content where samples stay with their clients."""
        found = self._prototypes()
        return {
            "samples": sum(size for size, _ in found.sizes.values()),
            "views": [],
            "pairs": found.pairs,
            "planes": {},
            "prototypes": found,
            "circles": zip(found.places.tolist(), found.radii, found.clusters, strict=True),
        }

    def _prototypes(self) -> PrototypeMap:
        """Return the server's prototypes, or the model's centroids."""
        found = server_slots(self.directory.checkpoints).get("prototypes", {})
        if {"points", "counts", "members"} <= found.keys():
            clusters, _ = most_probable(found["members"], self._outliers)
            return prototype_map(found["points"], found["counts"], clusters, self._clusters())
        head = load_model(self.directory.model, self.config.trust).head
        if isinstance(head, Centroids):
            many = len(head.centroids)
            return prototype_map(head.centroids, torch.ones(many), torch.arange(many), many)
        raise ConfigError(
            f"run={self.directory.path}: its data stays with its clients, and its method has no "
            "prototypes to show; report.html counts each client's samples by cluster."
        )

    def _without_assignments(self, path: Path) -> str:
        """Return why a run has assigned no samples, in a sentence."""
        if load_target(target_of(self.config.method)).needs_labels:
            why = (
                "its method learns the data's classes, not clusters; choose another, such as kmeans"
            )
        else:
            why = "the run has not ended; go on with resume=true"
        return f"run={self.directory.path}: it has no {path.name}: {why}."

    def _assigned(self, data: DataArrays) -> Assigned:
        """Return the run's assignments, checked against the data."""
        path = self.directory.assignments
        if not path.is_file():
            raise ConfigError(self._without_assignments(path))
        many = len(data.samples)
        table = _read_assignments(path, many, self._clusters(), outliers=self._outliers)
        rows = table["sample"].to_numpy()
        names = table["name"].to_pylist() if "name" in table.column_names else []
        if names and names != [utf8_name(data.names[row]) for row in rows if row < len(data.names)]:
            raise _other_samples(many)
        clusters = table["cluster"].to_numpy().astype(np.int64)
        confidence = table["confidence"].to_numpy()
        return Assigned(rows, clusters, confidence, self._clusters(), self._outliers)

    def _looked_at(self, data: DataArrays, rows: Rows) -> Prediction:
        """Return the model's prediction for some samples."""
        model = load_program(self.directory.model)
        predictor = BatchPredictor(
            load_model(self.directory.model, self.config.trust) if model is None else model,
            self.config.accelerator,
            self.config.cluster.threads_per_client,
        )
        size = min(64, self.config.evaluation.batch_size)
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        batches = (SampleBatch(data.samples[part]) for part in self.watch(parts, len(parts)))
        return join(prediction for _, prediction in predictor.predict_all(batches))


def _read_assignments(path: Path, samples: int, clusters: int, *, outliers: bool) -> Any:
    """Return a run's assignments as a table that fits its data and its model.

    Raises:
        ConfigError: If the file is damaged, or not one that runs write.
        DataError: If it is of more samples than there are.
    """
    try:
        with open_regular(path) as file:
            opened = ParquetTable(file, os.fstat(file.fileno()).st_size)
            if opened.rows > samples:
                raise _other_samples(samples)
            table = opened.read(_found_columns(opened.schema))
        rows = _checked_rows(table, OUTLIER if outliers else 0, clusters)
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise ConfigError(
            f"{path}: it is damaged ({reason(error)}); delete it and resume the run, which writes "
            "it again."
        ) from error
    if rows.max() >= samples:
        raise _other_samples(samples)
    return table


def _found_columns(schema: Any) -> list[str]:
    """Return the columns to read, or raise a ValueError if one is missing or of another type."""
    given = {field.name: field.type for field in schema}
    found = [name for name in _COLUMNS if name in {*_NEEDED, *given}]
    if any(given.get(name) != _COLUMNS[name] for name in found):
        raise ValueError(f"its columns are {', '.join(given)}")
    return found


def _checked_rows(table: Any, lowest: int, clusters: int) -> Rows:
    """Return the samples, or raise a ValueError if an entry is missing or out of range.

    Args:
        table: The assignments.
        lowest: The least number of a cluster.
        clusters: Number of clusters.
    """
    if not len(table) or any(column.null_count for column in table.columns):
        raise ValueError("it lacks entries")
    rows: Rows = table["sample"].to_numpy()
    own = table["cluster"].to_numpy()
    if rows.min() < 0 or own.min() < lowest or own.max() >= clusters:
        raise ValueError("it has samples or clusters out of range")
    return rows


def _other_samples(samples: int) -> DataError:
    return DataError(
        f"data: its {samples:,} samples are not those that the run has clustered; "
        "give those with data.path or data.root."
    )


def thumbnails(data: DataArrays, rows: Rows) -> dict[int, str] | None:
    """Return pictures of up to 96 pixels a side as data URIs, by row; None for vectors."""
    if data.samples.dtype != np.uint8 or data.samples.ndim != 4 or data.shape[0] not in (1, 3):
        return None
    return dict(_encoded(data, rows))


def _encoded(data: DataArrays, rows: Rows) -> Iterator[tuple[int, str]]:
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        for row, pixels in zip(part.tolist(), data.samples[part], strict=True):
            yield row, _thumbnail(pixels)


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "WEBP", quality=70, method=2, lossless=max(image.size) <= _SMALL)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
