"""Levels per site: scanners of 12 and of 16 bits, each from its own black to its own white."""

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from coterie.datamodules.decoding import (
    Levelled,
    Picture,
    PixelFormat,
    UnreadablePictureError,
    level_range,
)
from coterie.datamodules.dicom import Levels
from coterie.datamodules.source import Source, source_from_pictures
from coterie.errors import DataError, listed, printable

_logger = logging.getLogger(__name__)
WHOLE = ""
"""The site of data that names no sites."""
_BITS = range(8, 17)
_TWELVE_BITS = 4095


def measured_levels(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat, site: str
) -> Levels | None:
    """Return the levels of black and white in pictures of one site, or of `WHOLE`.

    Of whole numbers it is 0 and the largest that as many bits hold as the site uses; of others
    their range.

    Returns:
        The levels; None if no picture has more than 8 bits, or all are DICOM, which say it.
    """

    def look(row: int) -> tuple[float, float, bool] | None:
        try:
            return level_range(pictures[row], names[row], pixel_format)
        except UnreadablePictureError:  # reported where it is read
            return None

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = [one for one in pool.map(look, range(len(pictures))) if one is not None]
    if not found:
        return None
    low, high = min(one[0] for one in found), max(one[1] for one in found)
    if dark := sum(one[1] <= _TWELVE_BITS for one in found) if high > _TWELVE_BITS else 0:
        _logger.warning(
            "data.levels=auto: %d of %d pictures of more than 8 bits %shave no level above %d "
            "and come out dark; if they have 12 bits, give them as a separate client.",
            *(dark, len(found), f"of {printable(site)} " if site else "", _TWELVE_BITS),
        )
    if all(whole for _, _, whole in found) and low >= 0 and high < 2 ** _BITS[-1]:
        return 0.0, float(next(2**bits - 1 for bits in _BITS if high < 2**bits))
    return low, max(high, np.nextafter(low, np.inf))


def with_site_levels(
    source: Source, given: Mapping[str, Levels] | None, known: dict[str, Levels | None]
) -> Source:
    """Give each picture the levels of its site.

    Args:
        source: Pictures, with their owners if they have any.
        given: Site to its levels; None measures those that are not known.
        known: Site to what was measured before; it is added to.

    Raises:
        DataError: If the source holds no pictures in files, or a site that is given does not exist.
    """
    if source.pictures is None:
        raise DataError(
            "data.levels: levels of each site are for pictures in folders, tables and tar files; "
            "give two numbers."
        )
    sites = source.owner_names or (WHOLE,)
    owners = np.zeros(source.count, np.int64) if source.owners is None else source.owners
    if given is not None:
        if other := sorted(given.keys() - set(sites)):
            raise DataError(
                f"data.levels.{other[0]}: there is no such client; there are "
                f"{', '.join(filter(None, sites)) or 'none'}."
            )
        known = dict(given)
    new = [name for name in sites if given is None and name not in known]
    for site, name in enumerate(sites):
        if name in new:
            rows = np.flatnonzero(owners == site).tolist()
            own = [source.pictures[row] for row in rows]
            known[name] = measured_levels(
                own, [source.names[row] for row in rows], source.pixel_format, name
            )
    tell_levels({name: known[name] for name in new})
    levels = [known.get(name) for name in sites]
    pictures = [
        Levelled(source.pictures[row], levels[owner]) for row, owner in enumerate(owners.tolist())
    ]
    read = source_from_pictures(pictures, source.names, source.pixel_format).read
    return replace(source, pictures=pictures, read=read)


def tell_levels(measured: Mapping[str, Levels | None]) -> None:
    """Say which levels were measured, since wrong ones make a site too dark or too bright."""
    found = [
        f"{printable(site) or 'all'} {levels[0]:g} to {levels[1]:g}"
        for site, levels in measured.items()
        if levels is not None
    ]
    if found:
        _logger.warning("data.levels=auto reads black to white as %s.", listed(found))
