"""Cached gradients against the plain step, and against the graph over micro-batches."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.errors import ContractError
from coterie.gradcache.cached import Segment, cached_loss, represented
from coterie.losses.contrastive import cluster_contrastive_loss, contrastive_loss, nt_xent
from coterie.losses.entropy import cluster_entropy

WIDTH = 6


def network(kind, dtype=torch.float64):
    torch.manual_seed(1)
    middle = {
        "none": nn.Identity,
        "group": lambda: nn.GroupNorm(2, 8),
        "batch": lambda: nn.BatchNorm1d(8),
        "dropout": lambda: nn.Dropout(0.4),
    }[kind.removesuffix("-eval")]()
    net = nn.Sequential(nn.Linear(WIDTH, 8), middle, nn.Tanh(), nn.Linear(8, 4)).to(dtype)
    if kind == "batch-eval":
        net[1].running_mean.uniform_(-1, 1)
        net.eval()
    return net


def views(n, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    a = torch.randn(n, WIDTH, generator=draw, dtype=dtype)
    return a, a + 0.3 * torch.randn(n, WIDTH, generator=draw, dtype=dtype)


def loss_of(z):
    loss = contrastive_loss(z["a"], z["b"], 0.5)
    return {"loss": loss, "twice": 2 * loss}


def cached_parts(parts, loss):
    return cached_loss(lambda: loss({name: represented(part) for name, part in parts.items()}))


def gradients(net):
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    return found


def cached(net, a, b, *sizes):
    one, other = sizes if len(sizes) == 2 else sizes * 2
    parts = {"a": Segment(net, net, a, one), "b": Segment(net, net, b, other)}
    terms = cached_parts(parts, loss_of)
    terms["loss"].backward()
    return terms, gradients(net)


def plain(net, a, b, *sizes):
    """L(cat(net(micro-batch))) with its whole graph; without sizes the plain step."""
    one, other = (sizes if len(sizes) == 2 else sizes * 2) or (len(a), len(b))
    z = {}
    for name, samples, size in (("a", a, one), ("b", b, other)):
        pieces = Segment(net, net, samples, size).pieces()
        z[name] = torch.cat([net(samples[piece]) for piece in pieces])
    terms = loss_of(z)
    terms["loss"].backward()
    return terms, gradients(net)


def assert_equal(found, wanted, relative=1e-12):
    scale = max(w.abs().max() for w in wanted)
    assert all((f - w).abs().max() <= relative * scale for f, w in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", ["none", "group", "batch-eval"])
@pytest.mark.parametrize("size", [1, 3, 10, 29, 64])
def test_equal_to_the_plain_step_where_nothing_couples_samples_but_the_loss(kind, size):
    net = network(kind)
    terms, found = cached(net, *views(29), size)
    wanted_terms, wanted = plain(net, *views(29))
    assert_equal(found, wanted)
    assert terms["loss"].item() == pytest.approx(wanted_terms["loss"].item(), rel=1e-13)
    assert terms["twice"].item() == pytest.approx(2 * terms["loss"].item(), rel=1e-13)
    assert not terms["twice"].requires_grad


@settings(max_examples=40)
@given(n=st.integers(2, 40), one=st.integers(1, 50), other=st.integers(1, 50))
def test_equal_for_any_sizes_one_for_each_network(n, one, other):
    net = network("group")
    assert_equal(cached(net, *views(n), one, other)[1], plain(net, *views(n))[1], 1e-11)


@pytest.mark.parametrize("size", [2, 5, 16])
def test_under_batch_norm_equal_to_the_graph_over_micro_batches(size):
    net, other = network("batch"), network("batch")
    found, wanted = cached(net, *views(32), size)[1], plain(other, *views(32), size)[1]
    assert_equal(found, wanted)
    far = plain(network("batch"), *views(32))[1]
    assert max((f - w).abs().max() / w.abs().max() for f, w in zip(found, far, strict=True)) > 0.01


def test_in_float16_the_losss_gradient_is_as_exact_as_without_caching():
    """Its n x n terms of about 1/n² are too small for float16, in which autocast would multiply."""

    def gradient(size, dtype=None):
        net, samples, scale = network("none", torch.float32), views(2048, torch.float32), 65536.0
        with torch.autocast("cpu", torch.float16, enabled=dtype is not None):
            parts = {n: Segment(net, net, x, size) for n, x in zip("ab", samples, strict=True)}
            terms = cached_parts(parts, lambda z: {"loss": nt_xent(z["a"], z["b"], 0.1)})
        (scale * terms["loss"]).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()]) / scale

    exact = gradient(256)
    off = (gradient(256, torch.float16) - exact).norm() / exact.norm()
    assert off < 0.01


def test_in_float16_small_gradients_of_long_representations_keep_their_digits():
    """α of 512 numbers of about 20 is 1e-7, where float16 has one digit left."""

    def gradient(dtype=None):
        torch.manual_seed(1)
        net, scale = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 512)), 65536.0
        with torch.no_grad():
            for parameter in net[2].parameters():
                parameter.mul_(30.0)
        samples = zip("ab", views(512, torch.float32), strict=True)
        with torch.autocast("cpu", torch.float16, enabled=dtype is not None):
            parts = {name: Segment(net, net, x, 128) for name, x in samples}
            loss = cached_parts(parts, lambda z: {"loss": nt_xent(z["a"], z["b"], 0.5)})["loss"]
        (scale * loss).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()]) / scale

    exact = gradient()
    assert (gradient(torch.float16) - exact).norm() < 0.001 * exact.norm()


def test_running_statistics_move_once():
    net, other = network("batch"), network("batch")
    cached(net, *views(32), 5)
    plain(other, *views(32), 5)
    for name, value in net.named_buffers():
        assert torch.equal(value, dict(other.named_buffers())[name]), name
    assert net[1].num_batches_tracked == 14


def test_dropout_is_the_same_in_both_passes_and_later_draws_are_as_ever():
    net = network("dropout")
    torch.manual_seed(3)
    found, after = cached(net, *views(20), 6)[1], torch.rand(1)
    torch.manual_seed(3)
    wanted = plain(net, *views(20), 6)[1]
    assert_equal(found, wanted)
    assert torch.equal(after, torch.rand(1))


def heads(net):
    return nn.ModuleDict(
        {"encoder": net, "instance": nn.Linear(4, 3), "cluster": nn.Linear(4, 5)}
    ).double()


def momentum_loss(z):
    """MCC's: two networks, two views, two heads."""
    total = -sum(cluster_entropy(view["cluster"]) for net in z.values() for view in [net])
    for mine, theirs in itertools.product(("online_a", "online_b"), ("target_a", "target_b")):
        total = total + contrastive_loss(z[mine]["instance"], z[theirs]["instance"], 0.5)
        total = total + cluster_contrastive_loss(z[mine]["cluster"], z[theirs]["cluster"], 1.0)
    return {"loss": total}


