"""What holds on a GPU: the same bits for any number of actors, and every method as on the CPU.

The device is that of COTERIE_DEVICE, `cuda` by default; without CUDA these tests are skipped.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from coterie.clustering.kmeans import kmeans
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.vmapped_clients import VmappedClients
from tests.builders.every_method import CHOICES, small
from tests.builders.loss_curves import curve
from tests.builders.runs import CCFC, SMALL, assert_same, run

DEVICE = os.environ.get("COTERIE_DEVICE", "cuda")
CUDA = DEVICE == "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA and not torch.cuda.is_available(), reason="no CUDA device"),
]
HERE = (f"accelerator={DEVICE}",)
CONVOLUTIONS = ("encoder=conv3", "encoder.width=8", "encoder.features=16")
RUNS = {
    "fedmcc": (SMALL, ()),
    "fedmcc, convolutions": (tuple(k for k in SMALL if "encoder" not in k), CONVOLUTIONS),
    "fedmcc, convolutions, bfloat16": (
        tuple(k for k in SMALL if "encoder" not in k),
        (*CONVOLUTIONS, "precision=bf16-mixed"),
    ),
    "ccfc": (CCFC, ()),
}
SAME = 1e-3
"""Relative difference of losses in float64; views are drawn in float32."""


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=6,
        num_gpus=torch.cuda.device_count() if CUDA else 0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=2 * 10**8,
    )
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_its_own_bits_again(name: str) -> None:
    base, more = RUNS[name]
    again = [run("cluster=serial", *HERE, *more, base=base) for _ in range(2)]
    assert_same(*again)


@pytest.mark.parametrize("actors", [1, 2, 5])
@pytest.mark.parametrize("name", RUNS)
def test_any_number_of_actors_gives_the_serial_backends_bits(cluster, name, actors) -> None:
    base, more = RUNS[name]
    share = (f"cluster.gpus_per_client={min(0.5, 1 / actors)}",) if CUDA else ()
    found = run(f"cluster.num_actors={actors}", *HERE, *share, *more, base=base)
    assert_same(found, run("cluster=serial", *HERE, *more, base=base))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_method_trains_as_on_the_cpu(choice: str) -> None:
    # Random views are drawn by the device's own generator, so views equal the samples here.
    common = ("augmentation=none", "cluster=serial", "executor=bare", "precision=64-true", "seed=1")
    here = curve((*small(choice), *common, *HERE))
    there = curve((*small(choice), *common, "accelerator=cpu"))
    assert [r["round"] for r in here] == [r["round"] for r in there]
    for ours, theirs in zip(here, there, strict=True):
        assert ours.pop("stage") == theirs.pop("stage")
        assert ours == pytest.approx(theirs, rel=SAME, abs=SAME)


@pytest.mark.parametrize("choice", ["fedmcc", "fedavg", "fedsimclr"])
def test_clients_as_one_model_train_as_one_by_one_on_the_cpu(choice: str) -> None:
    common = ("augmentation=none", "cluster=serial", "precision=64-true", "seed=1")
    here = curve((*small(choice), *common, *HERE, "executor=vmap"))
    there = curve((*small(choice), *common, "accelerator=cpu", "executor=bare"))
    for ours, theirs in zip(here, there, strict=True):
        assert ours.pop("stage") == theirs.pop("stage")
        assert ours == pytest.approx(theirs, rel=SAME, abs=SAME)


@pytest.mark.skipif(not CUDA, reason="only a GPU is waited for")
@pytest.mark.parametrize("executor", ["bare", "vmap"])
@pytest.mark.parametrize("views", ["digits", "natural"])
def test_no_step_but_the_first_waits_for_the_device(monkeypatch, tmp_path, executor, views) -> None:
    steps = 0
    shape = (200, 1, 8, 8) if views == "digits" else (200, 3, 32, 32)
    samples = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "images.npz", samples=samples)

    def watched(step):
        def taken(*args, **kwargs):
            nonlocal steps
            steps += 1
            torch.cuda.set_sync_debug_mode("error" if steps > 1 else "default")
            try:
                return step(*args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return taken

    monkeypatch.setattr(BareTrainer, "_step", watched(BareTrainer._step))
    monkeypatch.setattr(VmappedClients, "step", watched(VmappedClients.step))
    keys = ("method.rounds=1", "method.epochs=1", "method.batch_size=16", "data=npz")
    keys += (f"data.path={tmp_path / 'images.npz'}", f"augmentation={views}")
    keys += ("encoder=conv3", "encoder.width=8")
    run("cluster=serial", f"executor={executor}", *HERE, *keys, base=("experiment=fedsimclr",))
    assert steps > 1


def test_bfloat16_trains_nearly_as_float32() -> None:
    base = (*(k for k in SMALL if "encoder" not in k), *CONVOLUTIONS, "cluster=serial", *HERE)
    wide, narrow = curve(base), curve((*base, "precision=bf16-mixed"))
    assert [r["loss"] for r in narrow] == pytest.approx([r["loss"] for r in wide], rel=0.05)


def test_k_means_on_the_device_is_that_of_the_cpu() -> None:
    faiss = pytest.importorskip("faiss")
    if CUDA and not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS was built without GPUs")
    points = torch.randn(2_000, 16, generator=torch.Generator().manual_seed(0))
    here = [kmeans(points.to(DEVICE), 10, seed=0) for _ in range(2)]
    assert torch.equal(here[0].centroids, here[1].centroids)
    assert here[0].inertia == pytest.approx(kmeans(points, 10, seed=0).inertia, rel=0.02)


@pytest.mark.skipif(not CUDA, reason="memory caps are of GPUs")
def test_an_actors_share_caps_its_memory() -> None:
    code = """
import torch
torch.cuda.set_per_process_memory_fraction(0.05)
total = torch.cuda.get_device_properties(0).total_memory
torch.empty(total // 100, dtype=torch.uint8, device="cuda")
try:
    torch.empty(total // 10, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("capped")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.strip() == "capped", done.stderr
