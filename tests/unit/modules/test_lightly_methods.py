"""VICReg, Barlow Twins, MoCo, DINO and MAE, built on lightly's parts, against slow loops."""

import importlib
import sys
from dataclasses import replace
from math import exp, log

import pytest
import torch

from coterie.contract.method import Task
from coterie.contract.roles import Role
from coterie.datamodules.augmentations import NoAugmentation
from coterie.errors import ConfigError
from coterie.modules.barlow_twins import BarlowTwins
from coterie.modules.dino import DINO
from coterie.modules.mae import MAE
from coterie.modules.moco import MoCo
from coterie.modules.vicreg import VICReg
from coterie.networks.encoders import MLP
from coterie.networks.timm_models import Timm
from tests.builders.federation import federate, tiny_task, tiny_workload
from tests.builders.modules import random_views as views

SMALL = {"hidden": 7, "projection": 5, "batch_size": 8}
EXACT = {"rel": 1e-10}
PATCHES = {"patch_size": 2, "embed_dim": 16, "depth": 1, "num_heads": 2}
VIT = Timm(model="vit_tiny_patch16_224", options=PATCHES)


def built(kind, task: Task | None = None, **config):
    torch.manual_seed(0)
    sizes = SMALL if kind is not MAE else {"decoder": 8, "decoder_heads": 2, "decoder_blocks": 1}
    module = kind(kind.Config(**{**sizes, **config}), task or tiny_task()).build()
    module.on_train_epoch_start()
    return module


def rows(network, batch):
    with torch.no_grad():
        return [network(view).tolist() for view in batch]


def step(module, batch) -> float:
    return module.training_step(batch, 0)["loss"].item()


def column(z, i):
    return [row[i] for row in z]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def covariance(x, y, off=0):
    mx, my = mean(x), mean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / (len(x) - off)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a):
    return [x / dot(a, a) ** 0.5 for x in a]


def test_vicreg_is_the_papers_three_terms() -> None:
    module, batch = built(VICReg, invariance=3.0, variance=2.0, covariance=0.7), views()
    both = rows(module.online, batch)
    n, d = len(both[0]), len(both[0][0])
    away = mean((a - b) ** 2 for x, y in zip(*both, strict=True) for a, b in zip(x, y, strict=True))
    hinges, shared = 0.0, 0.0
    for z in both:
        columns = [column(z, i) for i in range(d)]
        hinges += mean(max(0, 1 - (covariance(c, c, 1) + 1e-4) ** 0.5) for c in columns)
        pairs = [(i, j) for i in range(d) for j in range(d) if i != j]
        shared += sum(covariance(columns[i], columns[j], 1) ** 2 for i, j in pairs) / d
    assert n > 2
    assert step(module, batch) == pytest.approx(3 * away + 2 * hinges / 2 + 0.7 * shared, **EXACT)


def test_barlow_twins_is_the_cross_correlations_distance_from_the_identity() -> None:
    module, batch = built(BarlowTwins, off_diagonal=0.3), views()
    a, b = rows(module.online, batch)
    expected = 0.0
    for i in range(5):
        for j in range(5):
            x, y = column(a, i), column(b, j)
            scale = ((covariance(x, x) + 1e-5) * (covariance(y, y) + 1e-5)) ** 0.5
            found = covariance(x, y) / scale
            expected += (1 - found) ** 2 if i == j else 0.3 * found**2
    assert step(module, batch) == pytest.approx(expected, **EXACT)


def test_moco_tells_a_key_from_the_queue_and_then_queues_it() -> None:
    module, batch = built(MoCo, temperature=0.3, queue_size=9), views()
    bank = module.criterion.memory_bank
    queue, total = bank.bank.tolist(), 0.0
    queries, _ = rows(module.online, batch)
    _, keys = rows(module.target, batch)
    for query, key in zip(queries, keys, strict=True):
        q, k = unit(query), unit(key)
        others = sum(exp(dot(q, old) / 0.3) for old in queue)
        total -= log(exp(dot(q, k) / 0.3) / (exp(dot(q, k) / 0.3) + others))
    assert step(module, batch) == pytest.approx(total / len(keys), **EXACT)
    newest = torch.tensor([unit(key) for key in keys], dtype=torch.float64)[:9]
    assert torch.allclose(bank.bank[: len(newest)], newest)


