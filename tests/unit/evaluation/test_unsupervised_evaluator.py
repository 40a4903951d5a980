"""Scores without labels: of the projection, by client, in every evaluation, and refusing nobody."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from coterie import Federation
from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.commands.compose import compose
from coterie.contract.clusterer import Prediction, to_unit
from coterie.evaluation.unsupervised_metrics import alignment, mixing, uniformity
from coterie.execution.predictor import split_rows
from coterie.models.loading import load_model
from coterie.run.setup import assemble, make_backend, make_unsupervised_evaluator
from tests.builders.runs import TINY

ORCHESTRA = (
    "experiment=orchestra_digits",
    "cluster=serial",
    "data.limit=120",
    "partition=iid",
    "partition.clients=3",
    "encoder.width=8",
    "encoder.features=16",
    "method.projection=6",
    "method.hidden=16",
    "method.rounds=2",
    "method.epochs=1",
    "method.global_steps=20",
    "method.global_clusters=5",
    "method.local_clusters=4",
    "tracking.progress=none",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)


def built(*overrides):
    config = compose(*overrides)
    assembly = assemble(config)
    backend = make_backend(assembly.workload, lambda: None)
    return assembly, backend, make_unsupervised_evaluator(config, assembly, backend)


def predicted(backend, server, rows, **options) -> Prediction:
    chunks = split_rows("train", rows, 512, **options)
    assert len(chunks) == 1
    return backend.predict(server, chunks)[0]


def test_scores_are_those_of_the_projection_and_its_own_clusters():
    assembly, backend, blind = built(*ORCHESTRA)
    rows, server = assembly.workload.parts, assembly.server
    sizes, every = [len(part) for part in rows], np.concatenate(rows)
    found = predicted(backend, server, every, projected=True)
    # Centroids among the projections: an untrained network puts all samples into one cluster.
    among = {"centroids": {"centroids": found.embedding[[0, 20, 40, 60, 80]]}}
    server = replace(server, slots={**server.slots, **among})
    found = predicted(backend, server, every, projected=True)
    assert found.embedding.shape == (120, 6)
    assert found.probabilities.shape == (120, 5)
    scores = blind.scores(server)
    assert scores["unif"] == uniformity(torch.split(found.embedding, sizes))
    assigned = found.probabilities.argmax(dim=1).numpy()
    assert scores["mixing"] == mixing(found.embedding, assigned)
    assert scores["selection"] == pytest.approx(scores["align"] + 0.2 * scores["unif"])
    assert blind.scores(server) == scores


@pytest.mark.parametrize("name", ["fedsimclr", "fedbyol", "fedsimsiam"])
def test_scores_of_a_pretrainer_are_those_of_its_projector(name):
    assembly, backend, blind = built(f"experiment={name}_digits", *ORCHESTRA[1:8])
    rows, server = assembly.workload.parts, assembly.server
    sizes, every = [len(part) for part in rows], np.concatenate(rows)
    found = predicted(backend, server, every, projected=True)
    online = assembly.method.global_module(server).online.eval()
    with torch.no_grad():
        z = online(to_unit(torch.from_numpy(assembly.data.samples[every])))
    torch.testing.assert_close(found.embedding, normalize(z, dim=1), rtol=0, atol=1e-6)
    assert (found.embedding.shape, found.probabilities) == ((120, 6), None)
    assert predicted(backend, server, every).embedding.shape == (120, 16)
    scores = blind.scores(server)
    assert scores["unif"] == uniformity(torch.split(found.embedding, sizes))
    assert scores["mixing"] == mixing(found.embedding, blind.assignments_of(found))


def test_alignment_is_between_samples_and_views_of_the_runs_augmentation():
    assembly, _, blind = built(*ORCHESTRA, "augmentation.rotation=180")
    # Little less than 1, for an untrained network tells little apart.
    assert blind.scores(assembly.server)["align"] < 1 - 2e-5
    assembly, _, blind = built(*ORCHESTRA, "augmentation=none")
    assert blind.scores(assembly.server)["align"] == pytest.approx(1.0, abs=1e-6)


def test_without_a_projection_they_are_those_of_the_representation():
    assembly, backend, blind = built(*TINY)
    rows = assembly.workload.parts
    sizes, every = [len(part) for part in rows], np.concatenate(rows)
    plain = predicted(backend, assembly.server, every)
    scores = blind.scores(assembly.server)
    samples = torch.split(plain.embedding, sizes)
    assert scores["unif"] == uniformity(samples)
    views = [predicted(backend, assembly.server, every, view=seed).embedding for seed in (1, 1, 2)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    pairs = list(zip(samples, torch.split(views[0], sizes), strict=True))
    assert scores["align"] == pytest.approx(alignment(pairs), abs=0.05)  # other views
    assert -1 <= scores["mixing"] <= 1


def test_between_rounds_fewer_samples_are_compared_with_all_of_their_client():
    assembly, _, blind = built(*ORCHESTRA, "evaluation.max_samples=60", "partition.clients=4")
    server, counted = assembly.server, []

    def embedded(server, chunks):
        counted.append(sum(len(chunk.rows) for chunk in chunks))
        draw = torch.randn(120, 16, generator=torch.Generator().manual_seed(0))
        return [Prediction(draw[torch.from_numpy(chunk.rows)], None) for chunk in chunks]

    blind = replace(blind, backend=SimpleNamespace(predict=embedded))
    whole, quick = blind.scores(server), blind.quick(server)
    assert counted == [120, 120, 120, 60]
    every = torch.randn(120, 16, generator=torch.Generator().manual_seed(0))
    clients = [every[torch.from_numpy(part)] for part in blind.parts]
    positions = blind.sampled()
    assert [len(set(own.tolist())) for own in positions] == [15, 15, 15, 15]
    assert quick["unif"] == uniformity(clients, anchors=positions)
    # Among 15 others in place of 30 a sample itself would count twice as much.
    few = [x[torch.from_numpy(own)] for x, own in zip(clients, positions, strict=True)]
    assert quick["unif"] == pytest.approx(whole["unif"], abs=0.05)
    assert uniformity(few) < whole["unif"] - 0.3
    assert blind.quick(server) == quick
    assert replace(blind, max_samples=120).quick(server) == whole


def test_the_last_evaluation_takes_all_samples(tmp_path):
    keys = (*ORCHESTRA, "evaluation.every=1", "evaluation.max_samples=60", f"run_dir={tmp_path}")
    ran = Federation(compose(*keys)).run()
    _, backend, blind = built(*keys)
    server = load_checkpoint(ran.run_dir / "checkpoints", backend).state.server
    metrics = json.loads((ran.run_dir / "summary.json").read_text())["metrics"]
    whole = replace(blind, max_samples=None).scores(server)
    for name in ("align", "unif", "selection"):
        assert metrics["unsupervised"][name] == pytest.approx(whole[name], rel=1e-9)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orchestra") / "run"
    return Federation(compose(*ORCHESTRA, "evaluation.every=1", f"run_dir={folder}")).run()


def test_every_evaluation_of_a_run_has_them_and_its_summary(ran):
    lines = [json.loads(line) for line in (ran.run_dir / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in lines if "unsupervised/align" in row)
    assert (first["round"], first["phase"]) == (1, "training")
    names = {f"unsupervised/{name}" for name in ("align", "unif", "selection", "mixing")}
    assert names <= set(first)
    assert "clustering/acc" in first
    assert not [name for name in first if name.startswith("clustering/unsupervised")]
    metrics = json.loads((ran.run_dir / "summary.json").read_text())["metrics"]
    assert set(metrics["unsupervised"]) == {"align", "unif", "selection", "mixing"}


def test_a_loaded_model_projects_as_the_runs_own(ran):
    samples = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    with torch.inference_mode():
        ours, theirs = ran.model.project(samples), load_model(ran.run_dir).project(samples)
    assert torch.equal(ours.embedding, theirs.embedding)
    assert torch.equal(ours.probabilities, theirs.probabilities)


def test_without_the_key_no_evaluation_has_them(finished_run):
    folder = finished_run.run_dir
    assert "unsupervised" not in (folder / "metrics.jsonl").read_text()
    assert "unsupervised" not in json.loads((folder / "summary.json").read_text())["metrics"]


def test_samples_too_few_for_the_clusters_are_scored_without_mixing():
    assembly, _, blind = built("experiment=fedbyol_digits", *ORCHESTRA[1:8])
    few = replace(blind, max_samples=10)
    assert sum(len(own) for own in few.sampled()) == 9 < few.clusters
    assert set(few.quick(assembly.server)) == {"align", "unif", "selection"}
    assert "mixing" in few.scores(assembly.server)
