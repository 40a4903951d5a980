"""A device of CF-CL: its state, with its neighbours' data, and the messages that it sends.

CF-CL, section III, Algorithms 2 and 3. Messages draw from random streams of their own, so that they
do not change any batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans
from coterie.contract import Client, ClientData, Tensors, derive_seed, load_tensors
from coterie.contract.clusterer import to_unit
from coterie.contract.tensor_spec import LARGEST
from coterie.losses.triplet import crossed_losses
from coterie.modules.cfcl_model import TripletModel
from coterie.modules.cfcl_timeline import CFCLConfig
from coterie.networks.views import seeded_view
from coterie.peers.choosing import draw, draw_uniformly, nearest_to_centroids
from coterie.peers.clusters import mean_squared_radius, relative_distances
from coterie.peers.embeddings_importance import embedding_importance
from coterie.peers.samples_importance import sample_importance

RESERVE, PULLED = ("reserve_samples", "reserve_embeddings"), ("samples", "embeddings")
"""The keys of messages: samples in explicit exchange, embeddings in implicit exchange."""
_SAMPLES = (RESERVE[False], PULLED[False])
_FARTHEST = 1000.0
"""How many times as large as a device's own values those of a received sample may be."""
EDGES = {f"proximity/{edge:g}": edge for edge in (1.0, 1.5, 2.0)}
"""Metrics that are the share of pulled items within a relative distance."""

PeerMessages = dict[int, Tensors]
"""Receiver to message."""


