"""The configuration of a run; all defaults are here or in the components' own models."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from coterie.config.aggregation import AggregationConfig
from coterie.config.component import Component, NotEmpty
from coterie.config.method import MethodConfig
from coterie.config.participation import ParticipationConfig
from coterie.config.partition import PartitionConfig
from coterie.config.privacy import PrivacyConfig
from coterie.config.target import LoggerChoice, Target
from coterie.config.trust import Trust

_LOWER = frozenset(
    {"loss", "error", "err", "mse", "mae", "rmse", "nll", "perplexity", "wer", "cer"}
)
"""Words in the name of a metric of which less is better."""
Threads = Annotated[int, Field(ge=1, le=1024)]
"""CPU threads; bounded because OpenMP aborts the process if it cannot start them."""
Precision = Literal["32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true"]


def _none_if_auto(value: Any) -> Any:
    return None if value == "auto" else value


def _share_of_gpus(gpus: float) -> float:
    """Refuse GPU shares that leave more than a twentieth unused, and shares such as 1.5 GPUs."""
    if gpus > 1 and gpus % 1:
        raise ValueError(
            f"an actor with more than one GPU takes whole GPUs; give {int(gpus)} or {int(gpus) + 1}"
        )
    fit = int(1 / gpus + 1e-9) if 0 < gpus < 1 else 0
    if fit and 1 - fit * gpus > 1 / 20:
        raise ValueError(
            f"{fit} × {gpus:g} leave {1 - fit * gpus:.2g} of each GPU unused; give "
            f"{1 / (fit + 1):.3g} for {fit + 1} actors on a GPU or {1 / fit:.3g} for {fit}"
        )
    return gpus


Gpus = Annotated[float, Field(ge=0.0), AfterValidator(_share_of_gpus)]
"""GPUs of an actor: none, 1/n, or a whole number."""


class ClusterConfig(Component):
    """Where the clients run."""

    backend: Literal["ray", "serial"] = "ray"
    """`ray`: actors, at most one per client; `serial`: this process, without Ray."""
    address: str | None = None
    """Address of a running cluster; by default RAY_ADDRESS, or else a local Ray is started."""
    num_actors: Annotated[PositiveInt | None, BeforeValidator(_none_if_auto)] = None
    """Number of actors, or `auto`, the default: one per client of a round, or as many as the
    resources allow, which may grow with the cluster during the run."""
    min_actors: PositiveInt | None = None
    """Actors to wait for at the start; others join when the cluster has room. By default all of
    `num_actors`, or one with `auto`."""
    cpus_per_client: PositiveFloat = 1.0
    """CPUs that Ray reserves for an actor."""
    gpus_per_client: Gpus = 0.0
    """GPU share of an actor, including its memory: 1/n or whole GPUs; 0.25 puts four actors on one
    GPU."""
    placement: Literal["any", "strict_spread"] = "any"
    """`any`: as many of the run's actors on a node as fit; `strict_spread`: at most one per node,
    for node-local data, or where an actor needs a node's whole memory and network."""
    threads_per_client: Threads = 1
    """CPU threads of PyTorch in each actor and the driver; another number changes the bits."""
    start_timeout_s: PositiveFloat = 180.0
    """Seconds to wait until the cluster has started the actors; with an autoscaler, until it has
    added nodes."""
    client_resources: Mapping[str, PositiveFloat] = {}
    """For node-local data: how much of the Ray resource of the same name each client takes;
    {site_a: 1} places client site_a on a node with the resource site_a."""
    vmap_clients: PositiveInt = 32
    """Clients that `executor=vmap` trains as one model; a process holds all of them in memory."""
    max_actor_restarts: NonNegativeInt = 3
    """Actors replaced in one phase; when more die, the run fails."""

    @model_validator(mode="after")
    def _least_fits(self) -> "ClusterConfig":
        least, most = self.min_actors, self.num_actors
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_actors={least} exceeds num_actors={most}; lower it")
        return self

    @property
    def join_address(self) -> str:
        """The address to join; by default RAY_ADDRESS, which is set in a submitted job.

        `auto` for the one cluster of this machine; `local` to start one.
        """
        if self.address in {None, "auto"}:
            return os.environ.get("RAY_ADDRESS") or self.address or "local"
        return self.address


