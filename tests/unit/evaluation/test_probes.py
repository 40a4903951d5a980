import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch import nn
from torch.nn.functional import cross_entropy

from coterie.config.schema import EvaluationConfig
from coterie.errors import DataError
from coterie.evaluation import classification_metrics
from coterie.evaluation import linear_probe as probe_module
from coterie.evaluation.linear_probe import linear_probe
from coterie.evaluation.probes import Probes


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16, dtype=torch.float32)
    y = torch.tensor(y)
    return x[:1200], y[:1200], x[1200:], y[1200:]


@pytest.fixture
def recorded(monkeypatch):
    """The learning rates of every optimiser step, and each optimiser's settings."""
    rates, settings = [], []

    def watch(original):
        class Recorded(original):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                settings.append({"kind": original.__name__, **self.defaults})

            def step(self, closure=None):
                rates.append(self.param_groups[0]["lr"])
                return super().step(closure)

        return Recorded

    monkeypatch.setattr(torch.optim, "Adam", watch(torch.optim.Adam))
    monkeypatch.setattr(torch.optim, "SGD", watch(torch.optim.SGD))
    return rates, settings


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_separable_classes_are_found_as_by_logistic_regression(optimizer):
    x, y = make_blobs(600, 5, centers=4, cluster_std=1.0, random_state=3)
    x = (x - x.mean(0)) / x.std(0)
    theirs = LogisticRegression(max_iter=1000).fit(x[:400], y[:400]).score(x[400:], y[400:])
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    scores = linear_probe(
        x[:400],
        y[:400],
        x[400:],
        y[400:],
        classes=4,
        seed=0,
        optimizer=optimizer,
        epochs=60,
        batch_size=64,
    )
    assert theirs > 0.99
    assert scores["acc"] == pytest.approx(theirs, abs=0.01)


def test_digits_come_near_logistic_regression(digits):
    train_x, train_y, test_x, test_y = digits
    model = LogisticRegression(max_iter=2000).fit(train_x.numpy(), train_y.numpy())
    scores = linear_probe(*digits, classes=10, seed=0, batch_size=128)
    theirs = model.predict(test_x.numpy())
    assert scores["acc"] == pytest.approx((theirs == test_y.numpy()).mean(), abs=0.015)
    assert scores["f1_macro"] == pytest.approx(f1_score(test_y, theirs, average="macro"), abs=0.02)


def test_steps_and_constant_rate_of_adam(digits, recorded):
    rates, settings = recorded
    linear_probe(*digits, classes=10, seed=0, epochs=3)
    assert rates == [3e-3] * (3 * math.ceil(1200 / 512))
    assert settings[0]["kind"] == "Adam"
    assert (settings[0]["betas"], settings[0]["weight_decay"]) == ((0.9, 0.999), 0)


def test_steps_and_cosine_rate_of_sgd(digits, recorded):
    rates, settings = recorded
    linear_probe(*digits, classes=10, seed=0, optimizer="sgd", epochs=4, batch_size=500)
    steps = 4 * 3
    expected = [30 * 500 / 256 / 2 * (1 + math.cos(math.pi * t / steps)) for t in range(steps)]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert settings[0]["kind"] == "SGD"
    assert (settings[0]["momentum"], settings[0]["weight_decay"]) == (0.9, 0)


def test_a_number_of_steps_takes_the_place_of_epochs(digits, recorded):
    rates, _ = recorded
    whole = linear_probe(*digits, classes=10, seed=0, epochs=2)
    assert linear_probe(*digits, classes=10, seed=0, steps=2 * 3) == whole
    linear_probe(*digits, classes=10, seed=0, optimizer="sgd", steps=4)
    expected = [30 * 512 / 256 / 2 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]
    assert rates[12:] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("keys", [{"linear_probe_optimizer": "adam"}, {}])
