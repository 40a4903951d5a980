"""Assign new samples: `coterie predict model=RUN/model input=PATH [key=value …]`."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.commands.arguments import backend_at_hand, read_values
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.given_path import given_path
from coterie.config.loading import load_component
from coterie.config.schema import ClusterConfig, Gpus, Threads
from coterie.config.trust import Trust
from coterie.errors import printable
from coterie.tracking.terminal import Terminal

if TYPE_CHECKING:
    from coterie.execution.batch_predictor import Predicted


class WorkersConfig(Component):
    """Where to predict."""

    backend: Literal["auto", "ray", "serial"] = "auto"
    """`ray`: actors; `serial`: this process; `auto`: Ray if cluster.address, cluster.num_actors or
    RAY_ADDRESS is given."""
    address: str | None = None
    """Address of a running cluster; by default RAY_ADDRESS, or else a local Ray is started."""
    num_actors: PositiveInt | None = None
    """Number of actors; by default as many as the resources hold."""
    cpus_per_client: PositiveFloat = 1.0
    """CPUs that Ray reserves for an actor."""
    gpus_per_client: Gpus = 0.0
    """GPU share of an actor; 0 gives each a whole GPU if the cluster has any."""
    threads_per_client: Threads = 1
    """CPU threads of PyTorch; another number changes the bits."""
    start_timeout_s: PositiveFloat = 180.0
    """Seconds to wait for the cluster to grant the actors."""
    max_actor_restarts: NonNegativeInt = 3
    """Actors that are replaced before the prediction fails."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Accept `cluster=serial`, as training does."""
        return {"backend": given} if isinstance(given, str) else given

    def as_cluster(self) -> ClusterConfig:
        """Return the cluster's config, with the backend decided."""
        keys = self.model_dump()
        if self.backend == "auto":
            keys["backend"] = backend_at_hand(keys)
        return ClusterConfig(**keys)


class PredictConfig(Component):
    """What to predict, with what, and where to write."""

    model: NotEmpty
    """A finished run's folder, or its `model/`."""
    input: NotEmpty
    """A folder of pictures or shards, or a .npy, .npz, .parquet or .csv file."""
    output: NotEmpty = "assignments.parquet"
    """A new .parquet or .csv file for sample, name, client, cluster and confidence."""
    clusters: NotEmpty | None = None
    """A file of names, merges and splits that was saved from the page of `coterie show`."""
    on_error: Literal["refuse", "skip"] = "refuse"
    """What to do about pictures that cannot be read and rows with empty cells: end the command, or
    leave them out."""
    embedding: bool = False
    """Write each sample's representation as well; this requires Parquet."""
    batch_size: PositiveInt = 512
    """Samples per batch; the run's evaluation.batch_size reproduces the run's bits."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of prediction; `auto` takes a GPU if there is one."""
    cluster: WorkersConfig = WorkersConfig()
    trust: Trust = ()
    """Packages that the model's config may import, if the model could not be exported."""


@command(
    "Assigns new samples to the clusters of a finished run.",
    "usage: coterie predict model=RUN/model input=PATH [KEY=VALUE ...]",
    PredictConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Predict the samples that the arguments name."""
    config = load_component(PredictConfig, read_values(arguments))
    from coterie.config.stored import read_stored_config
    from coterie.datamodules.fitting import Fitting, as_trained
    from coterie.datamodules.streams import open_samples
    from coterie.datamodules.table_columns import columns_as_trained
    from coterie.models.assignments import check_output
    from coterie.models.loading import check_sizes
    from coterie.models.saved_model import model_folder, read_description
    from coterie.run.predict_samples import predict_samples

    output = given_path("output", config.output)
    check_output(output, embedding=config.embedding)
    folder = model_folder(config.model)
    description = read_description(folder)
    check_sizes(folder, description)
    wanted, data = description["input"], read_stored_config(folder / "config.yaml").get("data", {})
    fitting = Fitting(
        tuple(wanted["shape"]),
        images=wanted["dtype"] == "uint8",
        mode=wanted["mode"],
        **as_trained(data),
    )
    path, columns = given_path("input", config.input), columns_as_trained(data)
    columns = columns._replace(features=columns.features or tuple(wanted["columns"]))
    stream = open_samples(path, fitting, config.batch_size, config.on_error, columns)
    rows = predict_samples(
        stream.batches,
        output,
        model=config.model,
        named=stream.named,
        of_clients=stream.of_clients,
        embedding=config.embedding,
        cluster=config.cluster.as_cluster(),
        accelerator=config.accelerator,
        clusters=None if config.clusters is None else given_path("clusters", config.clusters),
        trust=config.trust,
        watch=partial(_shown, total=stream.total),
    )
    terminal = Terminal(soft_wrap=True, highlight=False)
    terminal.print(f"{rows:,} samples in {printable(str(output))}")
    if description["clusters"] is None:
        terminal.print(
            "The model has no clusters, so none are written: resume its run with "
            "evaluation.clusters=K, or take embedding=true."
        )
    return 0


def _shown(predictions: Iterable["Predicted"], total: int | None) -> Iterator["Predicted"]:
    """Yield predictions with a progress bar on stderr."""
    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Terminal(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        for predicted in predictions:
            yield predicted
            progress.advance(task, len(predicted[0].samples))
        progress.update(task, total=progress.tasks[task].completed)  # some may be left out


if __name__ == "__main__":
    run_program(main)
