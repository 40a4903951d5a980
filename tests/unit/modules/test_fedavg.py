"""FedAvg: a round against Algorithm 1 written out, plain accuracy of its classifier, refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional

from coterie import Federation
from coterie.commands.compose import compose
from coterie.contract import Plan, load_slots
from coterie.contract.clusterer import Clusterer
from coterie.datamodules.augmentations import NoAugmentation
from coterie.errors import ConfigError, ContractError
from coterie.execution.batches import SeededBatches
from coterie.modules.averaging import Averaging
from coterie.modules.fedavg import Classification, FedAvg
from coterie.run.setup import assemble
from tests.builders.federation import Federated, federate, same_bits, tiny_task, tiny_workload

CONFIG = FedAvg.Config(
    rounds=2, epochs=2, batch_size=8, learning_rate=0.3, momentum=0.5, weight_decay=0.01
)


@pytest.fixture(scope="module")
def ran() -> Federated:
    workload = tiny_workload(CONFIG, needs_labels=True)
    task = replace(workload.task, augmentation=NoAugmentation())
    return federate(replace(workload, task=task))


def test_a_task_is_sgd_with_momentum_on_the_cross_entropy(ran: Federated) -> None:
    client_task = ran.spy.tasks[4]
    task = replace(tiny_task(), augmentation=NoAugmentation())
    model = Classification(CONFIG, task).train()
    load_slots(model, client_task.slots)
    batches = SeededBatches(
        client_task.client.data,
        Plan(batch_size=8, epochs=2),
        client_task.client.seed,
        with_labels=True,
    )
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    losses = []
    for batch in (batch for _ in range(2) for batch in batches):
        logits = model.classifier(model.encoder((batch["samples"].float() / 255).double()))
        loss = functional.cross_entropy(logits, batch["labels"])
        losses.append(loss.item())
        named = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, list(named.values()))
        with torch.no_grad():
            for (name, value), gradient in zip(named.items(), gradients, strict=True):
                velocity[name].mul_(0.5).add_(gradient + 0.01 * value)
                value.sub_(0.3 * velocity[name])
    sent = {
        **client_task.outcome.up["encoder"].tensors,
        **client_task.outcome.up["classifier"].tensors,
    }
    for name, value in model.named_parameters():
        torch.testing.assert_close(sent[name], value.detach(), rtol=1e-12, atol=1e-13)
    assert client_task.outcome.metrics == {"loss": pytest.approx(np.mean(losses), rel=1e-12)}


def test_the_server_averages_by_numbers_of_samples(ran: Federated) -> None:
    tasks = [task for task in ran.spy.tasks if task.phase.round == 1]
    sizes = np.array([len(task.client.data) for task in tasks])
    after = ran.spy.served[0][-1]
    for slot, tensors in after.slots.items():
        for name, value in tensors.items():
            each = torch.stack([task.outcome.up[slot].tensors[name] for task in tasks])
            weights = torch.from_numpy(sizes / sizes.sum()).reshape(-1, *[1] * value.ndim)
            torch.testing.assert_close(value, (weights * each).sum(0), rtol=1e-12, atol=1e-13)
    assert same_bits(after.slots["encoder"], ran.spy.tasks[3].slots["encoder"])


def test_data_without_classes_is_refused() -> None:
    method = FedAvg(FedAvg.Config(), replace(tiny_task(), classes=0))
    with pytest.raises(ConfigError, match="the data has 0 classes; choose data with two or more"):
        method.init({0: 5}, 0)


def test_the_classifier_is_scored_without_matching(tmp_path) -> None:
    overrides = (
        "experiment=fedavg_digits",
        "cluster=serial",
        "executor=bare",
        "method.rounds=3",
        "method.batch_size=8",
        "method.epochs=5",
        "evaluation.every=1",
        "evaluation.figures=false",
        "tracking.progress=none",
        f"run_dir={tmp_path / 'run'}",
    )
    config = compose(*overrides)
    result, data = Federation(config).run(), assemble(config).data
    samples, labels = torch.from_numpy(data.test_samples), data.test_labels
    with torch.no_grad():
        found = result.model(samples).probabilities.argmax(dim=1).numpy()
    assert set(result.metrics) == {"train", "test", "linear", "knn"}
    assert result.metrics["test"]["acc"] == pytest.approx(np.mean(found == labels), abs=1e-12)
    expected = f1_score(labels, found, average="macro")
    assert result.metrics["test"]["f1_macro"] == pytest.approx(expected, abs=1e-6)
    assert result.metrics["test"]["acc"] > 0.85
    assert result.assignments is None
    assert not (result.run_dir / "assignments.parquet").exists()
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    rounds = [row for row in map(json.loads, lines) if row["scope"] == "server"]
    assert ["test/acc" in row for row in rounds] == [True, True, False]
    assert rounds[0]["test/acc"] < rounds[1]["test/acc"] < result.metrics["test"]["acc"]


def test_a_class_without_a_network_is_refused() -> None:
    class Bare(Averaging[FedAvg.Config, Classification]):
        roles = FedAvg.roles

        def model_for(self, server: object, client: int | None) -> Clusterer:
            raise NotImplementedError

    with pytest.raises(ContractError, match="Bare has neither `network` nor `build`"):
        Bare(CONFIG, tiny_task()).build()