def test_two_networks_with_two_heads_one_without_gradient():
    torch.manual_seed(2)
    online, target = heads(network("group")), heads(network("none"))
    target.requires_grad_(False)

    def through(branch):
        def apply(samples):
            h = branch["encoder"](samples)
            return {"instance": branch["instance"](h), "cluster": branch["cluster"](h).softmax(1)}

        return apply

    batch = dict(zip("ab", views(23), strict=True))
    parts = {
        f"{name}_{view}": Segment(through(branch), branch, samples, size)
        for name, branch, size in (("online", online, 4), ("target", target, 9))
        for view, samples in batch.items()
    }
    cached_parts(parts, momentum_loss)["loss"].backward()
    found = gradients(online)
    momentum_loss({key: part.apply(part.samples) for key, part in parts.items()})["loss"].backward()
    assert_equal(found, gradients(online))
    assert all(p.grad is None for p in target.parameters())


def test_float32_is_as_good_as_the_plain_step():
    batch = views(512)
    exact = plain(network("group"), *batch)[1]
    floats = [view.float() for view in batch]
    net = network("group", torch.float32)

    def error(found):
        return max((f.double() - e).abs().max().item() for f, e in zip(found, exact, strict=True))

    plainly = error(plain(net, *floats)[1])
    for size in (1, 7, 64, 512):
        assert error(cached(net, *floats, size)[1]) <= 1.5 * plainly + 1e-8, size


def test_what_comes_from_above_scales_the_gradient():
    net, (a, b) = network("none"), views(12)
    once = cached(net, a, b, 5)[1]
    parts = {"a": Segment(net, net, a, 5), "b": Segment(net, net, b, 5)}
    (1024.0 * cached_parts(parts, loss_of)["loss"]).backward()
    assert_equal(gradients(net), [1024.0 * g for g in once])


def test_autocast_is_in_force_in_the_second_pass_too():
    net, (a, b) = network("none", torch.float32), (view.float() for view in views(48))
    parts = {"a": Segment(net, net, a, 7), "b": Segment(net, net, b, 48)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = cached_parts(parts, loss_of)["loss"]
    loss.backward()
    found = gradients(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pieces = {name: [net(p.samples[s]) for s in p.pieces()] for name, p in parts.items()}
        loss = loss_of({name: torch.cat(z) for name, z in pieces.items()})["loss"]
    loss.backward()
    wanted = gradients(net)
    assert all(g.dtype == torch.float32 for g in found)
    assert_equal(found, wanted, 0.02)
    exact = plain(net, a, b)[1]
    assert max((f - e).abs().max() for f, e in zip(found, exact, strict=True)) > 0  # it was bf16


def test_a_part_that_the_loss_does_not_use_and_parameters_that_are_frozen():
    net, (a, b) = network("none"), views(9)
    net[0].bias.requires_grad_(False)
    parts = {name: Segment(net, net, x, 4) for name, x in (("a", a), ("b", b), ("c", a))}
    cached_parts(parts, loss_of)["loss"].backward()
    assert net[0].bias.grad is None
    net[0].bias.requires_grad_(True)
    found = net[0].weight.grad.clone()
    net.zero_grad()
    assert torch.allclose(found, plain(net, a, b)[1][0], rtol=1e-12)


def test_without_gradients_nothing_is_kept():
    net, (a, b) = network("none"), views(9)
    with torch.no_grad():
        terms = cached_parts({n: Segment(net, net, x, 4) for n, x in (("a", a), ("b", b))}, loss_of)
    assert not terms["loss"].requires_grad


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("n", range(2, 20))
def test_no_piece_is_a_single_sample_or_much_above_the_size(n, size):
    pieces = Segment(nn.Identity(), nn.Identity(), torch.zeros(n), size).pieces()
    sizes = [piece.stop - piece.start for piece in pieces]
    assert sum(sizes) == n
    assert 2 <= min(sizes) <= max(sizes) <= max(size, 3)
    assert [piece.start for piece in pieces] == [sum(sizes[:i]) for i in range(len(sizes))]


def test_refused():
    net, (a, b) = network("none"), views(9)
    parts = {"a": Segment(net, net, a, 4), "b": Segment(net, net, b, 4)}
    loss = cached_parts(parts, loss_of)["loss"]
    loss.backward(retain_graph=True)
    with pytest.raises(ContractError, match="twice"):
        loss.backward()
    own = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ContractError, match=r"trains parameters of shape \(4,\) itself"):
        cached_parts(parts, lambda z: {"loss": (z["a"] * own).sum()})