class FaultsConfig(Component):
    """How the run reacts to clients that fail."""

    on_client_failure: Literal["retry", "drop", "fail"] = "retry"
    """`retry`: run the client once more, then drop it from the phase; `drop`: continue without it;
    `fail`: end the run."""
    client_timeout_s: PositiveFloat | None = None
    """Seconds after which a client's task, or its step of secure aggregation, has failed; by
    default without limit. Slow training is stopped between steps; on Ray, an actor that hangs is
    killed."""
    on_state_loss: Literal["rewind", "stale"] = "rewind"
    """When clients' states are lost with their node: `rewind` takes the whole run back to the last
    checkpoint, with the same bits; `stale` takes only these clients back, with other bits."""
    max_growth: Annotated[float, Field(ge=1.0)] | None = 1e4
    """An update is refused if one of its values is more than this factor times the largest value of
    the server's slot, or times 1 if that is larger; null for no limit. It has no effect on sums
    over samples, which have their own bounds, or on a median or trimmed mean."""
    min_participation: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Share of the cohort that has to succeed in each phase; if fewer do, the run fails."""


class LinksConfig(Component):
    """Rates of simulated links, used only to compute transfer times."""

    down_mbit_s: PositiveFloat | None = None
    """Rate from server to client, in Mbit/s; by default not simulated."""
    up_mbit_s: PositiveFloat | None = None
    """Rate from client to server, in Mbit/s; by default not simulated."""
    peer_mbit_s: PositiveFloat | None = None
    """Rate from client to client, in Mbit/s; by default not simulated."""


ProbeOptimizer = Literal["adam", "sgd"]
"""FedU's protocol (Adam at a constant rate) or Orchestra's (SGD with a cosine schedule)."""

KnnWeighting = Literal["exp", "uniform"]
"""Weight of a neighbour's vote: exp(cosine/0.1), or 1 (plain kNN, CCFC Table 4)."""