def test_the_config_says_which_protocol(digits, recorded, keys):
    config = EvaluationConfig(knn=False, **keys)
    train_x, train_y, test_x, test_y = (x[:60] for x in digits)
    scores = Probes(config=config, classes=10, seed=0).scores(
        (train_x, test_x), (train_y.numpy(), test_y.numpy())
    )
    _, settings = recorded
    assert settings[0]["kind"] == ("Adam" if keys else "SGD")
    assert settings[0]["lr"] == (3e-3 if keys else 30 * 512 / 256)
    assert scores == {
        "linear": linear_probe(
            train_x,
            train_y,
            test_x,
            test_y,
            classes=10,
            seed=0,
            optimizer=keys.get("linear_probe_optimizer", "sgd"),
        )
    }


def test_standardised_features_have_neither_offset_nor_scale(digits):
    """A linear classifier can undo both; Adam's 200 epochs do not get that far."""
    train_x, train_y, test_x, test_y = digits
    drift = torch.linspace(-40, 40, train_x.shape[1])
    moved = [x * 0.01 + drift for x in (train_x, test_x)]
    scores = {}
    for standardise in (False, True):
        config = EvaluationConfig(knn=False, linear_probe_standardise=standardise)
        runner = Probes(config=config, classes=10, seed=0)
        for name, pair in (("as it is", (train_x, test_x)), ("moved", moved)):
            found = runner.linear(pair, (train_y.numpy(), test_y.numpy()))
            scores[standardise, name] = found["acc"]
    assert scores[True, "moved"] == pytest.approx(scores[True, "as it is"], abs=0.01)
    assert scores[True, "moved"] > 0.9
    assert scores[False, "moved"] < 0.5


def test_standardised_features_by_hand():
    train = torch.tensor([[1.0, 5.0, 1e6], [3.0, 5.0, 1e6 + 1]])
    ours, other = probe_module.standardised(train, torch.tensor([[2.0, 6.0, 1e6]]))
    assert ours.tolist() == [[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]  # a constant one is only shifted
    assert other.tolist() == [[0.0, 1.0, -1.0]]


def slow_probe(x, y, test_x, *, classes, seed, epochs, batch_size, lr):
    """Adam on the mean cross-entropy, with the gradient and the update written out."""
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(x.shape[1])
    weight = torch.empty(classes, x.shape[1]).uniform_(-bound, bound, generator=generator).double()
    bias = torch.empty(classes).uniform_(-bound, bound, generator=generator).double()
    theta = torch.cat([weight, bias[:, None]], dim=1)
    first, second, step = torch.zeros_like(theta), torch.zeros_like(theta), 0
    x = torch.cat([x.double(), torch.ones(len(x), 1)], dim=1)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch_size):
            step += 1
            residual = (x[rows] @ theta.T).softmax(1) - nn.functional.one_hot(y[rows], classes)
            gradient = residual.T @ x[rows] / len(rows)
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            scale = (second / (1 - 0.999**step)).sqrt() + 1e-8
            theta = theta - lr * first / (1 - 0.9**step) / scale
    return torch.cat([test_x.double(), torch.ones(len(test_x), 1)], dim=1) @ theta.T


def test_the_result_is_that_of_a_loop_written_out(digits):
    train_x, train_y, test_x, test_y = digits
    logits = slow_probe(
        train_x, train_y, test_x, classes=10, seed=5, epochs=2, batch_size=100, lr=3e-3
    )
    predicted = logits.argmax(1)
    scores = linear_probe(*digits, classes=10, seed=5, epochs=2, batch_size=100)
    assert 0.5 < scores["acc"] < 0.95  # far from converged, so that a different path would show
    assert scores["acc"] == (predicted == test_y).double().mean().item()
    assert scores["f1_macro"] == pytest.approx(
        f1_score(test_y, predicted, average="macro"), abs=1e-6
    )


def test_same_seed_same_scores_whatever_the_global_state(digits):
    first = linear_probe(*digits, classes=10, seed=1, epochs=1)
    torch.manual_seed(99)
    assert linear_probe(*digits, classes=10, seed=1, epochs=1) == first
    assert linear_probe(*digits, classes=10, seed=2, epochs=1) != first


def test_the_global_random_state_is_left_alone(digits):
    torch.manual_seed(7)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    linear_probe(*digits, classes=10, seed=1, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], before_numpy)  # noqa: NPY002


def test_initial_weights_are_those_of_a_linear_layer():
    layer = probe_module.linear_layer(100, 400, torch.Generator().manual_seed(0))
    bound = 100**-0.5
    assert layer.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert layer.bias.abs().max().item() <= bound


