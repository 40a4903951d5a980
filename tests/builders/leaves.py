"""FedAvg with a client that leaves the settings of its process as no other client wants them."""

import ctypes
import inspect
import os
import resource
import signal
import sys
import tempfile
import warnings

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.modules.fedavg import FedAvg

_entered = []


def _enter(context):
    context.__enter__()
    _entered.append(context)


def _nowhere():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


class _Doubles(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.nn.functional.relu else result


class _Halves(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result / 2 if function is torch.ops.aten.relu.default else result


def _doubled(module, given, result):
    return result * 2 if torch.is_tensor(result) else None


def _halved(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for value in group["params"]:
            value.data.mul_(0.5)


def _limit():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


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
    "function mode": lambda: _enter(_Doubles()),
    "function mode and device": lambda: (
        torch.set_default_device("meta"),
        _enter(_Doubles()),
    ),
    "dispatch mode": lambda: _enter(_Halves()),
    "saved tensors": lambda: _enter(
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x * 0)
    ),
    "hooks of modules": lambda: register_module_forward_hook(_doubled),
    "hooks of optimizers": lambda: register_optimizer_step_post_hook(_halved),
    "vmap": lambda: torch._C._functorch._vmap_increment_nesting(3, "error"),
    "grad": torch._C._functorch._grad_increment_nesting,
    "rounding": lambda: ctypes.CDLL(None).fesetround(0x800),
    "recursion": lambda: sys.setrecursionlimit(len(inspect.stack(0)) + 20),
    "timer": lambda: signal.setitimer(signal.ITIMER_PROF, 600),
    "limit": _limit,
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
