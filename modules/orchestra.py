"""Orchestra: clients and server cluster together, and clients learn to predict the clusters.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering"
(ICML 2022), algorithms 1 and 2. A client sends its networks and the centroids of its own clusters;
the server averages the networks, clusters the centroids into global ones, and offers both. A phase
before the first round only clusters, with the initial networks. Clients keep nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from coterie.clustering.private_coreset import private_clusters
from coterie.clustering.sinkhorn import global_centroids, local_centroids
from coterie.contract import (
    Client,
    Entry,
    Method,
    Outcome,
    Phase,
    Plan,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    TensorSpec,
    WeightedUpdate,
    averaged,
    blank,
    concatenated,
    derive_seed,
    fewest,
    load_slots,
    seeded,
)
from coterie.contract.accounting import epsilon, noise_for
from coterie.contract.clusterer import Clusterer
from coterie.contract.tensor_spec import UNIT_LENGTH
from coterie.errors import ConfigError
from coterie.modules.orchestra_model import GlobalClusters, OrchestraConfig, OrchestraModel

NETWORKS = frozenset({"online", "target", "rotation"})
METRICS = frozenset({"loss", "cluster", "rotation", "smallest_cluster"})
MINIMA = frozenset({"smallest_cluster"})
"""The smallest local cluster over all clients: every sample is hidden among at least this many."""

ROLES = StateRoles(
    *(Entry(pattern=f"{part}.*", role=Role.AVERAGE, slot=part) for part in sorted(NETWORKS)),
    Entry(pattern="centroids", role=Role.AVERAGE, slot="centroids"),
    Entry(pattern="memory", role=Role.RESET),
    Entry(pattern="remembered", role=Role.RESET),
    Entry(pattern="augment.*", role=Role.RESET),
)
"""Networks are averaged, only the server sets centroids, the memory starts empty in each task."""


class Orchestra(Method):
    """Globally consistent clusters: clients cluster locally, the server their centroids."""

    class Config(OrchestraConfig):
        """Orchestra's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 100
        """Rounds, without the phase that only clusters."""
        epochs: PositiveInt = 10
        """Local epochs per round, E."""
        base_clients: PositiveInt | None = None
        """Number of clients K that `epochs` was tuned for: K_new clients train E·K_new/K epochs, so
        that each round has equally many steps (appendix C.4). By default `epochs` is not scaled."""
        local_clusters: PositiveInt = 8
        """Number of a client's own clusters, L; 16 for CIFAR-100."""
        assignment: Literal["balanced", "argmax"] = "balanced"
        """`balanced`: a client's clusters have equal size ±1, which hides a sample among others;
        `argmax`: the most probable cluster, as in Orchestra's code, with unequal sizes."""
        privacy: Literal["k_anonymity", "none", "local_dp"] = "k_anonymity"
        """`k_anonymity`: clients send centroids; `local_dp`: noisy ones; `none`: the
        representations themselves, the paper's idealised setting, for comparison only."""
        epsilon: PositiveFloat | None = None
        """With `local_dp`, ε of one phase's centroids for one sample's projection; networks are not
        covered. The ε of phases add up."""
        delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-3
        """With `local_dp`, δ of that ε."""
        weighting: Literal["samples", "clients"] = "samples"
        """Weight of a client's networks in the average: its samples, or 1 as in algorithm 2."""
        global_steps: PositiveInt = 500
        """The server's gradient steps on the global centroids."""

        @model_validator(mode="after")
        def _check_epsilon(self) -> Self:
            if (self.privacy == "local_dp") != (self.epsilon is not None):
                raise ValueError(
                    f"privacy={self.privacy} with epsilon={self.epsilon}: give an epsilon with "
                    "privacy=local_dp, and with nothing else"
                )
            return self

    def __init__(self, config: Config, task: Task) -> None:
        if config.privacy == "none" and task.k_anonymity > 1:
            raise ConfigError(
                f"method.privacy=none: clients send single samples' representations, and "
                f"privacy.k_anonymity={task.k_anonymity} forbids it; set privacy.k_anonymity=1 as "
                "well."
            )
        self._config, self._task = config, task
        self.rounds = config.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return fresh networks, the target equal to the online one, and random centroids."""
        with seeded(seed):
            module = self.build()
        ROLES.check(module)
        epochs = scaled_epochs(self._config.epochs, len(sizes), self._config.base_clients)
        slots: dict[str, Tensors] = {**ROLES.slots(module, NETWORKS | {"centroids"})}
        schedule = {"epochs": torch.tensor([epochs])}
        if self._config.epsilon is not None:
            schedule["noise"] = torch.tensor(
                [self._noise(self._config.epsilon)], dtype=torch.float64
            )
        return ServerState(slots=slots | {"schedule": schedule})

    def next(self, server: ServerState) -> Phase | None:
        """Return the phase that only clusters, then the rounds."""
        if server.round >= self.rounds:
            return None
        shared = "representations" if self._config.privacy == "none" else "centroids"
        training = Phase(
            name="training",
            stage="training",
            round=server.round + 1,
            step=server.step,
            cohort=self._config.participation,
            down=NETWORKS | {"centroids", "schedule"},
            up=NETWORKS,
            gathered=frozenset({shared}),
            metrics=METRICS,
            minima=MINIMA,
            specs=self._specs(shared),
            epsilon=self._spent(server, server.round + 2),
        )
        if server.round or server.step:
            return training
        return replace(
            training,
            name="clustering",
            stage="clustering",
            down=frozenset({"target", *(["schedule"] if self._config.epsilon else [])}),
            up=frozenset(),
            ends_round=False,
            epsilon=self._spent(server, 1),
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run Algorithm 1, or before the first round only its lines 4, 5 and 18."""
        module = client.module("orchestra", self.build)
        load_slots(module, {slot: slots[slot] for slot in slots if slot != "schedule"})
        if not phase.up:
            with seeded(derive_seed(client.seed, "encode")):  # seeds dropout, as fit does
                self._encode(client, module)
            return self.shared_records(client, module, slots)
        epochs = int(slots["schedule"]["epochs"])
        fit = client.fit(module, Plan(batch_size=self._config.batch_size, epochs=epochs))
        shared = self.shared_records(client, module, slots)
        weight = len(client.data) if self._config.weighting == "samples" else 1
        return replace(
            shared,
            up=ROLES.contributions(module, phase.up, weight=weight),
            metrics={**fit.metrics, **shared.metrics},
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Run Algorithm 2: average the networks, and cluster the clients' centroids."""
        points = concatenated(gathered, *phase.gathered)
        before = server.slots["centroids"]["centroids"]
        steps, temperature = self._config.global_steps, self._config.temperature
        found = before
        if len(points):  # otherwise no client has enough samples to send any
            found = global_centroids(points, before, steps=steps, temperature=temperature)
        centroids = {"centroids": {"centroids": found.to(before.dtype)}}
        return server.advance(phase, averaged(means) | centroids)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the target encoder, whose projections are assigned to the global clusters.

        The encoder has no cluster head: G is a multiple of the number of classes, and methods are
        compared by their representations.
        """
        module = blank(self.build)
        load_slots(module, {slot: server.slots[slot] for slot in NETWORKS | {"centroids"}})
        target = module.target
        clusters = GlobalClusters(target.projector, module.centroids, self._config.temperature)
        return Clusterer(target.encoder, projection=clusters)

    def build(self) -> OrchestraModel:
        """Return the networks and their loss."""
        return OrchestraModel(self._config, self._task)

    def _specs(self, shared: str) -> dict[str, TensorSpec]:
        """Return the specs of unit rows, as many as a client has clusters or samples in memory."""
        config = self._config
        most = config.local_clusters if shared == "centroids" else config.memory
        shape = (range(most + 1), config.projection)
        return {
            shared: TensorSpec(shape=shape, lowest=-UNIT_LENGTH, highest=UNIT_LENGTH),
            "smallest_cluster": TensorSpec(lowest=0.0, highest=1.0, per_sample=True),
        }

    def _encode(self, client: Client, module: OrchestraModel) -> None:
        """Fill the memory with views of randomly chosen samples, without training."""
        module.on_train_epoch_start()
        draw = torch.Generator().manual_seed(derive_seed(client.seed, "order"))
        chosen = torch.randperm(len(client.data), generator=draw)[: self._config.memory]
        for step, positions in enumerate(torch.split(chosen, self._config.batch_size)):
            if len(positions) < 2:
                continue  # as in training: batch norm needs two samples
            samples, seed = client.data.take(positions.numpy()), derive_seed(client.seed, step)
            batch = {"samples": samples, "positions": positions, "seed": seed}
            views, *_ = module.on_after_batch_transfer(batch, 0)
            module.remember(views, positions)

    def _noise(self, target: float) -> float:
        """Return the noise multiplier of a phase's centroids for an ε."""
        try:
            return noise_for(target, self._config.delta)
        except ValueError as error:
            raise ConfigError(f"method.epsilon={target:g}: {error}; give a larger one.") from error

    def _spent(self, server: ServerState, phases: int) -> float | None:
        """Return the ε of a client that was asked in this number of phases."""
        if self._config.epsilon is None:
            return None
        return epsilon(phases, float(server.slots["schedule"]["noise"]), self._config.delta)

    def shared_records(self, client: Client, module: OrchestraModel, slots: Slots) -> Outcome:
        """Return the tensor for the server, and the size of the client's smallest cluster."""
        z, seed = module.recollect(), derive_seed(client.seed, "clusters")
        if self._config.privacy == "none":
            return Outcome(gathered={"representations": z}, metrics={"smallest_cluster": 1.0})
        if self._config.privacy == "k_anonymity":
            return self._centroids(z, seed)
        centroids = private_clusters(
            z,
            self._config.local_clusters,
            noise_multiplier=float(slots["schedule"]["noise"]),
            fewest=self._task.k_anonymity,
            seed=seed,
            noisy=client.noisy,
        )
        return Outcome(gathered={"centroids": centroids.to(z.dtype)})

    def _centroids(self, z: Tensor, seed: int) -> Outcome:
        """Return the centroids of a client's unit projections z (n, projection).

        Clusters of fewer samples than the task's k_anonymity are not sent; a client that has too
        few for all clusters makes fewer.
        """
        wanted, k_anonymity = self._config.local_clusters, self._task.k_anonymity
        clusters = min(wanted, len(z) // k_anonymity)
        if not clusters:
            note = self._withheld(0, len(z))
            return Outcome(gathered={"centroids": z[:0]}, smallest={"centroids": 0}, note=note)
        balanced = self._config.assignment == "balanced"
        found, assigned = local_centroids(z, clusters, seed=seed, balanced=balanced)
        sizes, note = assigned.bincount(minlength=clusters), ""
        kept = self._task.enough(sizes)
        if k_anonymity == 1 and len(z) < 2 * wanted:
            note = (
                f"it has {len(z)} samples in memory, fewer than two for each of "
                f"local_clusters={wanted}: of a cluster with one sample, that sample's "
                "representation is sent"
            )
        elif int(kept.sum()) < wanted:
            note = self._withheld(int(kept.sum()), len(z))
        metrics = {"smallest_cluster": float(sizes[kept].min())} if bool(kept.any()) else {}
        return Outcome(
            gathered={"centroids": found[kept]},
            metrics=metrics,
            smallest={"centroids": fewest(sizes[kept])},
            note=note,
        )

    def _withheld(self, sent: int, samples: int) -> str:
        return (
            f"it sends {sent} of {self._config.local_clusters} centroids, those of "
            f"privacy.k_anonymity={self._task.k_anonymity} or more of its {samples} samples in "
            "memory"
        )


def scaled_epochs(epochs: int, clients: int, base: int | None) -> int:
    """Return local epochs E·K_new/K for K_new clients in place of K, rounded, at least 1.

    Appendix C.4, after Zhuang et al. (2021).
    """
    return epochs if base is None else max(1, round(epochs * clients / base))
