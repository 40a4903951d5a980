"""Clusters that the data's owner has named, merged and split on the page of `coterie show`.

Parts of the same name are one cluster. A part is a cluster of the model, such as "3", or one of its
halves, "3a" and "3b", on either side of a plane in the space of representations. That of a model's
outliers is "-1".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict

from coterie.clustering.contingency import OUTLIER
from coterie.config.plain_files import read_json
from coterie.config.regular_files import sha256
from coterie.contract.clusterer import Prediction
from coterie.errors import ConfigError, described
from coterie.models.saved_model import WEIGHTS

SIDES = "ab"
_BYTES = 1 << 27
_LONGEST = 200


class _Plane(TypedDict):
    direction: list[float]
    threshold: float


class _File(TypedDict):
    model: str
    names: dict[str, str]
    planes: dict[str, _Plane]


_FILE = TypeAdapter(_File)


class Plane(NamedTuple):
    """The plane that splits a cluster in two.

    Attributes:
        direction: float64 (d,), the step from the middle of half a to that of half b.
        threshold: Representations h with `direction · h` above it are of half b.
    """

    direction: Tensor
    threshold: float


@dataclass(frozen=True)
class NamedClusters:
    """The names of a model's clusters and of their halves.

    Attributes:
        names: The names, each once, in the order of their first parts, outliers last.
        parts: Part to the place of its name.
        outliers: Whether the last name is that of outliers alone.
    """

    names: tuple[str, ...]
    parts: dict[str, int]
    planes: dict[int, Plane]
    outliers: bool = False

    def of(self, prediction: Prediction) -> Prediction:
        """Return the prediction with each name's probability, which is the sum over its parts."""
        found = prediction.probabilities
        assert found is not None  # `read_named_clusters` refuses models without clusters
        probabilities = found.new_zeros(len(found), len(self.names))
        for part, name in self.parts.items():
            cluster, side = _place(part)
            own = found[:, cluster]  # that of outliers is the last
            if side is not None:
                plane = self.planes[cluster]
                beyond = prediction.embedding.double() @ plane.direction > plane.threshold
                own = torch.where(beyond == bool(side), own, 0.0)
            probabilities[:, name] += own
        return Prediction(prediction.embedding, probabilities)


def model_digest(folder: Path) -> str:
    """Return the SHA-256 of a saved model's weights, which a file of names refers to."""
    return sha256(folder / WEIGHTS)


def read_named_clusters(path: Path, folder: Path, description: Mapping[str, Any]) -> NamedClusters:
    """Read a file that the page of `coterie show` saved.

    Args:
        path: The file.
        folder: The saved model that it is for.
        description: The model's, see `read_description`.

    Raises:
        ConfigError: If it cannot be read, is for another model, or does not name each of the
            model's clusters, or both of its halves, once.
    """
    if not path.is_file():
        raise _refused(path, "there is no such file")
    try:
        found = _FILE.validate_python(read_json(path, _BYTES), strict=True)
        _check_model(found["model"], folder)
        width, own = description["features"], [*range(description["clusters"] or 0)]
        own += [OUTLIER] if description["outliers"] else []
        planes = {int(key): _plane(plane, width) for key, plane in found["planes"].items()}
        _check_parts(found["names"], own, planes)
    except ValidationError as error:
        first = error.errors()[0]
        raise _refused(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise _refused(path, described(error)) from error
    ordered = sorted(found["names"].items(), key=lambda item: _order(item[0]))
    names = tuple(dict.fromkeys(name.strip() for _, name in ordered))
    parts = {part: names.index(name.strip()) for part, name in ordered}
    outliers = parts.get(str(OUTLIER), -1)
    alone = outliers == len(names) - 1 and [*parts.values()].count(outliers) == 1
    return NamedClusters(names, parts, planes, alone)


def _place(part: str) -> tuple[int, int | None]:
    """Return a part's cluster and, for a half, its side of the plane."""
    if part[-1:] in SIDES and part[:-1]:
        return int(part[:-1]), SIDES.index(part[-1])
    return int(part), None


def _order(part: str) -> tuple[bool, int]:
    cluster, _ = _place(part)
    return cluster == OUTLIER, cluster


def _check_model(digest: str, folder: Path) -> None:
    if digest != model_digest(folder):
        raise ValueError(f"it is for another model than {folder}")


def _check_parts(names: dict[str, Any], clusters: list[int], planes: dict[int, Plane]) -> None:
    """Raise a ValueError unless the parts cover all clusters, and all have names."""
    halves = {f"{cluster}{side}" for cluster in planes for side in SIDES}
    split = {part[:-1] for part in halves & names.keys()}
    wanted = {str(cluster) for cluster in clusters} - split
    wanted |= {part + side for part in split for side in SIDES}
    if other := sorted(wanted ^ names.keys()):
        raise ValueError(
            f"it {'lacks' if other[0] in wanted else 'has an unknown'} part {other[0]}"
        )
    for part, name in names.items():
        if not name.strip() or len(name) > _LONGEST or not name.isprintable():
            raise ValueError(f"part {part} has no name of up to {_LONGEST} printable characters")


def _plane(values: _Plane, features: int) -> Plane:
    numbers = [*values["direction"], values["threshold"]]
    if len(values["direction"]) != features or not all(map(math.isfinite, numbers)):
        raise ValueError(f"a plane does not have {features} finite numbers")
    return Plane(torch.tensor(values["direction"], dtype=torch.float64), values["threshold"])


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"clusters={path}: {why}; save it again from the page that coterie show writes."
    )
