"""The whole run's configuration; every default is here or in the component that owns it."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SerializeAsAny

from coterie.config.aggregation import AggregationConfig
from coterie.config.component import Component
from coterie.config.participation import Fraction, ParticipationConfig

Threads = Annotated[int, Field(ge=1, le=1024)]
"""CPU threads; OpenMP ends the process where it cannot make them."""
Precision = Literal["32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true"]


class ClusterConfig(Component):
    """Where the clients run."""

    backend: Literal["ray", "serial"] = "ray"
    """`ray`: one actor per client as long as slots allow; `serial`: this process, without Ray."""
    address: str | None = None
    """A running cluster's address; without one RAY_ADDRESS counts, else a local Ray is started."""
    num_actors: PositiveInt | None = None
    """Actors to start; by default one per client, at most as many as the resources hold."""
    cpus_per_client: PositiveFloat = 1.0
    """CPUs that Ray reserves for an actor."""
    gpus_per_client: Annotated[float, Field(ge=0.0)] = 0.0
    """GPU slice of an actor; 0.25 puts four actors on one GPU."""
    gpu_memory_fraction: Fraction | None = None
    """Cap on an actor's share of its GPU's memory; by default its slice."""
    threads_per_client: Threads = 1
    """CPU threads of PyTorch in actors and driver alike; another number, other bits."""
    server: Literal["auto", "driver", "actor"] = "auto"
    """Where the method's server half runs; `auto`: in the driver; `actor`: on an actor with a slice
    like a client's, GPU included."""
    start_timeout_s: PositiveFloat = 180.0
    """How long to wait for the cluster to grant the actors."""
    client_resources: Mapping[str, PositiveFloat] = {}
    """How much of the Ray resource of its own name a client takes, by the client's name, where data
    stays with its clients: {silo_a: 1} places silo_a on a node that has the resource silo_a."""
    max_actor_restarts: NonNegativeInt = 3
    """Actors replaced in one phase before the run fails."""


class FaultsConfig(Component):
    """What to do about clients that fail by themselves."""

    on_client_failure: Literal["retry", "drop", "fail"] = "retry"
    """`retry` runs the client again, then drops it; `drop` goes on without; `fail` ends the run."""
    client_timeout_s: PositiveFloat | None = None
    """Seconds after which a client's turn has failed; by default it may take any time. Slow
    training is stopped between steps; on Ray, an actor that hangs is ended as well."""
    on_state_loss: Literal["rewind", "stale"] = "rewind"
    """When a node takes clients' states with it: `rewind` takes the whole run back to the last
    checkpoint, to the same bits; `stale` only these clients, to other bits."""
    retries: PositiveInt = 1
    """How often `retry` tries again within a phase."""
    min_participation: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Share of the cohort that has to succeed; a phase below it fails the run."""


class LinksConfig(Component):
    """Rates of slow links, to say how long messages would take; they change nothing else."""

    down_mbit_s: PositiveFloat | None = None
    """From server to client, in Mbit/s; by default not modelled."""
    up_mbit_s: PositiveFloat | None = None
    """From client to server, in Mbit/s; by default not modelled."""
    peer_mbit_s: PositiveFloat | None = None
    """From client to client, in Mbit/s; by default not modelled."""


ProbeOptimizer = Literal["adam", "sgd"]
"""FedU's protocol (Adam at a constant rate) or Orchestra's (SGD with a cosine schedule)."""

KnnWeighting = Literal["exp", "uniform"]
"""How a neighbour votes: exp(cosine/temperature), or one vote each (plain kNN, CCFC Table 4)."""


class EvaluationConfig(Component):
    """What is measured, and when."""

    every: NonNegativeInt = 10
    """Rounds between evaluations; 0: only at the end."""
    max_samples: PositiveInt | None = 10_000
    """Samples of an evaluation between rounds; the last one takes all."""
    batch_size: PositiveInt = 512
    """Samples embedded at a time."""
    clusters: PositiveInt | None = None
    """Clusters that k-means makes of the representations of a method that has no number of its own;
    by default as many as the data has classes."""
    linear_probe: bool = True
    """Train a linear classifier on the frozen representation at the end."""
    linear_probe_optimizer: ProbeOptimizer = "adam"
    """How: Adam at the constant rate 3e-3 (FedU), or SGD from 60 down by a cosine (Orchestra); 200
    epochs of batches of 512 in either case."""
    linear_probe_standardise: bool = False
    """Bring every feature to mean 0 and standard deviation 1 over the training samples first: for
    representations far from zero, as CF-CL's become, or very small."""
    linear_probe_between: bool = False
    """Train the linear classifier in the evaluations between rounds too, on at most `max_samples`
    training samples; not where data stays with its clients."""
    knn: bool = True
    """Classify by nearest neighbours at the end."""
    knn_k: PositiveInt = 200
    """Neighbours; many for small data, where fewer may score higher."""
    knn_weighting: KnnWeighting = "exp"
    """How a neighbour votes: exp(cosine/temperature), or one vote each, plain kNN."""
    knn_temperature: PositiveFloat = 0.1
    """Temperature of `exp`."""
    kmeans_baseline: bool = True
    """Compare with k-means on the raw samples at the end."""
    local_tests: bool = False
    """Score every client's model on a test set of its own that has the client's class proportions,
    instead of one model on one test set between rounds; for classifiers."""
    local_test_ratio: PositiveFloat = 1.0
    """Test samples for each training sample of a client; fewer where the test set has too few."""
    unsupervised: bool = False
    """Score without labels in every evaluation: alignment, uniformity, inter-cluster mixing; not
    where data stays with its clients. Between rounds of at most `max_samples`, but for uniformity
    each is compared with all samples of its client, so all are embedded."""
    figures: bool = True
    """Draw curves, confusion and t-SNE at the end."""