def test_mocos_queue_goes_on_with_its_client_and_is_never_sent() -> None:
    short = {"rounds": 2, "epochs": 1, "queue_size": 9}
    ran = federate(tiny_workload(MoCo.Config(**SMALL, **short)))
    sent = {name for slot in ran.state.server.slots.values() for name in slot}
    assert not [name for name in sent if "bank" in name]
    first, second = ({t.client.id: t for t in ran.spy.tasks if t.phase.round == r} for r in (1, 2))
    for client, task in second.items():
        before, after = first[client].outcome.state, task.outcome.state
        assert set(before) == {"criterion.memory_bank.bank", "criterion.memory_bank.bank_ptr"}
        assert not torch.equal(before["criterion.memory_bank.bank"], after[next(iter(after))])


def test_dino_is_the_mean_cross_entropy_of_a_teacher_with_a_moving_mean() -> None:
    module = built(DINO, local_views=1, student_temperature=0.5, teacher_temperature=0.2)
    batch = (*views(6), views(6)[0].flip(3))
    module.criterion.center.copy_(torch.linspace(-0.1, 0.1, 5))
    center = module.criterion.center.flatten().tolist()
    taught, found = rows(module.target, batch[:2]), rows(module.online, batch)

    def shares(row, scale):
        powers = [exp(x / scale) for x in row]
        return [p / sum(powers) for p in powers]

    total, terms = 0.0, 0
    for t, teacher in enumerate(taught):
        for s, student in enumerate(found):
            if s == t:
                continue
            terms += 1
            for mine, theirs in zip(teacher, student, strict=True):
                centred = [x - c for x, c in zip(mine, center, strict=True)]
                says, hears = shares(centred, 0.2), shares(theirs, 0.5)
                total -= sum(p * log(q) for p, q in zip(says, hears, strict=True)) / 6
    # lightly holds the teacher's temperature in float32.
    assert step(module, batch) == pytest.approx(total / terms, rel=1e-8)
    every = [row for view in taught for row in view]
    moved = [0.9 * c + 0.1 * mean(column(every, i)) for i, c in enumerate(center)]
    assert module.criterion.center.flatten().tolist() == pytest.approx(moved, **EXACT)


