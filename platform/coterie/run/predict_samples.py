"""Assigns new samples to the clusters of a saved model, in this process or on Ray actors."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from coterie.config.schema import ClusterConfig
from coterie.contract.data import SampleBatch
from coterie.execution.batch_predictor import BatchPredictor, Predicted
from coterie.execution.device import Accelerator
from coterie.models.assignments import AssignmentsFile
from coterie.models.loading import load_model
from coterie.models.named_clusters import read_named_clusters
from coterie.models.saved_model import model_folder, read_description
from coterie.models.saved_program import load_program
from coterie.run.interrupts import Interrupts

Predict = Callable[[Iterable[SampleBatch]], Iterator[Predicted]]
"""Predicts batches in order."""
Watch = Callable[[Iterator[Predicted]], Iterable[Predicted]]
"""Passes predictions on, for example with a progress bar."""


def predict_samples(
    batches: Iterable[SampleBatch],
    output: Path,
    *,
    model: str,
    named: bool,
    of_clients: bool = False,
    embedding: bool,
    cluster: ClusterConfig,
    accelerator: Accelerator,
    clusters: Path | None = None,
    trust: Collection[str] = (),
    watch: Watch = iter,
) -> int:
    """Predict samples with a run's model and write their assignments to a file.

    Args:
        batches: The samples.
        output: The .parquet or .csv file to write; it appears whole or not at all.
        model: A finished run's folder, or its `model/`.
        named: Whether the samples have names.
        of_clients: Whether they have clients.
        embedding: Whether to write the representations as well.
        cluster: Where to predict.
        accelerator: Device of prediction.
        clusters: Names of the clusters, see `coterie.models.named_clusters`.
        trust: Packages that its config may import, besides Coterie's own, if the model could not
            be exported.
        watch: Sees the predictions pass.

    Returns:
        The number of samples written.

    Raises:
        ConfigError: If the names of the clusters are not this model's.
        DataError: If the model or a sample cannot be read.
        InterruptedRunError: If Ctrl-C or SIGTERM came; nothing is written then.
    """
    described = read_description(model_folder(model))
    owned, names = None, tuple(described["classes"] if described["classifies"] else ())
    if clusters is not None:
        owned = read_named_clusters(clusters, model_folder(model), described)
        names = owned.names
    # The program needs none of the classes that the run's config names.
    clusterer = load_program(model_folder(model)) or load_model(model, trust)
    file = AssignmentsFile(
        output,
        named=named,
        of_clients=of_clients,
        clustered=described["clusters"] is not None,
        features=described["features"] if embedding else None,
        cluster_names=names,
        outliers=described["outliers"] if owned is None else owned.outliers,
    )
    with file, Interrupts() as interrupts:

        def stop() -> None:
            interrupts.check("nothing was written")

        with _predictor(clusterer, cluster, accelerator, stop) as predict:
            for batch, prediction in watch(predict(batches)):
                stop()
                file.write((batch, prediction if owned is None else owned.of(prediction)))
    return file.rows


@contextmanager
def _predictor(
    model: nn.Module, cluster: ClusterConfig, accelerator: Accelerator, stop: Callable[[], None]
) -> Iterator[Predict]:
    """Return the model in this process, or in Ray actors that end with the context."""
    if cluster.backend == "serial":
        yield BatchPredictor(model, accelerator, cluster.threads_per_client).predict_all
        return
    from coterie.distributed.prediction_actors import PredictionActors

    pool = PredictionActors(model, cluster, accelerator, stop)
    try:
        yield pool.predict_all
    finally:
        pool.close()
