"""Digests of a data set, by which a later process can tell whether the data has changed."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import DataArrays, Indices, Samples
from coterie.contract.samples import StreamedSamples

_WHOLE_BYTES = 1 << 20
"""Samples of at most this many bytes together are digested in full."""
_ROWS, _PLACES = 64, 8
"""For more bytes: samples that are digested in full, and values of every other sample."""
_SHARE = 64
"""Of streamed samples, one in this many is read, up to `_ROWS`."""


def digest(*parts: bytes | NDArray[Any]) -> str:
    """Return a digest of bytes and arrays, in hexadecimal."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return found.hexdigest()


def contents_digest(samples: Samples | None) -> str:
    """Return a digest of samples that costs far less than reading all of them.

    Up to 1 MiB all values count; beyond, 64 samples in full and eight values of every sample. Of
    streamed samples one in 64 is read, at most 64, unless all were read before, or their arrays are
    in memory.
    """
    if samples is None or not len(samples):
        return ""
    head = _head(samples)
    if isinstance(samples, StreamedSamples):
        if samples.contents:
            return digest(head, samples.contents.encode())
        if kept := arrays_digest(samples.arrays()):
            return digest(head, kept.encode())
        return digest(head, samples[_spread(len(samples), min(_ROWS, len(samples) // _SHARE + 1))])
    return _of_array(samples)


def arrays_digest(arrays: Iterable[NDArray[Any]]) -> str:
    """Return a digest of arrays, from as many values as `contents_digest` reads; "" if none."""
    kept = [_of_array(array) for array in arrays]
    return digest(" ".join(kept).encode()) if kept else ""


def _of_array(array: NDArray[Any]) -> str:
    head = _head(array)
    if array.nbytes <= _WHOLE_BYTES:
        return digest(head, array)
    flat = array.reshape(len(array), -1)
    some = flat[:, _spread(flat.shape[1], _PLACES)]
    return digest(head, array[_spread(len(array), _ROWS)], some)


def _head(samples: Samples) -> bytes:
    return f"{samples.dtype} {tuple(samples.shape)}".encode()


def labels_digest(labels: Indices | None) -> str:
    """Return a digest of labels; "" if there are none."""
    return "" if labels is None else digest(labels)


def data_digest(data: DataArrays) -> str:
    """Return a digest of a whole data set's labels and contents, with its test set."""
    parts = (
        contents_digest(data.samples),
        labels_digest(data.labels),
        contents_digest(data.test_samples),
        labels_digest(data.test_labels),
    )
    return digest(" ".join(parts).encode())


def _spread(count: int, most: int) -> Indices:
    """Return up to `most` evenly spread numbers below `count`, the first and the last included."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))
