"""The relevance of an encoder's pretraining data to the data of the clients.

CP-CFL (Tun et al., section 4.3): the mean cosine over all pairs of representations of 300 random
images of each data set.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from coterie.config.schema import RunConfig
from coterie.contract.client import ClientData
from coterie.contract.data import Indices, Samples
from coterie.contract.section_checks import check_sections
from coterie.contract.seeds import derive_seed
from coterie.errors import DataError
from coterie.execution.task_client import embed
from coterie.models.loading import load_model
from coterie.run.data import read_and_split


def pretraining_relevance(
    pretrained: str, pretraining: RunConfig, clients: RunConfig, samples: int
) -> float:
    """Return the mean cosine between representations of the pretraining and the clients' data.

    `samples` are drawn from each data set.

    Returns:
        A number in [-1, 1], see `mean_cross_cosine`.

    Raises:
        DataError: If the samples of the two differ in shape.
    """
    encoder = load_model(pretrained, clients.trust).encoder
    sampled, shapes = [], []
    for purpose, config in (("pretraining", pretraining), ("clients", clients)):
        check_sections(config)
        data, parts = read_and_split(config)
        shapes.append(data.shape)
        if shapes[-1] != shapes[0]:
            raise DataError(
                f"pretrained={pretrained}: its samples are {shapes[0]}, the clients' "
                f"{shapes[-1]}; set data.size to that of the pretraining."
            )
        seed = derive_seed(clients.seed, "relevance", purpose)
        rows = np.concatenate(parts)
        sampled.append(embedded_sample(encoder, data.samples, rows, samples, seed))
    return mean_cross_cosine(*sampled)


def mean_cross_cosine(first: Tensor, second: Tensor) -> float:
    """Return the mean s(u, v) over u of `first` and v of `second`; zero vectors count as 0.

    It is computed as the product of the two means of unit vectors.

    Args:
        first: Representations (n, d), n of 1 or more.
        second: Representations (m, d), m of 1 or more.

    Returns:
        A number in [-1, 1]; in [0, 1] if representations are non-negative.

    Raises:
        DataError: If one is empty, or their widths differ.
    """
    if not len(first) or not len(second) or first.shape[1:] != second.shape[1:]:
        raise DataError(
            f"representations {tuple(first.shape)} and {tuple(second.shape)}: give (n, d) and "
            "(m, d), n and m of 1 or more."
        )
    means = [normalize(points.double(), dim=1).mean(dim=0) for points in (first, second)]
    return float(means[0] @ means[1])


def embedded_sample(
    encoder: nn.Module, samples: Samples, rows: Indices, count: int, seed: int
) -> Tensor:
    """Return representations of up to `count` random samples among these rows.

    The encoder is in eval mode and maps samples in [0, 1] to representations (n, d).
    """
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.choice(rows, size=min(count, len(rows)), replace=False))
    return embed(encoder, ClientData(samples=samples, rows=drawn), torch.device("cpu"))
