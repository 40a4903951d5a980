"""Weights that torchvision and timm publish for their networks: on this machine, or fetched.

What is fetched is checked before it is used: a file of a hub has to be .safetensors, and any other
to have the hash that its address names.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch

from coterie.errors import ConfigError, reason

_SAFE = {
    "pytorch_model.bin": "model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_model.safetensors",
}
"""The .safetensors file in a hub for each name of a PyTorch file."""


class OwnWeights(NamedTuple):
    """The weights that a library has for one of its networks.

    Attributes:
        source: Where it is from, with its revision.
    """

    path: str
    source: str


def from_address(url: str, *, fetch: bool) -> OwnWeights:
    """Return the file that torchvision, or PyTorch, keeps for an address.

    Args:
        url: Its address; before the suffix a hash, the first digits of its SHA-256.
        fetch: Whether to fetch a missing file.

    Raises:
        ConfigError: If it is missing, cannot be fetched, or is another than its hash says.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if path.is_file():
        return OwnWeights(str(path), url)
    if not fetch:
        raise _missing(f"put {url} into {path.parent}")
    stated = torch.hub.HASH_REGEX.search(path.name)
    if stated is None or not stated[1]:
        raise ConfigError(
            f"encoder.download=true: {url} names no hash of the file, so what comes cannot be "
            "checked; fetch it by hand, and give encoder.weights=FILE."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix=stated[1])
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_fetched(url, error, f"put it into {path.parent}") from error
    return OwnWeights(str(path), url)


def from_hub(repository: str, name: str | None, *, fetch: bool) -> OwnWeights:
    """Return a file of the Hugging Face hub, in the hub's cache.

    Args:
        repository: Its repository, with @revision unless that is the newest.
        name: The file that PyTorch wrote; by default a hub's usual one.
        fetch: Whether to fetch a missing file, as .safetensors.

    Raises:
        ConfigError: If it is missing, cannot be fetched, or differs from what the hub promised.
    """
    from huggingface_hub import (  # comes with timm
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )

    written = name or "pytorch_model.bin"
    safe = _SAFE.get(written, str(Path(written).with_suffix(".safetensors")))
    place, _, revision = repository.partition("@")
    for file in (safe, written):
        found = try_to_load_from_cache(place, file, revision=revision or None)
        if isinstance(found, str):
            return OwnWeights(found, _source(place, found))
    by_hand = f"download {safe} of {place} where there is a network"
    if not fetch:
        raise _missing(by_hand)
    try:
        # The download would ask again and again for half a minute where there is no network.
        promised = get_hf_file_metadata(hf_hub_url(place, safe, revision=revision or None)).etag
        path = hf_hub_download(place, safe, revision=revision or None)
        _check_promised(Path(path), promised or "")
    except Exception as error:  # the hub's client raises those of its transport too
        raise _not_fetched(f"{safe} of {place}", error, by_hand) from error
    return OwnWeights(path, _source(place, path))


def _check_promised(path: Path, promised: str) -> None:
    """Compare a file with the SHA-256 that the hub states.

    Raises:
        ValueError: If they differ; the file is gone then.
    """
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != promised:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(f"its SHA-256 is {found[:8]}…, not the promised {promised[:8]}…")


def _source(repository: str, path: str) -> str:
    """Return the file's place in the hub with its commit, which names the folder in the cache."""
    file = Path(path)
    return f"hf://{repository}@{file.parent.name}/{file.name}"


def _missing(by_hand: str) -> ConfigError:
    return ConfigError(
        "encoder.pretrained=true: the weights are not on this machine; fetch them with "
        f"encoder.download=true, or {by_hand}, or give encoder.weights=FILE."
    )


def _not_fetched(what: str, error: Exception, by_hand: str) -> ConfigError:
    return ConfigError(
        f"encoder.download=true: fetching {what} failed ({reason(error)}); without a network here, "
        f"{by_hand}, or give encoder.weights=FILE."
    )
