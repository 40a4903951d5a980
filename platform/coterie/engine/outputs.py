"""What a finished run leaves in its directory: model, assignments, figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save_file

from coterie.contract.data import DataArrays, Indices
from coterie.contract.phase import ServerState
from coterie.engine.recorder import Recorder
from coterie.evaluation.figures import confusion_figure, curves_figure, embedding_figure
from coterie.evaluation.runner import Evaluation
from coterie.networks.clusterer import Clusterer
from coterie.tracking.run_directory import RunDirectory, write_text_atomically


def write_model(
    directory: RunDirectory, model: Clusterer, server: ServerState, data: DataArrays
) -> None:
    """Write `model/`: the weights as safetensors, and what it takes to build the network again."""
    directory.model.mkdir(parents=True, exist_ok=True)
    weights = {key: value.contiguous() for key, value in model.cpu().state_dict().items()}
    save_file(weights, directory.model / "model.safetensors")
    described = {
        "round": server.round,
        "shape": list(data.shape),
        "classes": list(data.classes),
        "clusters": model.head is not None and not model.classifies,
        "config": "../config.yaml",
    }
    write_text_atomically(directory.model / "model.json", json.dumps(described, indent=2) + "\n")
    (directory.model / "config.yaml").write_text(directory.config.read_text())


def write_assignments(path: Path, evaluation: Evaluation, parts: Sequence[Indices]) -> None:
    """Write `assignments.parquet`: sample, client, cluster, confidence; one row per sample held."""
    if evaluation.assignments is None or evaluation.confidence is None:
        return
    rows = np.concatenate(parts)
    clients = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(rows, kind="stable")
    rows, clients = rows[order], clients[order]
    confidence = evaluation.confidence[rows]
    table = pa.table(
        {
            "sample": pa.array(rows, pa.int64()),
            "client": pa.array(clients, pa.int32()),
            "cluster": pa.array(evaluation.assignments[rows], pa.int32()),
            "confidence": pa.array(confidence, pa.float32(), mask=np.isnan(confidence)),
        }
    )
    pq.write_table(table, path)


def draw_figures(
    folder: Path, evaluation: Evaluation, data: DataArrays, recorder: Recorder, seed: int
) -> list[Path]:
    """Draw curves, confusion after matching, and t-SNE of a sample."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    curves: Mapping[str, Sequence[tuple[int, float]]] = recorder.curves
    if any(curves.values()):
        drawn.append(curves_figure(curves, folder / "curves.png", recorder.stages))
    if evaluation.table is not None:
        drawn.append(confusion_figure(evaluation.table, data.classes, folder / "confusion.png"))
    labels = data.labels  # the map colours every sample or none
    if labels is not None and (labels < 0).any():
        labels = None
    if len(evaluation.embedding) >= 5 and (
        labels is not None or evaluation.assignments is not None
    ):
        drawn.append(
            embedding_figure(
                evaluation.embedding.numpy(),
                labels,
                evaluation.assignments,
                data.classes,
                folder / "tsne.png",
                seed=seed,
            )
        )
    return drawn
