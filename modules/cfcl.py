"""CF-CL: federated triplet learning in which devices exchange samples or embeddings.

Wagle et al., "Unsupervised Federated Optimization at the Edge: D2D-Enabled Learning without
Labels", Algorithm 1. Between aggregations devices take gradient steps. At intervals, each pulls a
few samples (explicit) or embeddings (implicit) from its neighbours in a graph; the sender chooses
them by their importance to the receiver. These messages go from device to device; the server only
sees models.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

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
    TensorSpec,
    WeightedUpdate,
    blank,
    derive_seed,
    load_tensors,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError
from coterie.modules.cfcl_device import (
    EDGES,
    PULLED,
    RESERVE,
    Device,
    Sender,
    believed,
    proximity,
)
from coterie.modules.cfcl_model import Local, TripletModel
from coterie.modules.cfcl_timeline import CFCLConfig, Event, check_exchange, timeline
from coterie.peers.topology import (
    Edges,
    complete_graph,
    geometric_graph,
    listed_graph,
    neighbourhoods,
    neighbours,
    ring,
)

MODEL, SETUP = "encoder", "setup"
LARGEST_EMBEDDING = 2.0**24
"""The largest coordinate that a device may send, as for what it sends the server."""
METRICS = {
    "train": frozenset(
        {"loss", "triplet", "regulariser", "set_size", "steps", "time_step", "proximity", *EDGES}
    ),
    "aggregate": frozenset({"time_step"}),
}
"""Metrics by event. `set_size`: samples that a device trains on, including pulled ones; `steps`:
those taken in the phase; `time_step`: the last one; `proximity` and shares of it: see the
option."""
ROLES = StateRoles(
    Entry(pattern="encoder.*", role=Role.AVERAGE, slot=MODEL),
    Entry(pattern="augment.*", role=Role.RESET),
)
"""The encoder is averaged. A device's other state is not part of the model: see `Device`."""