class CheckpointConfig(Component):
    """When the whole run is written to disk."""

    every: NonNegativeInt = 10
    """Rounds between checkpoints; 0: only at the end and when interrupted."""
    keep: PositiveInt = 2
    """How many of the last checkpoints to keep."""
    keep_every: NonNegativeInt = 0
    """Keep those of every so many rounds besides; 0: none."""
    best: Literal["acc", "nmi", "ari", "kappa"] | None = None
    """Keep the best by this metric of the evaluations between rounds, and write one after each
    that is better than all before it; by default none."""


class WandbConfig(Component):
    """Weights & Biases."""

    project: str = "coterie"
    """The project's name."""
    entity: str | None = None
    """The team or user; by default the account's own."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """`auto`: online where an API key is known, else offline."""


class TrackingConfig(Component):
    """Where metrics go besides `metrics.jsonl` and `summary.json`, which are always written."""

    loggers: Annotated[tuple[Literal["csv", "tensorboard", "wandb"], ...], Field(strict=False)] = ()
    """Lightning loggers to feed."""
    client_rows: NonNegativeInt = 20
    """Clients whose own rows are tracked in each phase; the others appear in the sums."""
    progress: Literal["auto", "live", "lines", "none"] = "auto"
    """The terminal: a live view, a line per round, or nothing; `auto`: live on a terminal."""
    wandb: WandbConfig = WandbConfig()
    """Options of the W&B logger."""


class RunConfig(Component):
    """Everything that decides a run; the same config and seed give the same bits."""

    experiment: str = "run"
    """A name for tables, trackers and the run directory."""
    seed: NonNegativeInt = 0
    """All randomness of the run derives from it."""
    run_dir: Annotated[str, Field(min_length=1)] | None = None
    """Where to write; by default `$COTERIE_RUNS` or `runs`, then experiment and time."""
    resume: bool = False
    """Go on from the last checkpoint in `run_dir`; if there is none, start there."""
    executor: Literal["lightning", "bare"] = "lightning"
    """What trains locally: Lightning's Trainer, or a plain loop over the same LightningModule."""
    precision: Precision = "32-true"
    """Lightning's precision of local training; `bf16-true` is not for methods with a target network
    that follows by moving average."""
    deterministic: bool = True
    """Deterministic algorithms on the GPU; slower there, without effect on the CPU."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of local training; `auto` takes an actor's GPU if it was given one."""
    method: SerializeAsAny[Component]
    """What is learned and what is exchanged: a class of `modules/`."""
    data: SerializeAsAny[Component]
    """The data set: a class of `datamodules/`."""
    partition: SerializeAsAny[Component]
    """How the samples are spread over the clients."""
    labelled_pool: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each class that no client gets: `ray_jobs.evaluate` fine-tunes with labels of these
    samples alone, which training has not seen. Not where data stays with its clients."""
    encoder: SerializeAsAny[Component]
    """The network that turns a sample into a representation."""
    augmentation: SerializeAsAny[Component]
    """How a random view of a sample is drawn."""
    cluster: ClusterConfig = ClusterConfig()
    aggregation: AggregationConfig = AggregationConfig()
    participation: ParticipationConfig = ParticipationConfig()
    faults: FaultsConfig = FaultsConfig()
    links: LinksConfig = LinksConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()


COMPONENTS = ("method", "data", "partition", "encoder", "augmentation")
"""The sections that name a class by `target`."""
