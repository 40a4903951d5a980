"""FAISS, loaded with the BLAS kernels that suit the CPU.

FAISS's wheels hold an OpenBLAS of 2021. It takes CPUs made since for ones without AVX, and k-means
for up to eight times as long. `OPENBLAS_CORETYPE` names the kernels; a user's own value stays.
"""

import importlib
import os
from typing import Any

import torch

_VARIABLE = "OPENBLAS_CORETYPE"
_KERNELS = {"AVX2": "Haswell", "AVX512": "SkylakeX"}


def load_faiss() -> Any:
    """Import FAISS; the environment stays unchanged, as other libraries' BLAS reads it too."""
    kernels = _KERNELS.get(torch.backends.cpu.get_cpu_capability())
    if kernels is None or os.environ.get(_VARIABLE):
        return importlib.import_module("faiss")
    os.environ[_VARIABLE] = kernels
    try:
        return importlib.import_module("faiss")
    finally:
        del os.environ[_VARIABLE]
