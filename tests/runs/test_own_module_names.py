"""A user's module: metrics whose names have slashes, and classes that the command line names."""

from torch.nn.functional import cross_entropy

from coterie.commands import train
from coterie.config.record_names import RESERVED
from coterie.jobs import evaluate
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
    assert run.metrics["holdout"] == {n: last[n] for n in ("val/acc", "unsupervised/loss")}


class Reserved(Lit):
    """Logs under the names of the columns that locate a row."""

    def training_step(self, batch, batch_idx):
        for number, name in enumerate(RESERVED):
            self.log(name, float(number))
        return super().training_step(batch, batch_idx)


def test_a_metric_with_the_name_of_a_column_is_kept_under_another(tmp_path):
    run = federated(tmp_path, Reserved(), rounds=1)
    assert run.exit_code == 0
    (row,) = rows(run)
    assert [row[f"logged/{name}"] for name in RESERVED] == [*map(float, range(len(RESERVED)))]


def test_a_run_of_named_classes_is_resumed_with_trust_and_not_evaluated(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    own = "tests.builders.own_module"
    named = [f"module={own}:Lit", f"data.target={own}:Data"]
    quiet = ["cluster=serial", "tracking.progress=none", "evaluation.figures=false"]
    sizes = ["partition.clients=2", "method.rounds=1", "run_dir=run"]
    assert train.main(["experiment=lightning", *named, *quiet, *sizes]) == 0
    longer = ["resume=true", "run_dir=run", "method.rounds=2"]
    assert train.main(longer) == 2
    told = f"method.module={own}:Lit: a stored config imports only Coterie's own classes"
    assert told in capsys.readouterr().err
    for key in ("module.lr", "data.batch_size"):
        assert train.main([*longer, "trust=tests", f"{key}=5"]) == 2
        assert f"this one has {key}=5" in capsys.readouterr().err
    assert train.main([*longer, "trust=tests"]) == 0
    typed = [f"method.module={own}:Lit", f"data.module={own}:Data"]  # and thus trusted
    assert train.main([*longer, *typed]) == 0
    capsys.readouterr()
    assert evaluate.main(["run=run", "trust=tests"]) == 2
    assert "which only its own validation_step and test_step score" in capsys.readouterr().err


def test_what_is_no_lightning_module_is_not_called(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = "data.target=tests.builders.own_module:Data"
    for module in ("tests.builders.own_module:Data", "subprocess:Popen"):
        keys = [f"module={module}", data, "cluster=serial", "partition.clients=2"]
        assert train.main(["experiment=lightning", *keys]) == 2
        told = f"module={module}: it is not a LightningModule class; name one."
        assert told in capsys.readouterr().err
