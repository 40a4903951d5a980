"""CCFC's network and the loss of a stage: their identities."""

import pytest
import torch

from coterie.contract import ServerState
from coterie.losses.cosine import cluster_contrast, negative_cosine
from coterie.modules.ccfc import CCFC
from coterie.modules.cluster_siamese import ClusterSiamese, SiameseNetwork
from tests.builders.federation import SIZES, tiny_task
from tests.builders.modules import random_views

SHORT = {"projection": 5, "hidden": 7, "bottleneck": 4}
CLUSTERS = 3


def module(stage: str = "clusters", **changes: object) -> ClusterSiamese:
    """A module whose local network differs from its global one."""
    torch.manual_seed(0)
    built = ClusterSiamese(CCFC.Config(**SHORT | changes), tiny_task(), stage)
    built.online.load_state_dict(SiameseNetwork(built.config, tiny_task()).double().state_dict())
    built.centroids.copy_(torch.randn(CLUSTERS, 5))
    built.on_train_epoch_start()
    return built


def test_the_network_is_that_of_the_authors_code() -> None:
    network = SiameseNetwork(CCFC.Config(), tiny_task())
    kinds = [
        (type(part).__name__, *part.weight.shape)
        for name, part in [*network.encoder.projector.named_modules()][1:]
        if getattr(part, "weight", None) is not None
    ]
    assert kinds == [("Linear", 256, 6), ("BatchNorm1d", 256), ("Linear", 256, 256)]
    last = network.encoder.projector[-1]
    assert (last.affine, last.num_features) == (False, 256)
    shapes = [tuple(p.shape) for p in network.predictor.parameters()]
    assert shapes == [(16, 256), (16,), (16,), (256, 16), (256,)]


@pytest.mark.parametrize("stage", ["samples", "clusters"])
def test_r_is_minus_one_where_local_and_global_network_are_equal(stage: str) -> None:
    built = module(stage)
    built.start({})
    built.online.eval()  # the mode of the global one
    found = built.training_step(random_views() if stage == "samples" else random_views()[:1], 0)
    assert found["model"].item() == pytest.approx(-1.0, abs=1e-14)


def test_r_is_the_mean_of_both_views_against_the_global_network() -> None:
    built = module("samples", model_weight=0.7)
    views = random_views()
    terms = [negative_cosine(built.online(v)[1], built.global_model(v)[1]).item() for v in views]
    found = built.training_step(views, 0)
    assert found["model"].item() == pytest.approx(sum(terms) / 2, rel=1e-12)
    total = found["contrast"] + 0.7 * found["model"]
    assert found["loss"].item() == pytest.approx(total.item(), rel=1e-14)


@pytest.mark.parametrize("variant", [{"model_weight": 0.0}, {"alone": 1, "model_weight": 3.0}])
def test_without_r_only_the_contrast_is_left(variant: dict[str, object]) -> None:
    built = module(**variant)
    found = built.training_step(random_views(12)[:1], 0)
    assert found["contrast"].item() != 0.0
    assert torch.equal(found["loss"], found["contrast"])


def test_k_equal_to_n_with_two_views_each_is_scfc() -> None:
    built = module("samples")
    views = random_views(6)
    (z_a, p_a), (z_b, p_b) = (built.online(view) for view in views)
    labels = torch.arange(6).repeat(2)
    p, z = torch.cat([p_a, p_b]), torch.cat([z_a, z_b])
    as_clusters = cluster_contrast(p, z, labels, 6, "exclude_self").item()
    assert built.training_step(views, 0)["contrast"].item() == pytest.approx(as_clusters, rel=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_permuting_centroids_permutes_labels_only(metric: str) -> None:
    built = module(metric=metric)
    views, order = random_views(12)[:1], torch.tensor([2, 0, 1])
    before = built.training_step(views, 0)["loss"].item()
    built.centroids.copy_(built.centroids[order])
    assert built.training_step(views, 0)["loss"].item() == pytest.approx(before, rel=1e-12)
    method = CCFC(built.config, tiny_task())
    slots = dict(method.init(dict(enumerate(SIZES)), 0).slots)
    slots["centroids"] = {"centroids": torch.randn(CLUSTERS, 5)}
    samples = random_views(12)[0]
    one = method.model_for(ServerState(slots=slots), None).eval()(samples)
    slots["centroids"] = {"centroids": slots["centroids"]["centroids"][order]}
    two = method.model_for(ServerState(slots=slots), None).eval()(samples)
    torch.testing.assert_close(one.probabilities[:, order], two.probabilities)
    assert torch.equal(one.embedding, two.embedding)