LabelledShare = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of the labels."""

Clustering = Literal["kmeans", "prototypes"]


class EvaluationConfig(Component):
    """What is evaluated, and when."""

    every: NonNegativeInt = 10
    """Rounds between evaluations; 0: only at the end."""
    max_samples: PositiveInt | None = 10_000
    """Samples of an evaluation between rounds; the final one takes all."""
    batch_size: PositiveInt = 512
    """Samples embedded at a time."""
    clusters: PositiveInt | None = None
    """Clusters of k-means on the representations, for methods without a number of clusters; by
    default the number of classes."""
    clustering: Clustering = "kmeans"
    """How clusters are found in the representations of methods that find none: by k-means, or by
    the cut of a neighbour graph over 2,000 prototypes of unit length, which follows any shape."""
    linear_probe: bool = True
    """Train a linear classifier on the frozen representation at the end."""
    linear_probe_optimizer: ProbeOptimizer | None = None
    """Optimiser of the linear classifier: Adam at the constant rate 3e-3 (FedU), or SGD from 60
    with cosine decay (Orchestra); both for 200 epochs of batches of 512. By default Adam, and SGD
    for fewer than 1,024 samples."""
    linear_probe_steps: PositiveInt | None = None
    """Steps of the linear classifier, in place of 200 epochs; CF-CL takes 1,000."""
    linear_probe_standardise: bool = False
    """Standardise each feature over the training samples first, for representations that are far
    from zero, as CF-CL's become, or very small."""
    knn_between: bool = False
    """Score the nearest neighbours between rounds too, on `max_samples` samples."""
    linear_probe_between: bool = False
    """Train the linear classifier in the evaluations between rounds too, on at most `max_samples`
    training samples; not for node-local data."""
    knn: bool = True
    """Classify by nearest neighbours at the end."""
    knn_k: PositiveInt = 200
    """Number of neighbours; of fewer than 400 samples the default takes a fifth. On small data
    fewer may score higher."""
    knn_weighting: KnnWeighting = "exp"
    """Weight of a neighbour's vote: exp(cosine/0.1), or 1 (plain kNN)."""
    labelled_shares: Annotated[tuple[LabelledShare, ...], Field(strict=False)] = ()
    """Shares of the labels, such as [0.01, 0.1], with each of which the whole network is fine-tuned
    at the end; not for node-local data."""
    fine_tuning_epochs: PositiveInt = 100
    """Epochs of each fine-tuning."""
    kmeans_baseline: bool = True
    """Compare with k-means on the raw samples at the end."""
    local_tests: bool = False
    """Between rounds, score each client's model on test samples in the client's class proportions,
    instead of one model on the whole test set; for classifiers."""
    local_test_ratio: PositiveFloat = 1.0
    """Test samples per training sample of a client; fewer if the test set has too few."""
    unsupervised: bool = False
    """Compute scores without labels in every evaluation: alignment, uniformity and inter-cluster
    mixing; not for node-local data. Between rounds at most `max_samples` are scored, but uniformity
    compares each with all samples of its client, so all are embedded."""
    spread: bool = False
    """Report the mean number of classes per client at the end, for data with labels."""
    metrics: Annotated[tuple[Target, ...], Field(strict=False)] = ()
    """Metrics of your own, `[{target: package.module:Class, …}]`, computed at the end; not for
    node-local data."""
    figures: bool = True
    """Draw curves, confusion matrix and t-SNE at the end."""


class CheckpointConfig(Component):
    """When the run's state is written to disk, and what is kept."""

    every: NonNegativeInt = 10
    """Rounds between checkpoints; 0: only at the end and when interrupted."""
    keep: PositiveInt = 2
    """Latest checkpoints to keep."""
    keep_every: NonNegativeInt = 0
    """Also keep the checkpoint of every n-th round, n a multiple of `every`; 0: none."""
    best: str | None = None
    """Also keep the best checkpoint by this metric, written after each evaluation between rounds
    that improves it: acc, nmi, ari or kappa, or what `validation_step` of a module of yours logs;
    by default none."""
    best_mode: Literal["auto", "max", "min"] = "auto"
    """Whether the largest or the smallest value is the best; `auto`: the smallest of losses and
    errors, the largest of all others."""

    @property
    def lower_is_better(self) -> bool:
        """Whether the smallest value of `best` is the best."""
        if self.best_mode != "auto":
            return self.best_mode == "min"
        words = re.split(r"[^a-z]+", (self.best or "").lower())
        return not _LOWER.isdisjoint(words)

    def judges_as(self, stored: Mapping[str, Any]) -> bool:
        """Return whether a stored config judges the best checkpoint by the same metric and mode."""
        then = stored.get("checkpoint")
        wanted = self.model_dump(include={"best", "best_mode"})
        return isinstance(then, Mapping) and wanted.items() <= then.items()

    @field_validator("keep_every")
    @classmethod
    def _are_written(cls, value: int, info: ValidationInfo) -> int:
        every = info.data.get("every", value)
        if value and (every == 0 or value % every):
            raise ValueError(
                f"with checkpoint.every={every} some of these rounds have no checkpoint; set "
                f"checkpoint.every to {value} or a divisor of it"
            )
        return value


