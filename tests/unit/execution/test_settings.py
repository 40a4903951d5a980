"""What a client's code sets in its process ends with its task."""

import ctypes
import resource
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.execution.settings import apply_settings, numeric_settings, settings_kept
from coterie.execution.torch_modes import global_hooks
from tests.builders.leaves import WAYS
from tests.builders.runs import assert_same, run

LEAVES = (
    "experiment=fedavg_digits",
    "data.limit=90",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "partition.clients=3",
    "cluster=serial",
    "method.target=tests.builders.leaves:Leaves",
    "method.rounds=2",
    "method.batch_size=16",
    "faults.on_client_failure=drop",
)


def told():
    """All that `WAYS` change, as it is now."""
    return {
        **numeric_settings(),
        "device": torch.get_default_device(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "inference": torch.is_inference_mode_enabled(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "numpy": np.geterr(),
        "warnings": [found for found in warnings.filters if found[0] == "error"],
        "folder": Path.cwd(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "hooks": global_hooks(),
        "recursion": sys.getrecursionlimit(),
        "transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "rounding": ctypes.CDLL(None).fegetround(),
        "timer": signal.getitimer(signal.ITIMER_PROF),
        "limit": resource.getrlimit(resource.RLIMIT_FSIZE),
    }


@pytest.fixture(scope="module")
def plain():
    """The runs in which the client that fails leaves nothing behind."""
    return {
        executor: run(f"executor={executor}", base=LEAVES) for executor in ("bare", "lightning")
    }


@pytest.mark.parametrize("how", sorted(WAYS.keys() - {"nothing"}))
def test_what_a_client_leaves_behind_does_not_change_the_others(how, plain):
    before = told()
    with settings_kept():  # for the tests behind this one, if it fails
        for executor, expected in plain.items():
            found = run(f"executor={executor}", f"method.how={how}", base=LEAVES)
            assert told() == before
            assert_same(found, expected)
            assert found.dropped == 1


def test_autocast_that_was_entered_and_not_left_keeps_no_weights():
    weight, ones = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    with settings_kept():
        WAYS["autocast"]()
    for value in (1.0, 3.0):
        with torch.no_grad():
            weight.fill_(value)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (ones @ weight)[0, 0].item() == 2 * value


def test_filters_of_libraries_stay():
    with warnings.catch_warnings():
        with settings_kept():
            warnings.simplefilter("error", DeprecationWarning)
            warnings.filterwarnings("ignore", message="of a library")
        assert [found[0] for found in warnings.filters].count("ignore")
        assert ("error", None, DeprecationWarning, None, 0) not in warnings.filters


def test_numeric_settings_can_be_given_to_another_process():
    with settings_kept():
        WAYS["products"]()
        WAYS["dtype"]()
        wanted = numeric_settings()
    assert numeric_settings() != wanted
    with settings_kept():
        apply_settings(wanted)
        assert numeric_settings() == wanted
        assert torch.get_float32_matmul_precision() == "medium"
