"""Reads weights of networks from files: safetensors, or PyTorch's without code in them."""

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn

from coterie.config.given_path import checkpoint_in_parts, given_path
from coterie.config.regular_files import open_regular
from coterie.contract.tensor_spec import DTYPES
from coterie.errors import ConfigError, DataError, listed, printable, reason
from coterie.networks.pickle_checks import PLAIN, check_pickles

Weights = Mapping[str, Tensor]

_REAL = {*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2}
_SHARED, _NAMES = 1 << 28, 50
"""Bytes that weights may have in any file, and names that each of its numbers may have."""
_INNER = ("state_dict", "model_state_dict", "model")
"""Names under which training scripts keep the weights in a checkpoint."""


def read_file(key: str, path: str) -> bytes:
    """Return the content of a file that the config names.

    Raises:
        ConfigError: If it cannot be read, or is empty.
    """
    if given_path(key, path).is_dir():
        if told := checkpoint_in_parts(given_path(key, path)):
            raise ConfigError(f"{key}={path}: {told}.")
        raise ConfigError(
            f"{key}={path}: it is a folder; for the encoder of a run take encoder=pretrained "
            "encoder.path=FOLDER."
        )
    try:
        with open_regular(given_path(key, path)) as file:
            content = file.read()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{key}={path}: it cannot be read ({why}); check the path.") from error
    if not content:
        raise ConfigError(f"{key}={path}: the file is empty; write or fetch it again.")
    return content


def unpickled(content: bytes, path: str, remedy: str) -> Any:
    """Return what `torch.save` wrote, on the CPU: tensors and plain values, and no other objects.

    Raises:
        DataError: If it cannot be read, in a sentence with a remedy.
    """
    try:
        check_pickles(content)
        with torch.serialization.safe_globals([(kind, name) for name, kind in PLAIN.items()]):
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises undocumented errors for damaged files
        why = reason(error)
        if isinstance(error, pickle.UnpicklingError) or "TorchScript" in why:
            pickled = _is_zip(content) or content[:1] == b"\x80"
            why = "it holds Python objects" if pickled else "it is not a PyTorch file"
        raise DataError(_unread(path, why, remedy)) from error


def _unread(path: str, why: str, remedy: str) -> str:
    return f"{path}: its weights cannot be read ({why}); {remedy}"


def parse_weights(content: bytes, path: str) -> dict[str, Tensor]:
    """Return the weights in a .safetensors file, or in one that `torch.save` wrote.

    The content says which of the two it is. A checkpoint may hold them under `state_dict`,
    `model_state_dict` or `model`.

    Raises:
        DataError: If they cannot be read.
    """
    remedy = "save the network's state_dict()."
    if content[8:9] == b"{" or (Path(path).suffix == ".safetensors" and not _is_zip(content)):
        try:
            weights: Any = load(content)
        except Exception as error:  # safetensors too
            raise DataError(_unread(path, reason(error), remedy)) from error
        return checked(weights, path)
    found: Any = unpickled(content, path, remedy)
    inner = next((name for name in _INNER if isinstance(found, Mapping) and name in found), None)
    weights = found if inner is None else found[inner]
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        keys = (
            f" in {printable(listed([*map(str, weights)]))}" if isinstance(weights, Mapping) else ""
        )
        raise DataError(f"{path}: it holds no weights by name{keys}; {remedy}")
    return checked(dict(weights), path)


def checked(weights: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Return weights of which each is a dense tensor of real numbers.

    Raises:
        DataError: At the first that is not: PyTorch would drop what is imaginary of it, or fail; or
            if one or all have more numbers than the file, of which a library makes copies.
    """
    stored: dict[int, int] = {}
    for name, value in weights.items():
        dense = not value.is_nested and value.layout is torch.strided and not value.is_meta
        if not (dense and value.dtype in _REAL):
            kind = value.dtype if dense else "nested, sparse, or without values"
            raise DataError(
                f"{path}: {printable(name)} is {kind}; save dense tensors of real numbers."
            )
        storage = value.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        if value.nbytes > storage.nbytes():
            raise DataError(
                f"{path}: {printable(name)} repeats numbers that the file stores once; save it "
                "after .contiguous()."
            )
    whole, most = sum(value.nbytes for value in weights.values()), sum(stored.values())
    if whole > max(_SHARED, _NAMES * most):
        raise DataError(
            f"{path}: its {len(weights):,} weights overlap: they are {whole >> 20:,} MiB, and the "
            f"file stores {most >> 20:,} MiB; save each weight once."
        )
    return weights


def _is_zip(content: bytes) -> bool:
    return content[:2] == b"PK"


def load_weights(
    network: nn.Module,
    weights: Weights,
    path: str,
    dropped: Sequence[str] = (),
    adapted: Callable[[Weights], Weights] = dict,
) -> None:
    """Load all of a network's weights.

    A checkpoint of Lightning has those of a whole module: if the network is one part of it, such as
    `model.`, the part is taken.

    Args:
        network: The network.
        weights: Its weights, or those of a module that holds it.
        path: The file, for errors.
        dropped: Parts of the network that are not wanted, such as its classifier.
        adapted: Fits the weights to the network.

    Raises:
        ConfigError: If a weight is missing, superfluous or of another shape.
    """
    wanted = network.state_dict()
    heads = tuple(f"{name}." for name in dropped)
    found = _adapted(_part(weights, wanted), adapted, path)
    weights = {name: value for name, value in found.items() if not name.startswith(heads)}
    _check_names(wanted, weights, path)
    for name, value in weights.items():
        has, given = tuple(wanted[name].shape), tuple(value.shape)
        if has != given:
            raise ConfigError(
                f"encoder.weights={path}: the network's {name} is {has}, the file's {given}; give "
                "the stem, image size and options that the weights were made for (encoder.stem, "
                "encoder.size, encoder.options)."
            )
    network.load_state_dict(dict(weights), strict=False)


def _check_names(wanted: Weights, weights: Weights, path: str) -> None:
    """Refuse weights of a network with other names."""
    # Files of other frameworks lack the counters, which count nothing here.
    missing = [n for n in wanted if n not in weights and not n.endswith("num_batches_tracked")]
    besides = [name for name in weights if name not in wanted]
    for what, other, names in (("lacks", "has", missing), ("has", "lacks", besides)):
        if names:
            more = f" and {len(names) - 1:,} more" if names[1:] else ""
            raise ConfigError(
                f"encoder.weights={path}: it holds weights of another network: it {what} "
                f"{printable(names[0])}{more}, which this network {other}; name that network with "
                "encoder= and encoder.options, or give this one's weights."
            )


def _adapted(weights: Weights, adapted: Callable[[Weights], Weights], path: str) -> Weights:
    """Return the weights after the library's own conversion for this network."""
    try:
        return adapted(weights)
    except Exception as error:  # the library's code, on a file of whatever kind
        raise ConfigError(
            f"encoder.weights={path}: they cannot be fitted to the network ({reason(error)}); give "
            "weights of this model."
        ) from error


def _part(weights: Weights, wanted: Weights) -> Weights:
    """Return the weights of a network that is part of a larger one, by its own names."""
    needed = [name for name in wanted if not name.endswith("num_batches_tracked")]
    if not needed or needed[0] in weights:
        return weights
    starts = [name.removesuffix(needed[0]) for name in weights if name.endswith(f".{needed[0]}")]
    for start in starts:
        own = {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}
        if own.keys() >= set(needed):
            return own
    return weights