def test_macro_f1_leaves_out_classes_that_do_not_occur():
    predicted, y = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1])
    scores = classification_metrics.classification_scores(predicted, y, 5)
    assert scores["acc"] == 0.75
    assert scores["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_features_keep_no_gradient_and_half_precision_is_welcome():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = (x[:, 0] > 0).long()
    scores = linear_probe(x, y, x, y, classes=2, seed=0, epochs=1)
    assert x.grad is None
    assert linear_probe(x.double(), y, x.double(), y, classes=2, seed=0, epochs=1) == scores
    assert cross_entropy(x, y).requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_y": torch.tensor([0, 1])}, r"train features \(3, 2\) and labels \(2,\)"),
        ({"test_y": torch.tensor([0, 1, 2])}, r"test labels in 0\.\.2: give integers in 0\.\.1"),
        ({"test_y": torch.tensor([0.0, 1, 1])}, "test labels"),
        ({"train_x": torch.tensor([[0.0, 1], [math.nan, 0], [1, 1]])}, "1 of 3 train features"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    x, y = torch.eye(3)[:, :2], torch.tensor([0, 1, 1])
    given = {"train_x": x, "train_y": y, "test_x": x, "test_y": y, "classes": 2, "seed": 0}
    with pytest.raises(DataError, match=message):
        linear_probe(**{**given, **change})


@pytest.mark.parametrize(("k", "told"), [(121, True), (120, False)])
def test_neighbours_that_are_most_of_the_samples_are_told(digits, caplog, k, told):
    x, y, *_ = digits
    config = EvaluationConfig(linear_probe=False, knn_k=k)
    probes = Probes(config=config, classes=10, seed=0)
    probes.scores((x[:240], x[240:260]), (y[:240].numpy(), y[240:260].numpy()))
    expected = (
        "evaluation.knn_k=121: that is most of the 240 samples, so the most frequent classes win; "
        "lower it."
    )
    assert [record.getMessage() for record in caplog.records] == [expected] * told


@pytest.mark.parametrize(("samples", "k"), [(399, 79), (400, 200), (3, 1)])
def test_of_few_samples_the_default_takes_few_neighbours(digits, caplog, samples, k):
    x, y, *_ = digits
    split = (x[:samples], x[400:500]), (y[:samples].numpy(), y[400:500].numpy())
    scores = [
        Probes(config=EvaluationConfig(knn_k=n), classes=10, seed=0).knn(*split) for n in (200, k)
    ]
    assert scores[0] == scores[1]
    told = [record.getMessage() for record in caplog.records]
    assert not [sentence for sentence in told if "knn_k=200" in sentence]


@pytest.mark.parametrize(("samples", "optimizer"), [(240, "SGD"), (1023, "SGD"), (1024, "Adam")])
def test_few_samples_are_for_sgd(recorded, samples, optimizer):
    features, labels = torch.randn(samples, 3), np.arange(samples) % 2
    probes = Probes(config=EvaluationConfig(), classes=2, seed=0)
    probes.linear((features, features), (labels, labels))
    assert recorded[1][0]["kind"] == optimizer


def test_on_few_samples_the_usual_probe_is_as_good_as_logistic_regression():
    drawn = np.random.default_rng(0)
    labels = np.arange(480) % 4
    rows = drawn.normal(size=(480, 200)) * 0.1  # features that vary little, and tell nothing
    rows[:, :4] = np.eye(4)[labels] + drawn.normal(size=(480, 4)) * 0.2
    theirs = LogisticRegression(C=1e3).fit(rows[:240], labels[:240]).score(rows[240:], labels[240:])
    features = torch.tensor(rows, dtype=torch.float32)
    split = (features[:240], features[240:]), (labels[:240], labels[240:])
    found = Probes(config=EvaluationConfig(), classes=4, seed=0).linear(*split)
    adam = EvaluationConfig(linear_probe_optimizer="adam")
    assert found["acc"] >= theirs - 0.02
    assert Probes(config=adam, classes=4, seed=0).linear(*split)["acc"] < theirs - 0.02
