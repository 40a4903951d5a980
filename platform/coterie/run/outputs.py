"""Writes a run's directory: models, assignments, summary and figures."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.checkpoints.retention import pointed_to
from coterie.config.about import about
from coterie.config.component import target_of
from coterie.config.record_names import Status
from coterie.contract.clusterer import Clusterer
from coterie.contract.data import DataArrays, Indices
from coterie.contract.own_module import FederatesModule
from coterie.contract.phase import ServerState
from coterie.errors import DataError
from coterie.evaluation.canvas import guarded
from coterie.evaluation.class_separation import class_distances_figure
from coterie.evaluation.cluster_figure import Clustered, cluster_figure
from coterie.evaluation.figures import confusion_figure, curves_figure, embedding_figure
from coterie.evaluation.label_distribution import client_names
from coterie.evaluation.scorer import Evaluation
from coterie.execution.device import client_device, device_name
from coterie.models.module_checkpoint import write_module
from coterie.models.saved_model import BEST, CHECKPOINT, blank_sample, write_model
from coterie.models.saved_program import write_program
from coterie.peers.links import modelled_seconds
from coterie.rounds.state import Ledger, RunState
from coterie.run.history import curves_of
from coterie.run.recorder import Recorder
from coterie.run.setup import Assembly
from coterie.tracking.atomic import replacing
from coterie.tracking.environment import commit
from coterie.tracking.metrics_log import flat
from coterie.tracking.paths import refuse_link
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.summary import Summary

Tell = Callable[[str], None]
"""Shows the user a sentence."""


def write_models(
    directory: RunDirectory,
    model: Clusterer,
    recorder: Recorder,
    server: ServerState,
    data: DataArrays,
) -> None:
    """Write `model/` and, if the method groups clients, `model/groups/<group>/`."""
    refuse_link(directory.model)
    if isinstance(recorder.method, FederatesModule):
        _write_modules(directory, recorder.method, recorder, server)
        return
    groups = directory.model / "groups"
    shutil.rmtree(groups, ignore_errors=True)  # of the same run before it was extended
    write_model(directory.model, model, directory.config, server, data)
    write_program(directory.model, model, blank_sample(data))
    if recorder.groups is None:
        return
    for group, clients in recorder.groups.members(server).items():
        own = recorder.method.model_for(server, clients[0]).eval()
        write_model(groups / str(group), own, directory.config, server, data)


def _write_modules(
    directory: RunDirectory, method: FederatesModule, recorder: Recorder, server: ServerState
) -> None:
    """Write a user's module with its last values, and with those of the best checkpoint."""
    directory.model.mkdir(parents=True, exist_ok=True)
    (directory.model / BEST).unlink(missing_ok=True)  # of the same run before it was extended
    states = {CHECKPOINT: server}
    if recorder.config.checkpoint.best and pointed_to(directory.checkpoints, "best"):
        try:
            best = load_checkpoint(directory.checkpoints, recorder.backend, "best")
            value = best.state.best  # None where the metric is another one now
            if value is not None and recorder.config.checkpoint.judges_as(best.config):
                states[BEST] = best.state.server
                recorder.observer.note(
                    f"{BEST} is of round {best.state.server.round}, "
                    f"{recorder.config.checkpoint.best}={value:.4g}."
                )
        except DataError as error:
            recorder.observer.note(f"{BEST} is not written: {error}")
    for name, state in states.items():
        write_module(directory.model / name, method.module_for(state, None), round_=state.round)


def write_assignments(
    path: Path, evaluation: Evaluation, parts: Sequence[Indices], data: DataArrays
) -> None:
    """Write `assignments.parquet`: sample, client, cluster and confidence of each sample.

    Where they have names, such as files and sites, these are in `name` and `client_name`.
    """
    if evaluation.assignments is None or evaluation.confidence is None:
        return
    rows = np.concatenate(parts)
    clients = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(rows, kind="stable")
    rows, clients = rows[order], clients[order]
    sites = client_names(data, parts)
    table = pa.table(
        {
            "sample": pa.array(rows, pa.int64()),
            **({"name": [utf8_name(data.names[row]) for row in rows]} if len(data.names) else {}),
            "client": pa.array(clients, pa.int32()),
            **({"client_name": [utf8_name(sites[k]) for k in clients]} if sites else {}),
            "cluster": pa.array(evaluation.assignments[rows], pa.int32()),
            "confidence": pa.array(evaluation.confidence[rows], pa.float32()),
        }
    )
    with replacing(path, private=True) as temporary:
        pq.write_table(table, temporary)


