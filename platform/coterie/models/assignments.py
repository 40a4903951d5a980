"""Writes predictions for new samples to a Parquet or CSV file, batch by batch."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from coterie.contract.clusterer import most_probable
from coterie.errors import ConfigError
from coterie.execution.batch_predictor import Predicted
from coterie.tracking.atomic import replacing
from coterie.tracking.csv_text import cell

_GROUP_ROWS = 8192


class AssignmentsFile:
    """A Parquet or CSV file of predictions, with those of the columns below that are known.

    The columns are sample, name, client_name, cluster, cluster_name, confidence and embedding.
    Rows are written to a temporary file, which becomes the path on success (`replacing`). Its owner
    alone can read it. In CSV, a name that a
    spreadsheet would run gets an apostrophe.

    Args:
        path: A .parquet or .csv file; missing folders are created. An existing file is never
            replaced.
        named: Whether to write names.
        of_clients: Whether to write the clients' names.
        clustered: Whether to write cluster and confidence.
        features: The embedding's width, or None to leave the embedding out.
        cluster_names: Names of the clusters, if they have any.
        outliers: Whether the last of the probabilities is that of outliers, whose cluster is -1.

    Raises:
        ConfigError: If the file exists, cannot be written, or cannot hold what it is to hold.
    """

    def __init__(
        self,
        path: Path,
        *,
        named: bool,
        of_clients: bool = False,
        clustered: bool,
        features: int | None,
        cluster_names: Sequence[str] = (),
        outliers: bool = False,
    ) -> None:
        fields = [("sample", pa.int64())]
        fields += [("name", pa.string())] if named else []
        fields += [("client_name", pa.string())] if of_clients else []
        fields += [("cluster", pa.int32())] if clustered else []
        fields += [("cluster_name", pa.string())] if cluster_names else []
        fields += [("confidence", pa.float32())] if clustered else []
        fields += [("embedding", pa.list_(pa.float32(), features))] if features else []
        self._schema = pa.schema(fields)
        self._features, self._cluster_names = features, cluster_names
        self._outliers = outliers
        self._csv = path.suffix.lower() == ".csv"
        self._held: list[Any] = []
        self.rows = 0
        check_output(path, embedding=features is not None)
        try:
            with ExitStack() as stack:
                temporary = stack.enter_context(replacing(path, private=True))
                writer = pa_csv.CSVWriter if self._csv else pq.ParquetWriter
                self._writer = writer(str(temporary), self._schema)
                self._written = stack.pop_all()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"output={path}: it cannot be written there ({reason}); choose another folder."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._flush()
            self._writer.close()
        except BaseException as failed:
            self._written.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._written.__exit__(kind, error, traceback)

    def write(self, predicted: Predicted) -> None:
        """Append a batch's rows."""
        batch, prediction = predicted
        count = len(batch.samples)
        columns: dict[str, Any] = {"sample": np.arange(self.rows, self.rows + count)}
        if "name" in self._schema.names:
            columns["name"] = batch.names
        if "client_name" in self._schema.names:
            columns["client_name"] = batch.clients
        if prediction.probabilities is not None and "cluster" in self._schema.names:
            cluster, confidence = most_probable(prediction.probabilities, self._outliers)
            columns["cluster"] = cluster.int().numpy()
            columns["confidence"] = confidence.float().numpy()
            if self._cluster_names:
                columns["cluster_name"] = [self._cluster_names[own] for own in cluster.tolist()]
        for text in {"name", "client_name", "cluster_name"} & columns.keys() if self._csv else ():
            columns[text] = [cell(each) for each in columns[text]]
        if self._features:
            flat = pa.array(prediction.embedding.float().numpy().ravel())
            columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, self._features)
        self._held.append(pa.table(columns, schema=self._schema))
        self.rows += count
        if sum(map(len, self._held)) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held).combine_chunks())
        self._held = []


def check_output(path: Path, *, embedding: bool) -> None:
    """Refuse a file that exists, is of an unknown kind, or cannot hold the columns."""
    kind = path.suffix.lower()
    if kind not in {".parquet", ".csv"}:
        raise ConfigError(f"output={path}: its kind is unknown; name it .parquet or .csv.")
    if kind == ".csv" and embedding:
        raise ConfigError(f"output={path}: CSV cannot hold embeddings; name it .parquet.")
    if os.path.lexists(path):
        raise ConfigError(
            f"output={path}: it already exists; choose another name, or remove it first."
        )
