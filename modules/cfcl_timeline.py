"""CF-CL's configuration, and its events by time step.

CF-CL, section III-A. Its Algorithm 1 pulls, trains, then aggregates, which contradicts its eq. (5)
and gives the stalest embeddings the largest weight; here step t is: aggregate if T_a | t, purge and
pull if T_p | t, then take the gradient step. After step T the models are aggregated once more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from coterie.config.method import MethodConfig
from coterie.errors import ConfigError
from coterie.gradcache import UNCOUPLED
from coterie.losses.triplet import Reduction
from coterie.peers.embeddings_importance import Score

Exchange = Literal["explicit", "implicit", "none", "uniform", "bulk", "kmeans"]


class CFCLConfig(MethodConfig):
    """Options of CF-CL; defaults are the paper's for Fashion-MNIST, or ours where it gives none."""

    absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": UNCOUPLED}
    sample_clusters: ClassVar[str | None] = None

    exchange: Exchange = "explicit"
    """The exchange between devices. `explicit`: samples by importance; `implicit`: embeddings by
    importance; baselines: `none` (FedAvg), `uniform` (at random), `kmeans` (nearest to the sender's
    own centroids), `bulk` (by importance, the whole budget before the first step)."""
    medium: Literal["samples", "embeddings"] = "samples"
    """The items that the baselines `uniform`, `kmeans` and `bulk` exchange."""
    total_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 2000
    """Gradient steps of each device, T; 1500 for USPS, 4000 for SVHN."""
    aggregate_every: PositiveInt = 25
    """Steps between aggregations, T_a; 10 for USPS."""
    pull_every: PositiveInt = 25
    """Steps between pulls, T_p; the first pull is at step T_p, that of `bulk` at step 0."""
    budget: NonNegativeInt = 5
    """Samples or embeddings in a pull from each neighbour (ours)."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the devices whose models are averaged in each aggregation; all train, exchange and
    take the global model."""
    topology: Literal["geometric", "ring", "complete", "edges"] = "geometric"
    """The graph of devices: random geometric, a ring, complete, or given by `edges`."""
    degree: PositiveFloat = 7.0
    """Mean number of neighbours in a random geometric graph; 2 or 8 in the paper's Fig. 11."""
    edges: Annotated[tuple[tuple[NonNegativeInt, NonNegativeInt], ...], Field(strict=False)] = ()
    """Pairs of clients, for `topology=edges`."""
    batch_size: Annotated[int, Field(ge=2)] = 64
    """Triplets per step (ours)."""
    learning_rate: PositiveFloat = 1e-4
    """Adam's learning rate; 1e-3 for USPS."""
    reset_optimizer: bool = False
    """Whether Adam starts afresh after each aggregation; if not, a device keeps its moments."""
    margin: PositiveFloat = 1.0
    """m of the triplet loss (ours)."""
    reserve: Literal["kmeans", "random"] = "kmeans"
    """Samples that represent a device's data: those nearest to its centroids, or random ones."""
    reserve_size: PositiveInt = 20
    """Number of reserve samples, K_reserve; 10 for USPS, 25 for SVHN."""
    approx_size: PositiveInt = 100
    """Number of random own samples that a device chooses from, K_approx; 200 for SVHN."""
    clusters: PositiveInt = 20
    """Number of clusters of embeddings; 10 for USPS, 25 for SVHN."""
    reserve_clusters: PositiveInt | None = None
    """Number of clusters of reserve embeddings in implicit exchange; by default the smaller of
    `clusters` and half of `reserve_size`."""
    restarts: PositiveInt = 1
    """Restarts of each k-means; the best result counts."""
    importance: Literal["global", "local"] = "global"
    """The model by which importance is computed: the last global one, or the sender's own. In
    implicit exchange, the sent embeddings are always by the global model."""
    temperature: Annotated[float, Field(ge=0.0)] | None = 1.0
    """λ of explicit importance, eq. (11) (ours); null is ∞, only the maximisers of a cluster."""
    score: Score = "intent"
    """`intent`: points near the centroid and near the reserve are important, as the text says;
    `literal`: the opposite, as eq. (16) is printed."""
    overlap_mean: float = 0.0
    """μ̂ of the normal density of a cluster's overlap, eq. (18) (ours)."""
    overlap_deviation: PositiveFloat | None = None
    """σ̂ of that density; by default the standard deviation over the clusters (ours)."""
    regulariser: Annotated[float, Field(ge=0.0)] = 0.1
    """λ_w, by which W_t of eq. (25) scales the loss on received embeddings (ours)."""
    rho_zeta: float = 1.0
    """ρζ in W_t, which the paper does not define (ours)."""
    margin_scale: Annotated[float, Field(ge=0.0)] = 1.0
    """k of the margin m_reg, times the mean squared radius of the receiver's clusters (ours)."""
    reduction: Reduction = "mean"
    """Reduction over received embeddings: `mean`, or `sum` as in the paper, which scales with the
    budget and the number of neighbours."""

    proximity: bool = False
    """Whether devices report how near pulled items are to their own data, Fig. 7, which costs an
    embedding of a device's data and a k-means per pull."""

    @property
    def sends_embeddings(self) -> bool:
        """Whether embeddings are pulled, so that no sample ever leaves a device."""
        baseline = self.exchange in ("uniform", "bulk", "kmeans")
        return self.exchange == "implicit" or (baseline and self.medium == "embeddings")

    @property
    def pushes_late(self) -> bool:
        """Whether a device that missed the only push sends it with its first pull."""
        return self.exchange == "explicit"

    @property
    def pulls_at_once(self) -> int:
        """The number of pulls that one pull replaces: in bulk, all pulls of the run."""
        return self.total_steps // self.pull_every if self.exchange == "bulk" else 1

    @property
    def pull_size(self) -> int:
        """The number of items in one pull from each neighbour; 0 without exchange."""
        return 0 if self.exchange == "none" else self.budget * self.pulls_at_once

    @property
    def reserve_groups(self) -> int:
        """The number of clusters into which reserve embeddings are grouped."""
        return self.reserve_clusters or max(1, min(self.clusters, self.reserve_size // 2))


def check_exchange(config: CFCLConfig) -> None:
    """Refuse options of the exchange that would have no effect."""
    if config.exchange == "explicit" and config.medium == "embeddings":
        raise ConfigError(
            "method.medium=embeddings: exchange=explicit sends samples; use exchange=implicit, or "
            "a baseline."
        )
    if config.proximity and config.pull_size == 0:
        nothing = "exchange=none" if config.exchange == "none" else "budget=0"
        raise ConfigError(f"method.proximity=true: {nothing} pulls nothing; leave it out.")
    if config.exchange != "none" and config.budget > config.approx_size:
        raise ConfigError(
            f"method.budget={config.budget}: a device chooses among {config.approx_size} "
            "candidates; raise method.approx_size, or lower the budget."
        )
    listed = config.topology == "edges"
    if listed != bool(config.edges):
        raise ConfigError(
            "method.topology=edges: it needs method.edges, such as [[0,1],[1,2]]; give them."
            if listed
            else f"method.edges: topology={config.topology} draws its own; use topology=edges."
        )
    usual = CFCLConfig.model_fields["degree"].default
    if config.topology != "geometric" and config.degree != usual:
        raise ConfigError(
            f"method.degree={config.degree:g}: topology={config.topology} has its own; leave it "
            "out."
        )


@dataclass(frozen=True)
class Event:
    """An action that all devices take at the same time.

    Attributes:
        kind: `push` reserve data, `pull` (each device sends to its neighbours), `train`, or
            `aggregate`, which ends a round.
        step: The time step t at which it takes place, or begins.
        steps: Number of gradient steps; only for `train`.
    """

    kind: Literal["push", "pull", "train", "aggregate"]
    step: int
    steps: int = 0


def timeline(config: CFCLConfig) -> tuple[tuple[Event, ...], ...]:
    """Return the events of each round, in order; a round ends with its aggregation."""
    rounds: list[tuple[Event, ...]] = []
    events = _beforehand(config)
    begun = 1
    for step in range(1, config.total_steps + 1):
        aggregates, pulls = step % config.aggregate_every == 0, _pulls_at(config, step)
        if (aggregates or pulls) and step > begun:
            events.append(Event("train", begun, step - begun))
            begun = step
        if aggregates and any(event.kind == "train" for event in events):
            rounds.append((*events, Event("aggregate", step)))
            events = []
        if aggregates and _pushes_again(config, step):
            events.append(Event("push", step))
        if pulls:
            events.append(Event("pull", step))
    events.append(Event("train", begun, config.total_steps + 1 - begun))
    rounds.append((*events, Event("aggregate", config.total_steps)))
    return tuple(rounds)


def _beforehand(config: CFCLConfig) -> list[Event]:
    """Return the events before the first step: the first push and, for `bulk`, the only pull."""
    if config.exchange == "bulk":
        return [Event("push", 0), Event("pull", 0)]
    embedded_early = config.pull_every < config.aggregate_every
    pushes = config.exchange == "explicit" or (config.exchange == "implicit" and embedded_early)
    return [Event("push", 0)] if pushes and config.pull_every <= config.total_steps else []


def _pulls_at(config: CFCLConfig, step: int) -> bool:
    return config.exchange not in ("none", "bulk") and step % config.pull_every == 0


def _pushes_again(config: CFCLConfig, step: int) -> bool:
    """Return whether the new global model's reserve embeddings are pushed for later pulls."""
    last_pull = config.total_steps // config.pull_every * config.pull_every
    return config.exchange == "implicit" and step <= last_pull
