"""Simulated time of messages over slow links: bits divided by the rate, without overlap.

Wagle et al. (CF-CL), section IV-B, with 1 Mbit/s from device to device and from device to server:
a 28×28 image of 8 bits a pixel takes 6.272 ms, an embedding of 16 numbers of 32 bits 0.512 ms.
"""

from collections.abc import Mapping

from coterie.config.schema import LinksConfig


def modelled_seconds(sent: Mapping[str, int], links: LinksConfig) -> dict[str, float]:
    """Return the total seconds of transfer by direction; messages do not overlap.

    Args:
        sent: Bytes by "down", "up" and "peer".
        links: The rates; a direction without one is left out.
    """
    rates = {"down": links.down_mbit_s, "up": links.up_mbit_s, "peer": links.peer_mbit_s}
    return {way: 8 * sent[way] / (rate * 1e6) for way, rate in rates.items() if rate is not None}