class WandbConfig(Component):
    """Weights & Biases."""

    project: str = "coterie"
    """The project's name."""
    entity: str | None = None
    """The team or user; by default the account's own."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """`auto`: online if an API key is found, else offline."""
    group: str | None = None
    """The group of runs that the run belongs to; by default WANDB_RUN_GROUP, or its comparison."""
    job_type: str = "train"
    """What kind of run it is."""


class TrackingConfig(Component):
    """Trackers, in addition to `metrics.jsonl` and `summary.json`, which are always written."""

    loggers: Annotated[tuple[LoggerChoice, ...], Field(strict=False)] = ()
    """Loggers that receive the metrics: names, or any other Lightning logger by its class, such as
    [{target: lightning.pytorch.loggers:MLFlowLogger, tracking_uri: sqlite:///mlflow.db}]."""
    client_rows: NonNegativeInt = 20
    """Number of clients whose own metrics are tracked in each phase; the others count only in the
    sums."""
    progress: Literal["auto", "live", "lines", "none"] = "auto"
    """Progress on the terminal: a live view, a line per round, or nothing; `auto`: live on a
    terminal, else lines."""
    wandb: WandbConfig = WandbConfig()
    """Options of the W&B logger."""


class RunConfig(Component):
    """Configuration of a run; the same config, seed included, gives the same bits.

    `coterie.compose` makes one from the words of a command line. By hand, its sections are the
    configs of their classes: `RunConfig(method=FedAvg.Config(), …)`.
    """

    experiment: str = "run"
    """Name in tables, trackers and the run directory."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all randomness in the run; below 2⁶³."""
    run_dir: NotEmpty | None = None
    """Folder to write to; by default `$COTERIE_RUNS` or `runs`, then experiment and time."""
    resume: bool = False
    """Continue from the last checkpoint in `run_dir`; without one, start there. A submitted job
    does so by itself if `run_dir` has a run."""
    accept_changed_data: bool = False
    """Resume although the data is not what the run began with. Clients keep their states by name;
    the change is reported, also in the summary."""
    executor: Literal["lightning", "bare", "vmap"] = "lightning"
    """What trains a client's module: Lightning's Trainer, a bare loop without it, or `vmap`: the
    clients of a process as one model with a client axis, with the same results as `bare` up to
    rounding."""
    precision: Precision = "32-true"
    """Lightning's precision of local training; `16-mixed` requires a GPU and `executor=lightning`;
    `bf16-true` is refused with a moving-average target network or an optimiser on the server."""
    compile: Literal["default"] | None = None
    """Compile the encoder for local training, in this mode of `torch.compile`. Rounding differs,
    and each process compiles first, for each batch shape; docs/benchmarks.md shows where this saves
    time."""
    deterministic: bool = True
    """Use deterministic algorithms on the GPU, which are slower; no effect on the CPU."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of local training; `auto` takes an actor's GPU if it has one."""
    method: SerializeAsAny[MethodConfig]
    """The method: a class of `modules/`."""
    data: SerializeAsAny[Component]
    """The data set: a class of `datamodules/`."""
    partition: SerializeAsAny[PartitionConfig]
    """How samples are divided among the clients."""
    labelled_pool: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each class that is held out from all clients; `coterie evaluate` then fine-tunes on
    labels of these samples only. Not for node-local data."""
    encoder: SerializeAsAny[Component]
    """The network that maps a sample to its representation."""
    augmentation: SerializeAsAny[Component]
    """How random views of a sample are drawn."""
    callbacks: Annotated[tuple[Target, ...], Field(strict=False)] = ()
    """Callbacks of the run or of the Trainer on each client, by their classes, such as
    [{target: mine:Follower}]."""
    cluster: ClusterConfig = ClusterConfig()
    aggregation: AggregationConfig = AggregationConfig()
    participation: ParticipationConfig = ParticipationConfig()
    faults: FaultsConfig = FaultsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    links: LinksConfig = LinksConfig()
    trust: Annotated[Trust, Field(exclude=True)] = ()
    """Packages that stored configs may import, in addition to Coterie's own: `trust=my_package`."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()


COMPONENTS = ("method", "data", "partition", "encoder", "augmentation")
"""Sections that name their class by `target`."""
