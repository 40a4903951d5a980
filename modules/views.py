"""Sums over features of samples, and over their changes under warps or mirroring.

Aligned images, of which an exact encoder knows gradients or pixels, are warped. Photographs, which
a network encodes, are mirrored; see `networks.mirrored`.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from coterie.clustering.lattice import LIMIT, off_lattice, on_lattice, products
from coterie.contract import Bounds, Client, ServerState, Slots, Task
from coterie.contract.clusterer import Clusterer
from coterie.modules.exact_sums import (
    MOMENTS,
    POINTS,
    PRODUCTS,
    PROJECTION,
    WARPED,
    OnExactSums,
    differences,
    moment_sums,
    with_slots,
)
from coterie.networks.encoders import Encoder, Raw
from coterie.networks.mirrored import Mirrored
from coterie.networks.orientations import Orientations
from coterie.networks.prototypes import LatticeProjection
from coterie.networks.warps import WarpSizes, warps_of

FEATURES, WIDE = "features", "wide"


class OnViews(OnExactSums):
    """A method that learns from exact sums over features of samples and of their views.

    Args:
        sizes: Of the warps of images.
    """

    def __init__(self, task: Task, sizes: WarpSizes) -> None:
        super().__init__(task)
        images = len(task.shape) == 3
        exact = isinstance(task.encoder, (Orientations, Raw))
        self._mirrored = images and not exact
        self._warps = sizes.pairs() if images and not self._mirrored else []

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built, and no sums yet."""
        server = super().init(sizes, seed)
        moments = dict(server.slots[MOMENTS])
        if self._warps or self._mirrored:
            moments[WARPED] = torch.zeros_like(moments[PRODUCTS])
        return with_slots(server, {MOMENTS: moments})

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, of images and their mirror images where it is a network."""
        model = super().model_for(server, client)
        if self._mirrored:
            model.encoder = Encoder(Mirrored(model.encoder), self._task.features)
        return model

    def _moment_bounds(self) -> dict[str, Bounds]:
        """Return bounds on what a sample, and its pairs of views, add to the moments."""
        pairs = len(self._warps) + self._mirrored
        within = {WARPED: Bounds(highest=pairs * (2 * LIMIT) ** 2)}
        return {**super()._moment_bounds(), **(within if pairs else {})}

    def _moments(
        self, client: Client, slots: Slots
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Return sums over the features, and over their changes by warps or a mirror.

        A network's features are computed once, and stay with the client.
        """
        if self._mirrored:
            mirrored = Mirrored(super()._encoder(client, slots), differences=True)
            features, changes = on_lattice(client.embed(mirrored)).chunk(2, dim=1)
            sums = {**moment_sums(features, self.widest), WARPED: products(changes)}
            return sums, {FEATURES: features.to(torch.int16)}
        sums = moment_sums(self._features(client, slots), self.widest)
        if not self._warps:
            return sums, None
        within = torch.zeros_like(sums[PRODUCTS])
        pairs = warps_of(self._warps, self._task.shape)
        for away in differences(client, pairs, partial(self._features, client, slots)):
            within += products(away)
        return {**sums, WARPED: within}, None

    def _encoder(self, client: Client, slots: Slots) -> nn.Module:
        """Return the encoder that was sent; a network gets images and mirror images."""
        encoder = super()._encoder(client, slots)
        return Mirrored(encoder) if self._mirrored else encoder

    def _kept_points(self, client: Client, slots: Slots) -> dict[str, Tensor]:
        """Return the client's projected samples, which it keeps from task to task."""
        kept = client.state or {}
        if POINTS in kept:
            return {POINTS: kept[POINTS], WIDE: kept[WIDE]}
        features = kept[FEATURES] if FEATURES in kept else self._features(client, slots)
        values = off_lattice(features)
        return {
            name: on_lattice(LatticeProjection(**slots[slot])(values)).to(torch.int16)
            for name, slot in ((POINTS, PROJECTION), (WIDE, WIDE))
        }
