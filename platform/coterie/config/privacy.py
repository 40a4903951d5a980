"""What clients keep to themselves, whatever the method."""

from pydantic import PositiveInt

from coterie.config.component import Component


class PrivacyConfig(Component):
    """Limits on what a client's messages say about single samples."""

    minimum: PositiveInt = 2
    """Samples that a centroid from a client of Orchestra stands for at least, and from a client of
    CCFC or SCFC with fewer than so many for each cluster; others are not sent. With 1, single
    samples' representations are."""
    secure_aggregation: bool = False
    """Clients mask their contributions, and the driver reads only the sum of all of them, which is
    the same to the bit. For methods whose clients send nothing but sums."""
