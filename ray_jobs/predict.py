"""Assign new samples: `python -m ray_jobs.predict model=RUN/model input=PATH [key=value …]`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.commands.arguments import backend_at_hand, read_values
from coterie.commands.help_text import command_help
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.config.schema import ClusterConfig, Threads

if TYPE_CHECKING:
    from coterie.contract.clusterer import Clusterer
    from coterie.contract.data import SampleBatch
    from coterie.execution.predictor import Predicted

    Predict = Callable[[Iterable[SampleBatch]], Iterator[Predicted]]

_GivenPath = Annotated[str, Field(min_length=1)]


class WorkersConfig(Component):
    """Where to predict."""

    backend: Literal["auto", "ray", "serial"] = "auto"
    """`ray`: actors; `serial`: this process; `auto`: Ray where cluster.address, cluster.num_actors
    or RAY_ADDRESS is given."""
    address: str | None = None
    """A running cluster's address; without one RAY_ADDRESS counts, else a local Ray is started."""
    num_actors: PositiveInt | None = None
    """Actors to start; by default as many as the resources hold."""
    cpus_per_client: PositiveFloat = 1.0
    """CPUs that Ray reserves for an actor."""
    gpus_per_client: Annotated[float, Field(ge=0.0)] = 0.0
    """GPU slice of an actor; 0 gives each a whole one where the cluster has any."""
    threads_per_client: Threads = 1
    """CPU threads of PyTorch; another number, other bits."""
    start_timeout_s: PositiveFloat = 180.0
    """How long to wait for the cluster to grant the actors."""
    max_actor_restarts: NonNegativeInt = 3
    """Actors replaced before the prediction fails."""

    def as_cluster(self) -> ClusterConfig:
        """The cluster's config, its backend decided."""
        keys = self.model_dump()
        if self.backend == "auto":
            keys["backend"] = backend_at_hand(keys)
        return ClusterConfig(**keys)


class PredictConfig(Component):
    """What to predict, with what, and where to."""

    model: _GivenPath
    """A finished run's folder, or its `model/`."""
    input: _GivenPath
    """A folder of pictures, or a .npy, .npz, .parquet or .csv file."""
    output: _GivenPath = "assignments.parquet"
    """Where to write sample, name, cluster and confidence; a file that exists is refused."""
    embedding: bool = False
    """Write each sample's representation too."""
    batch_size: PositiveInt = 512
    """Samples a batch; with the run's evaluation.batch_size its own samples give its own bits."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of prediction; `auto` takes a GPU if there is one."""
    cluster: WorkersConfig = WorkersConfig()


def main(arguments: Sequence[str]) -> int:
    """Predict what the arguments ask for.

    Returns:
        The exit code: 0 done; 1 failed; 2 arguments, model or samples refused; 130 interrupted.
    """
    return run_command(_predict, arguments, _help)


def _help(*arguments: str) -> str:
    return command_help(
        "Assigns new samples to the clusters of a finished run.",
        "usage: python -m ray_jobs.predict model=RUN/model input=PATH [KEY=VALUE ...]",
        PredictConfig,
    )


def _predict(arguments: Sequence[str]) -> int:
    config = load_component(PredictConfig, read_values(arguments))
    # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
    from coterie.models.assignments import AssignmentsFile, check_output
    from coterie.models.loading import load_model
    from coterie.models.saved_model import model_folder, read_description
    from coterie.run.interrupts import Interrupts
    from datamodules.fitting import Fitting
    from datamodules.streams import open_samples

    output = Path(config.output).expanduser()
    check_output(output)
    described = read_description(model_folder(config.model))
    wanted = described["input"]
    fitting = Fitting(
        tuple(wanted["shape"]), images=wanted["dtype"] == "uint8", mode=wanted["mode"]
    )
    stream = open_samples(Path(config.input).expanduser(), fitting, config.batch_size)
    model = load_model(config.model)
    file = AssignmentsFile(
        output,
        named=stream.named,
        clustered=described["clusters"] is not None,
        features=described["features"] if config.embedding else None,
    )
    with file, Interrupts() as interrupts:

        def stop() -> None:
            interrupts.check("nothing was written")

        with _predictor(config, model, stop) as predict:
            for predicted in _shown(predict(stream.batches), stream.total):
                stop()
                file.write(predicted)
    Console(soft_wrap=True).print(f"{file.rows:,} samples in {output}", highlight=False)
    return 0


@contextmanager
def _predictor(
    config: PredictConfig, model: "Clusterer", stop: Callable[[], None]
) -> Iterator["Predict"]:
    cluster = config.cluster.as_cluster()
    if cluster.backend == "serial":
        from coterie.execution.predictor import BatchPredictor

        yield BatchPredictor(model, config.accelerator, cluster.threads_per_client).predict_all
        return
    from coterie.distributed.prediction_actors import PredictionActors

    pool = PredictionActors(model, cluster, config.accelerator, stop)
    try:
        yield pool.predict_all
    finally:
        pool.close()


def _shown(predictions: Iterable["Predicted"], total: int | None) -> Iterator["Predicted"]:
    """The predictions, with a progress bar on stderr."""
    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        for predicted in predictions:
            yield predicted
            progress.advance(task, len(predicted[0].samples))


if __name__ == "__main__":
    run_program(main)
