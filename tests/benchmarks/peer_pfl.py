"""FedAvg by pfl-research with the same net, data and settings, for torchrun.

Of the repository it imports nothing but the net: its imports are those of a pfl-research program.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from bare import BATCH, RATE, network  # a file beside this one

CLIENTS, IMAGES, COHORT, ROUNDS = 100, 100, 10, 20


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def loss(self, x, y, eval=False):  # noqa: A002 - pfl-research's
        self.train(not eval)
        return functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=False):  # noqa: A002
        self.train(not eval)
        return {"acc": Weighted((self.net(x).argmax(1) == y).float().sum().item(), len(y))}


def run(path):
    """Train on the arrays of the file and print the test accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl-research samples by it
    data = {name: torch.from_numpy(values) for name, values in np.load(path).items()}
    order = np.random.default_rng(0).permutation(CLIENTS * IMAGES).reshape(CLIENTS, IMAGES)
    users = {str(i): [data["x"][rows], data["y"][rows]] for i, rows in enumerate(order)}
    sampler = get_user_sampler("random", list(users))
    federated = FederatedDataset(lambda user: Dataset(users[user], user_id=user), sampler)
    module = Model()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    evaluation = NNEvalHyperParams(local_batch_size=1000)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS * 2,  # once, as long as there is nothing to evaluate
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(federated, federated),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        evaluation,
        callbacks=[],
    )
    test = Dataset([data["test_x"], data["test_y"]])
    metrics = model.evaluate(test, lambda name: name, evaluation)
    sys.stdout.write(f"{metrics.to_simple_dict()}\n")


if __name__ == "__main__":
    run(sys.argv[1])