def test_dinos_views_are_a_function_of_the_seed() -> None:
    module = built(DINO, local_views=3)
    samples = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    drawn = [
        module.on_after_batch_transfer({"samples": samples, "seed": seed}, 0) for seed in (1, 1, 2)
    ]
    assert [view.shape for view in drawn[0]] == [(4, 1, 8, 8)] * 5
    assert all(torch.equal(a, b) for a, b in zip(*drawn[:2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*drawn[1:], strict=True))
    assert not torch.equal(drawn[0][2], drawn[0][3])


def test_dinos_last_layer_waits_and_the_teacher_is_what_is_scored() -> None:
    method = DINO(DINO.Config(**SMALL, rounds=2, epochs=1, freeze_rounds=1), tiny_task())
    ran = federate(tiny_workload(method._config))
    name = "online.projector.last_layer.weight_v"
    states = [ran.start.slots, *(server.slots for server, *_ in ran.spy.served)]
    last = [slots["projector"][name] for slots in (*states, ran.state.server.slots)]
    assert torch.equal(last[0], last[2])
    assert not torch.equal(last[0], last[-1])
    scored = method.model_for(ran.state.server, None).encoder.state_dict()
    for key, value in scored.items():
        if "num_batches" not in key:
            assert torch.equal(value, ran.state.server.slots["target"][f"target.encoder.{key}"])


def masked(**config):
    task = replace(tiny_task(), encoder=VIT, augmentation=NoAugmentation())
    module = built(MAE, task, **config)
    samples = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    return module, *module.on_after_batch_transfer({"samples": samples, "seed": 4}, 0)


@pytest.mark.parametrize("standardise", [True, False])
def test_mae_is_the_error_of_the_patches_that_it_does_not_see(standardise: bool) -> None:
    module, images, order = masked(standardise=standardise)
    with torch.no_grad():
        found, _ = module.online(images, order, 4)
    prepared = module.online.encoder.network.prepared(images)
    assert found.shape == (3, 12, 12)
    errors = []
    for n in range(3):
        for place, patch in enumerate(order[n, 4:].tolist()):
            y, x = 2 * (patch // 4), 2 * (patch % 4)
            wanted = [
                float(prepared[n, c, y + dy, x + dx])
                for dy in range(2)
                for dx in range(2)
                for c in range(3)
            ]
            if standardise:
                middle, spread = mean(wanted), covariance(wanted, wanted, 1)
                wanted = [(value - middle) / (spread + 1e-6) ** 0.5 for value in wanted]
            pairs = zip(found[n, place].tolist(), wanted, strict=True)
            errors += [(a - b) ** 2 for a, b in pairs]
    assert step(module, (images, order)) == pytest.approx(mean(errors), rel=1e-9)


def test_maes_encoder_sees_no_masked_pixel() -> None:
    module, images, order = masked()
    images.requires_grad_()
    found, _ = module.online(images, order, 4)
    (slope,) = torch.autograd.grad(found.sum(), images)
    # Each patch's own pixels, of the encoder's four.
    touched = (slope.unfold(2, 2, 2).unfold(3, 2, 2).abs().sum((1, 4, 5)) > 0).flatten(1)
    for row, places in zip(touched, order, strict=True):
        assert set(row.nonzero().flatten().tolist()) == set(places[:4].tolist())


REFUSED = {
    "this network is not one; choose one, such as encoder=timm": (MAE, {}, {"encoder": MLP()}),
    "square images of square patches, not 4×8": (
        MAE,
        {},
        {"encoder": VIT, "shape": (1, 8, 16), "augmentation": NoAugmentation()},
    ),
    "method.decoder=8: it has to be a multiple": (MAE, {"decoder_heads": 3}, {"encoder": VIT}),
    r"samples of shape \(9,\) are not images": (
        DINO,
        {},
        {"encoder": MLP(), "shape": (9,), "augmentation": NoAugmentation()},
    ),
    "method.local_size=4: the encoder cannot take images of this size": (
        DINO,
        {"local_size": 4},
        {},
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_does_not_fit_is_one_sentence(sentence: str) -> None:
    kind, config, task = REFUSED[sentence]
    with pytest.raises(ConfigError, match=sentence) as refused:
        built(kind, replace(tiny_task(), **task), **config)
    assert "\n" not in str(refused.value)


def test_a_transformer_of_any_size_takes_small_local_views() -> None:
    loose = Timm(model=VIT.model, options={**PATCHES, "dynamic_img_size": True})
    module = built(DINO, replace(tiny_task(), encoder=loose), local_size=4, local_views=2)
    samples = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    drawn = module.on_after_batch_transfer({"samples": samples, "seed": 1}, 0)
    assert drawn[3].shape == (4, 1, 4, 4)
    module.training_step(drawn, 0)["loss"].backward()
    assert module.online.encoder.network.network.pos_embed.grad.abs().sum() > 0


@pytest.mark.parametrize("absent", ["lightly", "timm"])
@pytest.mark.parametrize("name", ["dino", "mae", "vicreg", "barlow_twins", "moco"])
def test_without_lightly_the_extra_is_named(monkeypatch, name: str, absent: str) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == absent]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, absent, None)
    for module in (name, "mae_model", "lightly_parts"):
        monkeypatch.delitem(sys.modules, f"coterie.modules.{module}", raising=False)
    sentence = rf"need {absent}, which is not installed; .*pip install 'coterie\[lightly\]'"
    with pytest.raises(ConfigError, match=sentence):
        importlib.import_module(f"coterie.modules.{name}")


@pytest.mark.parametrize("kind", [VICReg, BarlowTwins, MoCo, DINO, MAE])
def test_every_entry_has_a_role_and_nothing_but_networks_is_sent(kind) -> None:
    task = replace(tiny_task(), encoder=VIT) if kind is MAE else None
    module = built(kind, task)
    sent = {n for n in module.state_dict() if kind.roles.of(n).role is Role.AVERAGE}
    assert {name.partition(".")[0] for name in sent} <= {"online", "target", "criterion"}
    assert {name for name in sent if name.startswith("criterion")} <= {"criterion.center"}
