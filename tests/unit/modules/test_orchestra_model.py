"""Orchestra's model: the loss's identities, views, rotations, the target, the memory."""

import copy
import math

import pytest
import torch

from coterie.errors import ConfigError
from coterie.modules.orchestra import Orchestra
from coterie.modules.rotation import check_rotatable, rotated
from tests.builders.federation import SHAPE, tiny_task
from tests.builders.orchestra import batch_of, model, rows, short


def test_a_teacher_like_its_student_leaves_the_entropy_of_its_assignments() -> None:
    built = model()
    teacher, _, turned, turns, positions = batch_of(built)
    terms = built.training_step((teacher, teacher, turned, turns, positions), 0)
    z = torch.nn.functional.normalize(copy.deepcopy(built.target)(teacher), dim=1)
    p = (z @ built.centroids.T / 0.1).softmax(dim=1)
    entropy = -(p * p.log()).sum(dim=1).mean().item()
    assert terms["cluster"].item() == pytest.approx(entropy, rel=1e-12)
    assert 0.0 < entropy <= math.log(4)
    assert terms["loss"] == terms["cluster"] + terms["rotation"]


def test_the_first_global_centroids_are_random_rows_of_unit_length() -> None:
    method = Orchestra(short(), tiny_task())
    first, other = (method.init({0: 10}, seed).slots["centroids"]["centroids"] for seed in (1, 2))
    for centroids in (first, other):
        assert centroids.shape == (4, 5)
        norms = centroids.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)
    assert not torch.equal(first, other)


def test_equal_centroids_leave_log_g() -> None:
    built = model()
    built.centroids.copy_(built.centroids[:1].expand(4, -1))
    terms = built.training_step(batch_of(built), 0)
    assert terms["cluster"].item() == pytest.approx(math.log(4), rel=1e-12)


def test_a_rotation_head_of_zeros_leaves_log_4() -> None:
    built = model()
    torch.nn.init.zeros_(built.rotation.weight)
    torch.nn.init.zeros_(built.rotation.bias)
    terms = built.training_step(batch_of(built), 0)
    assert terms["rotation"].item() == pytest.approx(math.log(4), rel=1e-12)


def test_without_the_rotation_task_the_loss_is_that_of_the_clusters_alone() -> None:
    built, whole = model(rotation_task=False), model()
    terms, both = (one.training_step(batch_of(one), 0) for one in (built, whole))
    assert set(terms) == {"loss", "cluster"}
    assert terms["loss"] == terms["cluster"] == both["cluster"]
    terms["loss"].backward()
    assert all(p.grad is None for p in built.rotation.parameters())


def test_with_momentum_0_the_target_is_the_online_network_after_each_step() -> None:
    built = model(momentum=0.0)
    with torch.no_grad():
        built.online.projector[0].weight.add_(1.0)
    built.on_train_batch_end({}, None, 0)
    pairs = zip(built.online.parameters(), built.target.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_images_are_turned_by_multiples_of_90_degrees() -> None:
    images = torch.rand(4, 1, 3, 3)
    found = rotated(images, torch.tensor([0, 1, 2, 3]))
    for turn in range(4):
        assert torch.equal(found[turn], images[turn].rot90(turn, dims=(1, 2)))
    assert not torch.equal(found[1], images[1])


def test_views_are_drawn_from_the_batchs_seed_and_turns_are_of_all_four_kinds() -> None:
    built = model()
    one, two, other = batch_of(built, 64), batch_of(built, 64), batch_of(built, 64, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[3], other[3])
    assert set(one[3].tolist()) == {0, 1, 2, 3}
    assert not torch.equal(one[0], one[1])
    assert torch.equal(one[2], rotated(one[0], one[3]))


def test_a_plain_teacher_sees_the_sample_itself() -> None:
    plain, augmented = model(teacher_view="plain"), model()
    draw = torch.Generator().manual_seed(5)
    samples = torch.randint(0, 256, (8, *SHAPE), dtype=torch.uint8, generator=draw)
    teacher, student, turned, turns, _ = batch_of(plain)
    assert torch.equal(teacher, samples.double() / 255.0)
    assert torch.equal(turned, rotated(teacher, turns))
    assert torch.equal(student, batch_of(augmented)[1])


def test_no_gradient_reaches_target_or_centroids_and_the_optimiser_has_neither() -> None:
    built = model()
    centroids = built.centroids.clone()
    optimizer = built.configure_optimizers()
    built.training_step(batch_of(built), 0)["loss"].backward()
    assert all(p.grad is None for p in built.target.parameters())
    assert all(p.grad is not None for p in built.online.parameters())
    optimizer.step()
    assert torch.equal(built.centroids, centroids)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    wanted = [*built.online.parameters(), *built.rotation.parameters()]
    assert trained == {id(p) for p in wanted}


def test_the_target_follows_by_the_closed_form_and_keeps_its_own_statistics() -> None:
    built = model()
    before = copy.deepcopy(built.target).state_dict()
    with torch.no_grad():
        for parameter in built.online.parameters():
            parameter.add_(1.0)
    for buffer in built.online.buffers():
        buffer.add_(1)
    built.on_train_batch_end(None, None, 0)
    built.on_train_batch_end(None, None, 1)
    names = {name for name, _ in built.target.named_parameters()}
    for name, value in built.target.state_dict().items():
        step = 1 - 0.7**2 if name in names else 0
        torch.testing.assert_close(value, before[name] + step, rtol=1e-12, atol=1e-12)


def test_the_memory_holds_the_last_projections_newest_first() -> None:
    built = model(memory=6)
    views = batch_of(built)[0]
    assert built.recollect().shape == (0, 5)
    first = built.remember(views[:4], torch.arange(4))
    assert rows(built) == [3, 2, 1, 0, -1, -1]
    assert torch.equal(built.recollect(), first.flip(0))
    second = built.remember(views[4:], torch.arange(4, 8))
    assert rows(built) == [7, 6, 5, 4, 3, 2]
    assert torch.equal(built.recollect(), torch.cat([second.flip(0), first.flip(0)[:2]]))
    norms = built.memory.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)


def test_only_the_newest_projection_of_a_sample_counts() -> None:
    built = model(memory=6)
    views = batch_of(built)[0]
    built.remember(views[:3], torch.tensor([0, 1, 2]))
    newest = built.remember(views[3:6], torch.tensor([2, 0, 5]))
    assert rows(built) == [5, 0, 2, 2, 1, 0]
    expected = torch.cat([newest.flip(0), built.memory[4:5]])
    assert torch.equal(built.recollect(), expected)


def test_a_batch_larger_than_the_memory_leaves_its_last_rows() -> None:
    built = model(memory=6)
    z = built.remember(batch_of(built)[0], torch.arange(8))
    assert rows(built) == [7, 6, 5, 4, 3, 2]
    assert torch.equal(built.recollect(), z.flip(0)[:6])


@pytest.mark.parametrize("shape", [(7,), (1, 8, 6)])
def test_what_cannot_be_rotated_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be rotated by 90°; choose data of square"):
        check_rotatable(shape, "Orchestra")
