"""SDA-FC and PPFC-GAN: the GAN's steps, the one message, and what the servers make of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from coterie.clustering.fuzzy import fuzzy_means
from coterie.clustering.kmeans import kmeans
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError
from coterie.modules.ppfc_gan import PPFCGAN
from coterie.modules.sda_fc import SDAFC
from coterie.modules.synthesis import GAN, SynthesisConfig
from tests.builders.federation import SHAPE, SIZES, Federated, federate, tiny_task, tiny_workload
from tests.builders.vectors import GROUPS, blobs, clusters, on_vectors, same_partition

SMALL: dict[str, Any] = {"gan_epochs": 2, "gan_batch_size": 8, "gan_hidden": 16, "gan_width": 4}
DEEP: dict[str, Any] = {**SMALL, "pretrain_epochs": 2, "epochs": 1, "decoder": (8,)}
CONFIGS = {
    "kmeans": SDAFC.Config(**SMALL, samples=20),
    "fuzzy": SDAFC.Config(**SMALL, samples=20, clustering="fuzzy", iterations=3),
    "deep": PPFCGAN.Config(**DEEP, samples=20),
}


@pytest.fixture(scope="module", params=CONFIGS)
def ran(request: pytest.FixtureRequest) -> Federated:
    return federate(tiny_workload(CONFIGS[request.param]))


def gan() -> GAN:
    torch.manual_seed(0)
    return GAN(SynthesisConfig(**SMALL), tiny_task(), 3)


def images(count: int = 8) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, *SHAPE), generator=draw, dtype=torch.uint8)


def parts(module: GAN) -> list[Tensor]:
    return [*module.generator.parameters(), *module.discriminator.parameters()]


def test_one_adam_takes_the_steps_of_two_at_the_same_time() -> None:
    ours, theirs = gan(), gan()
    config, optimizer = ours.config, ours.configure_optimizers()
    own = {"betas": (0.5, 0.999)}
    first = torch.optim.Adam(theirs.generator.parameters(), lr=config.generator_rate, **own)
    second = torch.optim.Adam(
        theirs.discriminator.parameters(), lr=config.discriminator_rate, **own
    )
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        batch = {"samples": images(), "positions": torch.arange(8), "seed": step}
        ours.training_step(batch, step)["loss"].backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        torch.manual_seed(step)
        made, real = theirs.generator(theirs.codes(8)), images().double() / 255
        ones, zeros = torch.ones(8, 1).double(), torch.zeros(8, 1).double()
        judged = theirs.discriminator(made)
        missed = binary_cross_entropy_with_logits(judged, ones)
        gradients = torch.autograd.grad(missed, [*theirs.generator.parameters()])
        told = binary_cross_entropy_with_logits(theirs.discriminator(real), ones)
        told = told + binary_cross_entropy_with_logits(theirs.discriminator(made.detach()), zeros)
        second.zero_grad()
        told.backward()  # type: ignore[no-untyped-call]
        for value, gradient in zip(theirs.generator.parameters(), gradients, strict=True):
            value.grad = gradient
        first.step()
        second.step()
    for a, b in zip(parts(ours), parts(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_code_is_normal_numbers_and_one_category() -> None:
    codes = gan().codes(500, torch.Generator().manual_seed(0))
    assert codes.shape == (500, 62 + 3)
    assert codes[:, 62:].sum(dim=1).eq(1).all()
    assert codes[:, 62:].sum(dim=0).min() > 120
    assert abs(float(codes[:, :62].std()) - 1) < 0.02


def test_categories_come_equally_often_and_weights_are_small() -> None:
    module = gan()
    for count in (5, 64, 70):
        categories = module.codes(count)[:, module.config.noise :].sum(dim=0)
        assert int(categories.sum()) == count
        assert int(categories.max() - categories.min()) <= 1
    wide = GAN(SynthesisConfig(gan_hidden=256, gan_width=16), tiny_task(), clusters=3)
    layers = [
        p for p in wide.modules() if isinstance(p, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)
    ]
    weights = torch.cat([layer.weight.flatten() for layer in layers])
    assert float(weights.std()) == pytest.approx(0.02, rel=0.02)
    assert all(not layer.bias.any() for layer in layers if layer.bias is not None)


def test_a_client_sends_synthetic_images_once_and_keeps_nothing(ran: Federated) -> None:
    assert len(ran.spy.tasks) == len(SIZES)
    for task, own in zip(ran.spy.tasks, SIZES, strict=True):
        assert task.slots == {}
        assert set(task.outcome.gathered) == {"synthetic"}
        made = task.outcome.gathered["synthetic"]
        assert made.dtype == torch.uint8
        assert made.shape == (min(own, 20), *SHAPE)
        assert task.outcome.up == task.outcome.peer_messages == {}
        assert task.outcome.state is None
        assert set(task.outcome.metrics) == {"loss", "discriminator", "generator"}
    assert ran.kept == {}
    (commit,) = ran.commits
    assert commit.traffic.down == {}
    assert sum(commit.traffic.up.values()) == (13 + 20 + 9) * 64 + len(SIZES) * 3 * 8


def test_no_synthetic_sample_is_one_of_the_clients(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend.worker.samples["train"]).flatten(1)
    for task in ran.spy.tasks:
        made = task.outcome.gathered["synthetic"].flatten(1)
        assert not bool((made[:, None] == samples).all(dim=2).any())


def every(ran: Federated) -> Tensor:
    made = torch.cat([task.outcome.gathered["synthetic"] for task in ran.spy.tasks])
    return made.double() / 255


@pytest.mark.parametrize("clustering", ["kmeans", "fuzzy"])
def test_the_server_clusters_unit_representations(clustering: str) -> None:
    ran = federate(tiny_workload(CONFIGS[clustering]))
    model = ran.spy.model_for(ran.state.server, None).eval()
    points = normalize(model.encoder(every(ran)), dim=1).detach()
    seed = derive_seed(ran.start.metadata["seed"], "kmeans")
    wanted = kmeans(points, 3, seed=seed).centroids
    if clustering == "fuzzy":
        wanted = fuzzy_means(points, wanted, fuzziness=1.1, iterations=3).centroids
    wanted = normalize(wanted.float(), dim=1)
    found = ran.state.server.slots["centroids"]["centroids"]
    torch.testing.assert_close(found.float(), wanted)
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    told = model(samples)
    nearest = (normalize(told.embedding, dim=1).float() @ wanted.T).argmax(dim=1)
    assert torch.equal(told.probabilities.argmax(dim=1), nearest)


def test_deep_clustering_trains_the_encoder_and_leaves_its_state_alone() -> None:
    spread = {"gan_epochs": 20, "generator_rate": 1e-2, "discriminator_rate": 1e-2}
    ran = federate(tiny_workload(PPFCGAN.Config(**{**DEEP, **spread}, samples=20)))
    before, after = ran.start.slots["encoder"], ran.state.server.slots["encoder"]
    assert not torch.equal(before["encoder.network.1.weight"], after["encoder.network.1.weight"])
    model = ran.spy.model_for(ran.state.server, None).eval()
    latents = model.encoder(every(ran)).detach()
    centroids = ran.state.server.slots["centroids"]["centroids"]
    nearest = torch.cdist(latents.float(), centroids).argmin(dim=1)
    for cluster in range(3):
        wanted = latents[nearest == cluster].mean(dim=0).float()
        torch.testing.assert_close(centroids[cluster], wanted, rtol=1e-4, atol=1e-5)
    assert ran.spy.model_for(ran.start, None).head is None


@pytest.mark.parametrize("kind", [SDAFC, PPFCGAN])
def test_vectors_of_one_group_a_client_are_parted(kind: Any) -> None:
    samples, groups = blobs()
    parts = [np.flatnonzero(groups == group) for group in range(GROUPS)]
    given: dict[str, Any] = {"gan_epochs": 40, "gan_hidden": 32, "gan_batch_size": 20}
    if kind is PPFCGAN:
        given |= {"pretrain_epochs": 3, "epochs": 2, "decoder": (16,), "pull": 0.0}
    ran = on_vectors(kind.Config(clusters=GROUPS, **given), samples, parts)
    record = ran.spy.tasks[0].outcome.gathered["synthetic"]
    assert record.dtype == torch.float32
    assert float(record[:, 0].mean()) == pytest.approx(20, abs=2)
    assert same_partition(clusters(ran, samples), groups)


@pytest.mark.parametrize("kind", [SDAFC, PPFCGAN])
def test_single_samples_are_refused_where_more_are_to_stand_for_what_is_sent(kind: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"privacy\.k_anonymity=2: a synthetic sample may be a copy"
    ):
        kind(kind.Config(), replace(tiny_task(), k_anonymity=2))