def utf8_name(name: str) -> str:
    """Return a name as text that any file can hold, with other bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def summary_of(
    assembly: Assembly,
    state: RunState | None,
    *,
    status: Status,
    metrics: Mapping[str, Mapping[str, float]],
    failures: tuple[str, ...],
    seconds: Mapping[str, float],
    privacy: Mapping[str, float | str],
    devices: Collection[str],
    error: str | None,
) -> Summary:
    """Return the content of `summary.json`; the state is None if the run never began.

    `devices` are the names of what clients have computed on; the other arguments are `Summary`'s.
    """
    config = assembly.workload.config
    ledger = state.ledger if state else Ledger()
    return Summary(
        status=status,
        method=target_of(config.method).rpartition(":")[2],
        dataset=assembly.data.name,
        rounds=state.server.round if state else 0,
        clients=len(assembly.workload.parts),
        seed=config.seed,
        commit=commit(),
        device="; ".join(sorted(devices)) or device_name(client_device(config)),
        metrics=metrics,
        bytes={**ledger.totals, "evaluation": ledger.evaluation},
        items_peer=ledger.items,
        modelled_seconds=modelled_seconds(ledger.totals, config.links),
        simulated=state.simulated if state else {},
        failures=failures,
        seconds=seconds,
        privacy=privacy,
        error=error,
    )


def draw_figures(
    folder: Path,
    evaluation: Evaluation,
    data: DataArrays,
    recorder: Recorder,
    server: ServerState,
    *,
    seed: int,
    tell: Tell,
) -> list[Path]:
    """Draw curves, groups of clients, and the figures of `draw_evaluation`.

    Returns:
        The figures; one that cannot be drawn is told instead.
    """
    line = about([recorder.config])
    drawn = []
    path = folder / "curves.png"
    with guarded(path, tell):
        final = {"round": server.round, **flat(evaluation.metrics)}
        curves, stages = curves_of([*recorder.tracker.rows("server"), final])
        if curves:
            drawn.append(curves_figure(curves, path, stages, line))
    path = folder / "client_groups.png"
    with guarded(path, tell):
        groups = None if recorder.groups is None else recorder.groups.draw(path, server, line)
        drawn += [] if groups is None else [groups]
    return [*drawn, *draw_evaluation(folder, evaluation, data, seed=seed, line=line, tell=tell)]


def draw_evaluation(
    folder: Path,
    evaluation: Evaluation,
    data: DataArrays,
    *,
    seed: int,
    line: str,
    tell: Tell,
) -> list[Path]:
    """Draw confusion after matching, clusters, distances of classes, and t-SNE.

    `tell` is called with a sentence about each figure that cannot be drawn.
    """
    drawn, embedding, labels = [], evaluation.embedding, data.labels
    if evaluation.table is not None:
        path = folder / "confusion.png"
        with guarded(path, tell):
            drawn.append(confusion_figure(evaluation.table, data.classes, path, line))
    if evaluation.assignments is not None and evaluation.confidence is not None:
        found = Clustered(embedding, evaluation.assignments, evaluation.confidence, data.samples)
        path = folder / "clusters.png"
        with guarded(path, tell):
            drawn.append(cluster_figure(found, path, seed=seed, about=line))
    if not len(embedding):  # a module of the user's own represents nothing
        return drawn
    if labels is not None and len(np.unique(labels[labels >= 0])) > 1:
        path = folder / "class_distances.png"
        with guarded(path, tell):
            drawn.append(
                class_distances_figure(embedding, labels, data.classes, path, seed=seed, about=line)
            )
    # t-SNE colours all samples by class, or none.
    if labels is not None and (labels < 0).any():
        labels = None
    if len(embedding) >= 5 and (labels is not None or evaluation.assignments is not None):
        path = folder / "tsne.png"
        with guarded(path, tell):
            drawn.append(
                embedding_figure(
                    embedding.float().numpy(),  # NumPy has no bfloat16
                    labels,
                    evaluation.assignments,
                    data.classes,
                    path,
                    seed=seed,
                    about=line,
                )
            )
    return drawn
