"""FedAvg with a client that leaves the settings of its process as no other client wants them."""

import os
import tempfile
import warnings

import numpy as np
import torch

from coterie.modules.fedavg import FedAvg

_entered = []


def _enter(context):
    context.__enter__()
    _entered.append(context)


def _nowhere():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


WAYS = {
    "nothing": lambda: None,
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "products": lambda: torch.set_float32_matmul_precision("medium"),
    "one product": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "library": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "autocast": lambda: _enter(torch.autocast("cpu", dtype=torch.bfloat16)),
    "inference": lambda: _enter(torch.inference_mode()),
    "gradients": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "denormal": lambda: torch.set_flush_denormal(True),
    "numpy": lambda: np.seterr(all="raise"),
    "warnings": lambda: warnings.simplefilter("error"),
    "folder": _nowhere,
}


class Leaves(FedAvg):
    class Config(FedAvg.Config):
        """FedAvg's, and what the first client leaves behind when it fails in the first round."""

        how: str = "nothing"

    def client(self, client, phase, slots):
        if client.id == 0 and phase.round == 1:
            WAYS[self._config.how]()
            raise ValueError("it fails")
        return super().client(client, phase, slots)
