"""The contrastive loss in tiles against the plain one: value, gradient, extremes, memory."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigError, ContractError
from coterie.losses.contrastive import contrastive_loss
from coterie.losses.plain import plain_contrastive_loss
from coterie.losses.tiled import tiled_contrastive_loss


def views(n, d, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    u = torch.randn(n, d, generator=draw, dtype=dtype)
    v = u + 0.5 * torch.randn(n, d, generator=draw, dtype=dtype)
    return u.requires_grad_(), v.requires_grad_()


def with_gradients(loss, u, v, *options):
    value = loss(u, v, *options)
    return value.detach(), *torch.autograd.grad(value, (u, v))


def assert_equal(u, v, temperature, include_positive, tile, relative=1e-11):
    """The loss, and gradients times their sample's length, which divides the rounding too."""
    wanted = with_gradients(plain_contrastive_loss, u, v, temperature, include_positive)
    found = with_gradients(tiled_contrastive_loss, u, v, temperature, include_positive, tile)
    lengths = (1.0, *(view.detach().norm(dim=1, keepdim=True) for view in (u, v)))
    for one, other, length in zip(found, wanted, lengths, strict=True):
        scale = (other * length).abs().max().clamp_min(0.05)
        assert ((one - other) * length).abs().max() <= relative * scale


@settings(max_examples=60)
@given(
    n=st.integers(2, 70),
    d=st.integers(1, 9),
    tile=st.integers(1, 80),
    temperature=st.floats(0.05, 1.0),
    include_positive=st.booleans(),
    seed=st.integers(0, 1000),
)
@example(24, 1, 1, 0.05000000000000001, False, 992)  # a sample of length 3e-4
def test_equal_for_any_shape_and_tile(n, d, tile, temperature, include_positive, seed):
    assert_equal(*views(n, d, seed), temperature, include_positive, tile)


@pytest.mark.parametrize(("temperature", "include_positive"), [(0.05, False), (1.0, True)])
def test_equal_for_three_thousand_samples_and_a_tile_that_does_not_divide_them(
    temperature, include_positive
):
    assert_equal(*views(3000, 16), temperature, include_positive, 1024)


@pytest.mark.parametrize("include_positive", [False, True])
def test_equal_for_duplicates_and_for_samples_that_are_all_equal(include_positive):
    u, v = views(40, 6)
    with torch.no_grad():
        u[20:], v[20:] = u[:20], v[:20]
    assert_equal(u, v, 0.05, include_positive, 16)
    same = torch.ones(40, 6, dtype=torch.float64)
    pair = same.clone().requires_grad_(), same.clone().requires_grad_()
    assert_equal(*pair, 0.05, include_positive, 16)
    wanted = torch.tensor(2.0 * 40 - 2 + include_positive, dtype=torch.float64).log()
    assert tiled_contrastive_loss(*pair, 0.05, include_positive, 16).item() == pytest.approx(wanted)


def test_gradients_scale_with_what_comes_from_above():
    u, v = views(9, 4)
    one = torch.autograd.grad(tiled_contrastive_loss(u, v, 0.5), (u, v))
    three = torch.autograd.grad(3.0 * tiled_contrastive_loss(u, v, 0.5), (u, v))
    assert all(torch.allclose(3.0 * a, b, rtol=1e-14) for a, b in zip(one, three, strict=True))


@pytest.mark.parametrize("temperature", [0.004, 0.02])
def test_float32_holds_at_temperatures_beyond_its_range(temperature):
    u, v = views(200, 8)
    wanted = with_gradients(plain_contrastive_loss, u, v, temperature)
    pair = u.detach().float().requires_grad_(), v.detach().float().requires_grad_()
    found = with_gradients(tiled_contrastive_loss, *pair, temperature)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= 1e-5 * other.abs().max().clamp_min(1.0)


def test_half_precision_is_summed_in_float32():
    u, v = (view.detach().bfloat16().requires_grad_() for view in views(500, 32))
    exact = [view.detach().double().requires_grad_() for view in (u, v)]
    wanted = with_gradients(plain_contrastive_loss, *exact, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = with_gradients(tiled_contrastive_loss, u, v, 0.1)
    assert found[0].dtype == torch.float32
    assert abs(found[0] - wanted[0]) <= 1e-5
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert (one.double() - other).abs().max() <= 2.0**-8 * other.abs().max()


@pytest.mark.slow  # 60,000 samples
def test_no_nan_for_sixty_thousand_samples_at_a_low_temperature():
    u, v = views(60_000, 8, dtype=torch.float32)
    with torch.no_grad():
        u[30_000:], v[30_000:] = u[:30_000], v[:30_000]
    found = with_gradients(tiled_contrastive_loss, u, v, 0.05)
    assert all(one.isfinite().all() for one in found)


def test_many_rows_go_in_tiles_and_few_do_not():
    for n, form in ((2048, plain_contrastive_loss), (2049, tiled_contrastive_loss)):
        found = with_gradients(contrastive_loss, *views(n, 3), 0.5)
        for one, other in zip(found, with_gradients(form, *views(n, 3), 0.5), strict=True):
            assert torch.equal(one, other)


COPIES = """
from pathlib import Path
import torch
from coterie.losses.tiled import tiled_contrastive_loss
from tests.benchmarks.large_batches import peak_mb

torch.set_num_threads(1)
u, v = (torch.randn(2048, 4096).requires_grad_() for _ in range(2))
tiled_contrastive_loss(u[:64], v[:64], 0.5).backward()
u.grad = v.grad = None
Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
before = peak_mb()
tiled_contrastive_loss(u, v, 0.5).backward()
print((peak_mb() - before) * 2**20 / u.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_both_views_in_unit_length_and_both_gradients_are_all_that_is_held():
    done = subprocess.run(
        [sys.executable, "-c", COPIES],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},  # freed memory is given back
    )
    assert 4.0 < float(done.stdout) < 6.5  # 4 and a few blocks; in one piece it is 8.2


def test_refused():
    u, v = views(4, 3)
    with pytest.raises(ConfigError, match=r"^temperature=0.002: the tiled loss needs 0.003"):
        tiled_contrastive_loss(u, v, 0.002)
    with pytest.raises(ConfigError, match=r"^tile=0: "):
        tiled_contrastive_loss(u, v, 0.5, tile=0)
    with pytest.raises(ContractError, match="shapes"):
        tiled_contrastive_loss(u, v[:3], 0.5)
