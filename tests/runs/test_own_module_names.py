"""Metrics whose names have slashes, as many modules log them."""

from torch.nn.functional import cross_entropy

from tests.builders.own_module import Lit, federated, rows


class Slashes(Lit):
    """Logs under names such as TensorBoard groups them."""

    def validation_step(self, batch, batch_idx):
        points, labels = batch
        hits = self(points).argmax(dim=1) == labels
        self.log("val/acc", hits.float().mean())
        self.log("unsupervised/loss", cross_entropy(self(points), labels))


def test_the_servers_loader_and_what_clients_hold_out_have_names_of_their_own(tmp_path):
    module = Slashes()
    run = federated(tmp_path, module, rounds=2, holdout=0.2)
    first, last = rows(run, "validation")
    clients = [row for row in rows(run, "validation", "client") if row["round"] == 1]
    for name in ("val/acc", "unsupervised/loss"):
        values = [row[name] for row in clients]
        assert min(values) <= first[name] <= max(values)
        assert first[f"val/{name}"] is not None
        assert last[f"val/{name}"] is None
    assert run.metrics["val"].keys() == {"val/acc", "unsupervised/loss"}