@dataclass
class Device:
    """A device's state.

    Attributes:
        round: The round whose model it trains; 0 before its first step.
        exposure: The size of its training set, summed over the steps of that round: its weight.
        margin: m_reg of the last pull.
        network: The entries of its model's state.
        adam: Adam's state.
        reserve: Positions of its own reserve samples, int64; None until they are chosen.
        reserves: Neighbour to the reserve samples or embeddings that the neighbour pushed.
        pulled: Neighbour to the samples or embeddings that were pulled from the neighbour.
    """

    round: int = 0
    exposure: int = 0
    margin: float = 0.0
    network: Tensors = field(default_factory=dict)
    adam: Tensors = field(default_factory=dict)
    reserve: Tensor | None = None
    reserves: dict[int, Tensor] = field(default_factory=dict)
    pulled: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, state: Tensors | None, peer_messages: Mapping[int, Tensors]) -> "Device":
        """Restore a device from the state that it kept, and add its peer messages.

        A new pull replaces everything that was pulled before.
        """
        device = cls() if state is None else cls._kept(state)
        messages = [
            (by, key, value)
            for by in sorted(peer_messages)
            for key, value in peer_messages[by].items()
        ]
        device.reserves |= {by: value for by, key, value in messages if key in RESERVE}
        pulled = {by: value for by, key, value in messages if key in PULLED}
        device.pulled = pulled or device.pulled
        return device

    @classmethod
    def _kept(cls, state: Tensors) -> "Device":
        groups: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = value
        counts = groups["counts"][""].tolist()
        return cls(
            round=counts[0],
            exposure=counts[1],
            margin=groups["margin"][""].item(),
            network=groups.get("network", {}),
            adam=groups.get("adam", {}),
            reserve=groups.get("reserve", {}).get(""),
            reserves={int(by): value for by, value in groups.get("reserves", {}).items()},
            pulled={int(by): value for by, value in groups.get("pulled", {}).items()},
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the state to keep, by name."""
        named = {
            "counts": torch.tensor([self.round, self.exposure]),
            "margin": torch.tensor(self.margin, dtype=torch.float64),
        }
        if self.reserve is not None:
            named["reserve"] = self.reserve
        groups: dict[str, Mapping[int, Tensor] | Tensors] = {
            "network": self.network,
            "adam": self.adam,
            "reserves": self.reserves,
            "pulled": self.pulled,
        }
        for group, tensors in groups.items():
            named |= {f"{group}/{key}": value for key, value in tensors.items()}
        return named

    @property
    def received(self) -> Tensor | None:
        """All items that were pulled (k, …), in the neighbours' order; None if there are none."""
        parts = [self.pulled[by] for by in sorted(self.pulled)]
        return torch.cat(parts) if parts else None


@dataclass(frozen=True, kw_only=True)
class Sender:
    """One device as a transmitter, in one event.

    Attributes:
        client: The device's data, its seed for this event, and `embed`.
        device: The device's state; changed in place.
        neighbours: The receivers.
        module: The module into which the global and the local model are loaded in turn.
        global_model: The last global model.
        local: The device's own model at this time; the global one right after an aggregation.
    """

    config: CFCLConfig
    client: Client
    device: Device
    neighbours: Sequence[int]
    module: TripletModel
    global_model: Tensors
    local: Tensors

    def push(self) -> PeerMessages:
        """Return reserve samples, eq. (6), or the global model's embeddings of them, eq. (13)."""
        if self.device.reserve is None:
            self.device.reserve = self._choose_reserve()
        samples = self.client.data.take(self.device.reserve.numpy())
        if self.config.sends_embeddings:
            self.device.reserves = {}  # they are embeddings by an earlier global model
            message = {"reserve_embeddings": self._embed(self.global_model, samples)}
        else:
            message = {"reserve_samples": samples}
        return dict.fromkeys(self.neighbours, message)

    def pull(self) -> PeerMessages:
        """Return what each neighbour pulls from this device.

        The device drops its own earlier pulls.
        """
        self.device.pulled = {}
        if self.config.pull_size == 0:
            return {}
        if self.config.sends_embeddings:
            self.device.margin = self.config.margin_scale * self._mean_radius()
        missed = self.config.pushes_late and self.device.reserve is None
        late = self.push() if missed else {}
        chosen = {receiver: self._choose(receiver) for receiver in self.neighbours}
        messages = {receiver: self._message(positions) for receiver, positions in chosen.items()}
        return {receiver: {**messages[receiver], **late.get(receiver, {})} for receiver in messages}

    def _message(self, positions: Tensor) -> Tensors:
        if self.config.sends_embeddings:
            return {"embeddings": self._embeddings[positions]}
        return {"samples": self._samples[positions]}

    @cached_property
    def _samples(self) -> Tensor:
        """Candidates, eq. (7): random samples of its own; received samples are never passed on."""
        size, count = len(self.client.data), self.config.approx_size * self.config.pulls_at_once
        chosen = draw_uniformly(size, count, self._stream("candidates"))
        return self.client.data.take(chosen.numpy())

    @cached_property
    def _embeddings(self) -> Tensor:
        """The candidates' embeddings by the last global model, eq. (14)."""
        return self._embed(self.global_model, self._samples)

    @cached_property
    def _seen(self) -> Tensor:
        """The candidates' embeddings from which importance is computed."""
        if self.config.importance == "global":
            return self._embeddings
        return self._embed(self.local, self._samples)

    def _choose(self, receiver: int) -> Tensor:
        """Return the positions of the candidates that a neighbour gets."""
        exchange, count = self.config.exchange, len(self._samples)
        stream = self._stream("draw", receiver)
        if exchange == "kmeans":
            return self._central
        if exchange == "uniform" or receiver not in self.device.reserves:
            return draw_uniformly(count, self.config.pull_size, stream)
        reserve = self.device.reserves[receiver]
        by_embeddings = self.config.sends_embeddings
        weigh = self._weigh_embeddings if by_embeddings else self._weigh_samples
        return draw(weigh(reserve, receiver), self.config.pull_size, stream)

    def _weigh_samples(self, reserve: Tensor, receiver: int) -> Tensor:
        """Return explicit importance, eq. (12), for the receiver's reserve samples."""
        network = self.global_model if self.config.importance == "global" else self.local
        seed = derive_seed(self.client.seed, "views", receiver)
        views = seeded_view(self.module.augment, to_unit(reserve), seed)
        anchors, positives = self._embed(network, reserve), self._embed(network, views)
        losses = crossed_losses(anchors, positives, self._seen, self.config.margin).mean(dim=0)
        labels = self._clusters(torch.cat([self._seen, anchors]), "clusters", receiver)
        own, foreign = labels[: len(losses)], labels[len(losses) :]
        temperature = self.config.temperature
        return sample_importance(
            losses, own, foreign, math.inf if temperature is None else temperature
        )

    def _weigh_embeddings(self, reserve: Tensor, receiver: int) -> Tensor:
        """Return implicit importance, eq. (22), for the receiver's reserve embeddings."""
        groups = min(self.config.reserve_groups, len(reserve))
        seed = self._seed("reserve clusters", receiver)
        foreign = kmeans(reserve, groups, seed=seed, restarts=self.config.restarts).assignments
        return embedding_importance(
            self._seen,
            self._labels,
            reserve,
            foreign,
            form=self.config.score,
            mean=self.config.overlap_mean,
            deviation=self.config.overlap_deviation,
        )

    @cached_property
    def _labels(self) -> Tensor:
        """The candidates' clusters, H of eq. (15)."""
        return self._clusters(self._seen, "clusters")

    @cached_property
    def _central(self) -> Tensor:
        """The candidates nearest to the device's own centroids."""
        config, seed = self.config, self._seed("central")
        return nearest_to_centroids(
            self._embeddings, config.pull_size, seed=seed, restarts=config.restarts
        )

    def _mean_radius(self) -> float:
        """Return the mean squared radius of this device's clusters under the last global model."""
        shared = self.config.importance == "global"
        labels = self._labels if shared else self._clusters(self._embeddings, "radius")
        return mean_squared_radius(self._embeddings, labels)

    def _choose_reserve(self) -> Tensor:
        """Return positions of the samples that represent this device's data."""
        size, count = len(self.client.data), self.config.reserve_size
        if self.config.reserve == "random":
            return draw_uniformly(size, count, self._stream("reserve"))
        points = to_unit(self.client.data.take()).flatten(start_dim=1)
        seed, restarts = self._seed("reserve"), self.config.restarts
        return nearest_to_centroids(points, count, seed=seed, restarts=restarts)

    def _clusters(self, points: Tensor, *purpose: str | int) -> Tensor:
        count, seed = min(self.config.clusters, len(points)), self._seed(*purpose)
        return kmeans(points, count, seed=seed, restarts=self.config.restarts).assignments

    def _embed(self, network: Tensors, samples: Tensor) -> Tensor:
        load_tensors(self.module, network)
        return self.client.embed(self.module.encoder, samples)

    def _seed(self, *purpose: str | int) -> int:
        return derive_seed(self.client.seed, "exchange", *purpose)

    def _stream(self, *purpose: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed(*purpose))


def believed(
    data: ClientData, messages: Mapping[int, Tensors]
) -> tuple[dict[int, dict[str, Tensor]], str]:
    """Leave out samples that lie far beyond a device's own, with which its loss would overflow.

    Whoever sent them would not be the one that fails. Images are within a range of their own.

    Args:
        data: The receiver's.
        messages: Sender to message.

    Returns:
        Sender to message, and a note on what is left out; "" if nothing is.
    """
    vectors = [
        value
        for message in messages.values()
        for key, value in message.items()
        if key in _SAMPLES and value.is_floating_point()
    ]
    if not vectors:
        return {by: dict(message) for by, message in messages.items()}, ""
    most = _FARTHEST * max(1.0, float(data.take().abs().max()))
    kept: dict[int, dict[str, Tensor]] = {by: {} for by in messages}
    left = 0
    for by, message in messages.items():
        for key, value in message.items():
            near = value
            if key in _SAMPLES:
                near = value[(value.abs() <= most).flatten(start_dim=1).all(dim=1)]
            left += len(value) - len(near)
            if len(near):
                kept[by][key] = near
    note = (
        f"it leaves out {left} samples from its neighbours, with values beyond {_FARTHEST:g} "
        "times its own largest one"
    )
    return kept, note if left else ""


def proximity(
    config: CFCLConfig, client: Client, encoder: nn.Module, received: Tensor, seed: int
) -> dict[str, float]:
    """Return how near received items are to a device's own clusters; see `relative_distances`.

    Args:
        config: The options of the exchange.
        client: The receiver's data, and `embed`.
        encoder: That of the last global model, which embeddings were sent by.
        received: Samples or embeddings, at least one.
        seed: Of the k-means.

    Returns:
        `proximity`, the mean, and the shares of items that are not beyond `EDGES`; nothing where
        the device's own data lie on its centroids, so that all else is infinitely far.
    """
    own = client.embed(encoder, client.data.take())
    count = min(config.clusters, len(own))
    centroids = kmeans(own, count, seed=seed, restarts=config.restarts).centroids
    points = received if config.sends_embeddings else client.embed(encoder, received)
    found = relative_distances(points, own, centroids).double()
    if bool(found.isnan().any()):
        return {}
    shares = {name: float((found <= edge).double().mean()) for name, edge in EDGES.items()}
    return {"proximity": min(float(found.mean()), LARGEST), **shares}
