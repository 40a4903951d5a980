"""Writes a saved model as an ONNX file, and checks it with ONNX Runtime against the model."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError, DataError, reason
from coterie.models.saved_program import plain
from coterie.tracking.atomic import replacing

_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_OPSET = 18
_TOLERANCE = 1e-3
"""Largest difference to the model's outputs, relative to their largest value."""
_OUTPUTS = ("embedding", "probabilities")


def check_onnx_installed() -> None:
    """Refuse an export for which a package is missing."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"format=onnx: {missing[0]} is not installed; install it with pip install "
            "'coterie[onnx]'."
        )


def write_onnx(path: Path, model: Clusterer, samples: Tensor) -> float:
    """Write a model for any batch size, with the input "samples" and named outputs.

    Args:
        path: The file, which is written when the check has passed.
        model: In eval mode, on the CPU.
        samples: A batch of three samples or more to check with.

    Returns:
        The largest difference of ONNX Runtime's outputs from the model's, relative to the latter's
        largest value.

    Raises:
        DataError: If the network cannot be an ONNX file, or ONNX Runtime computes something else.
    """
    wrapped = plain(model)
    with torch.inference_mode():
        expected = [value for value in wrapped(samples) if value is not None]
    with replacing(path) as temporary:
        try:
            _export(temporary, wrapped, samples[:2], len(expected))
            apart = max(_apart(temporary, wrapped, samples[:n]) for n in (1, len(samples)))
        except DataError:
            raise
        except Exception as error:
            why = f"the network cannot be converted to ONNX ({reason(_root(error))})"
            raise DataError(f"{path}: {why}; use format=pt2.") from error
        if not apart <= _TOLERANCE:
            raise DataError(
                f"{path}: ONNX Runtime's outputs differ from the model's by {apart:.2g} of their "
                "largest value; use format=pt2."
            )
    return apart


def _export(path: Path, wrapped: torch.nn.Module, samples: Tensor, outputs: int) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            wrapped,
            (samples,),
            str(path),
            input_names=["samples"],
            output_names=list(_OUTPUTS[:outputs]),
            dynamic_shapes=({0: torch.export.Dim("n")},),
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
            custom_translation_table={torch.ops.aten._cdist_forward.default: _distances},
        )


def _distances(points: Any, others: Any, p: float, compute_mode: int | None = None) -> Any:
    """Return the Euclidean distances of two sets of points, for which PyTorch has no ONNX form."""
    from onnxscript import opset18 as op

    apart = op.Sub(op.Unsqueeze(points, [-2]), op.Unsqueeze(others, [-3]))
    return op.Sqrt(op.ReduceSum(op.Mul(apart, apart), [-1], keepdims=0))


def _root(error: BaseException) -> BaseException:
    """Return the root cause of an error."""
    return error if error.__cause__ is None else _root(error.__cause__)


def _apart(path: Path, wrapped: torch.nn.Module, samples: Tensor) -> float:
    """Return the largest relative difference of ONNX Runtime's outputs on these samples."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"samples": samples.numpy()})
    with torch.inference_mode():
        expected = [value.float().numpy() for value in wrapped(samples) if value is not None]
    largest = [
        float(np.abs(one - other).max() / max(np.abs(other).max(), np.finfo(np.float32).tiny))
        for one, other in zip(found, expected, strict=True)
    ]
    return max(largest)