class CFCL(Method):
    """Triplet loss, with samples or embeddings pulled from neighbouring devices."""

    class Config(CFCLConfig):
        """CF-CL's configuration."""

    def __init__(self, config: Config, task: Task) -> None:
        self._config, self._task = config, task
        self._timeline = timeline(config)
        self.rounds = len(self._timeline)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a fresh encoder, the graph of devices, and the seed of their batches.

        Raises:
            ConfigError: If the encoder is frozen, or options do not fit each other.
        """
        check_exchange(self._config)
        with seeded(seed):
            module = self.build()
        ROLES.check(module)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(
                "encoder: all of it is frozen, and CF-CL trains nothing else; set "
                "encoder.freeze=false."
            )
        edges = self._graph(len(sizes), derive_seed(seed, "graph"))
        setup = {
            "edges": torch.tensor(edges, dtype=torch.int64).reshape(-1, 2),
            "seed": torch.tensor([derive_seed(seed, "batches")]),
            "unit": torch.tensor([self._weight_unit(sizes, len(edges))]),
        }
        return ServerState(slots={MODEL: ROLES.slot(module, MODEL), SETUP: setup})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next event; a round ends with its aggregation."""
        if server.round >= self.rounds:
            return None
        event = self._timeline[server.round][server.step]
        aggregates = event.kind == "aggregate"
        return Phase(
            name=event.kind,
            stage="training",
            round=server.round + 1,
            step=server.step,
            cohort=self._config.participation if aggregates else 1.0,
            down=frozenset({SETUP} if aggregates else {MODEL, SETUP}),
            up=frozenset({MODEL}) if aggregates else frozenset(),
            peer_messages=self._message_keys(event),
            recipients=neighbourhoods(_pairs(server.slots[SETUP]["edges"])),
            metrics=METRICS.get(event.kind, frozenset()),
            specs=self._specs(),
            repeats=self._config.aggregate_every / int(server.slots[SETUP]["unit"]),
            received=self._most_received(server),
            ends_round=aggregates,
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run one device's part in an event."""
        messages, note = believed(client.data, client.peer_messages)
        device = Device.read(client.state, messages)
        return replace(self._act(client, device, phase, slots), note=note)

    def _act(self, client: Client, device: Device, phase: Phase, slots: Slots) -> Outcome:
        event = self._timeline[phase.round - 1][phase.step]
        if event.kind == "aggregate":
            return self._send_up(device, phase, int(slots[SETUP]["unit"]))
        if event.kind == "train":
            return self._train(client, device, phase, slots)
        setup = slots[SETUP]
        around = neighbours(_pairs(setup["edges"]), client.id)
        current = device.round == phase.round
        sender = Sender(
            config=self._config,
            client=client,
            device=device,
            neighbours=around,
            module=client.module("cfcl", self.build),
            global_model=slots[MODEL],
            local=device.network if current else slots[MODEL],
        )
        peer_messages = sender.push() if event.kind == "push" else sender.pull()
        return Outcome(state=device.tensors(), peer_messages=peer_messages)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder."""
        module = blank(self.build)
        load_tensors(module, server.slots[MODEL])
        return Clusterer(module.encoder)

    def build(self) -> TripletModel:
        """Return the encoder and its loss."""
        return TripletModel(self._config, self._task)

    def _message_keys(self, event: Event) -> frozenset[str]:
        """Return the keys of the messages that devices may send each other in an event."""
        reserve, pulled = (keys[self._config.sends_embeddings] for keys in (RESERVE, PULLED))
        late = {reserve} if self._config.pushes_late else set()
        return frozenset({"push": {reserve}, "pull": {pulled} | late}.get(event.kind, ()))

    def _specs(self) -> dict[str, TensorSpec]:
        """Return the specs of peer messages, which are samples as in the data, or embeddings."""
        task, config = self._task, self._config
        kind = torch.uint8 if len(task.shape) == 3 else torch.float32
        specs = {}
        for keys, most in ((RESERVE, config.reserve_size), (PULLED, config.pull_size)):
            rows = range(1, most + 1)
            specs[keys[False]] = TensorSpec(shape=(rows, *task.shape), dtype=kind)
            specs[keys[True]] = TensorSpec(
                shape=(rows, task.features), lowest=-LARGEST_EMBEDDING, highest=LARGEST_EMBEDDING
            )
        return specs

    def _most_received(self, server: ServerState) -> int:
        """Return the maximum number of received samples that a device trains on."""
        if self._config.sends_embeddings:
            return 0
        ends = server.slots[SETUP]["edges"].flatten()
        return int(ends.bincount().max()) * self._config.pull_size if len(ends) else 0

    def _weight_unit(self, sizes: Mapping[int, int], edges: int) -> int:
        received = 0 if self._config.sends_embeddings else 2 * edges * self._config.pull_size
        samples = sum(sizes.values()) + received
        return weight_unit(samples, self._config.aggregate_every, len(sizes))

    def _graph(self, clients: int, seed: int) -> Edges:
        topology = self._config.topology
        if topology == "geometric":
            return geometric_graph(clients, self._config.degree, seed)
        if topology == "edges":
            return listed_graph(clients, self._config.edges)
        return ring(clients) if topology == "ring" else complete_graph(clients)

    def _train(self, client: Client, device: Device, phase: Phase, slots: Slots) -> Outcome:
        """Take gradient steps, eq. (4), from the global model at the start of a round."""
        event = self._timeline[phase.round - 1][phase.step]
        if device.round != phase.round:
            device.round, device.exposure, device.network = phase.round, 0, slots[MODEL]
            device.adam = {} if self._config.reset_optimizer else device.adam
        module = client.module("cfcl", self.build)
        near = self._proximity(client, device, module, slots)
        load_tensors(module, device.network)
        local = self._local(client, device, event)
        module.begin(local)
        seed = derive_seed(int(slots[SETUP]["seed"]), client.id)
        plan = Plan(
            batch_size=self._config.batch_size,
            steps=event.steps,
            first_step=event.step - 1,
            seed=seed,
        )
        fit = client.fit(module, plan, local.data)
        size = len(local.data or client.data)
        device.exposure += fit.steps * size
        device.network, device.adam = ROLES.slot(module, MODEL), module.remember()
        reached = event.step + fit.steps - 1
        counts = {"set_size": size, "steps": fit.steps, "time_step": reached}
        metrics = {**fit.metrics, **{name: float(count) for name, count in counts.items()}, **near}
        return Outcome(state=device.tensors(), metrics=metrics)

    def _proximity(
        self, client: Client, device: Device, module: TripletModel, slots: Slots
    ) -> dict[str, float]:
        """Return how near a new pull is to the device's own data, if that is asked for."""
        received = device.received
        fresh = any(key in PULLED for message in client.peer_messages.values() for key in message)
        if not self._config.proximity or not fresh or received is None:
            return {}
        load_tensors(module, slots[MODEL])
        seed = derive_seed(client.seed, "proximity")
        return proximity(self._config, client, module.encoder, received, seed)

    def _local(self, client: Client, device: Device, event: Event) -> Local:
        """Return own and received samples, and received embeddings for the loss."""
        local = Local(data=client.data, step=event.step, adam=device.adam)
        if self._config.sends_embeddings or device.received is None:
            return replace(local, received=device.received, margin=device.margin)
        return replace(local, data=client.data.joined(device.received))

    def _send_up(self, device: Device, phase: Phase, unit: int) -> Outcome:
        """Return the device's model, unless it took no step since the last aggregation.

        Its weight in the server's mean, eq. (5), is the size of its training set, summed over the
        steps.
        """
        up = {}
        if device.round == phase.round and device.exposure:
            weight = max(1, device.exposure // unit)
            up = {MODEL: WeightedUpdate(weight=weight, tensors=device.network)}
        trained = self._timeline[phase.round - 1][phase.step - 1]
        metrics = {"time_step": float(trained.step + trained.steps - 1)}
        return Outcome(up=up, state=device.tensors(), metrics=metrics)


def _pairs(edges: Tensor) -> Edges:
    return tuple((int(i), int(j)) for i, j in edges)


def weight_unit(samples: int, steps: int, devices: int) -> int:
    """Return the unit of weights, above 1 only for huge data: exact sums hold weights up to 2²³.

    Args:
        samples: All devices' samples, and the most that they can have received.
        steps: T_a. A weight is the size of a device's training set, summed over so many steps.
        devices: Number of devices; the smallest weight is 1.
    """
    return -(-samples * steps // (2**23 - devices))
