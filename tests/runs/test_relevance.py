"""The relevance of pretraining data: against the mean over pairs, and from the command line."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie import load_model
from coterie.commands.compose import compose
from coterie.errors import DataError
from coterie.jobs.pretrain import main as pretrain
from coterie.jobs.relevance import main
from coterie.run.data import read_and_split
from coterie.run.pretraining_relevance import embedded_sample, mean_cross_cosine
from coterie.studies.paper_run import relevance


def test_it_is_the_mean_over_all_pairs() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(7, 4, generator=draw), torch.randn(5, 4, generator=draw)
    pairs = [float(u @ v / u.norm() / v.norm()) for u in a.double() for v in b.double()]
    assert mean_cross_cosine(a, b) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert mean_cross_cosine(a[:1], 3 * a[:1]) == pytest.approx(1.0)
    assert mean_cross_cosine(a, -a) == pytest.approx(-mean_cross_cosine(a, a))
    assert mean_cross_cosine(torch.zeros(2, 4), b) == 0.0
    with pytest.raises(DataError, match=r"\(7, 4\) and \(0, 4\): give"):
        mean_cross_cosine(a, b[:0])


def test_samples_are_drawn_without_replacement_from_the_rows() -> None:
    samples = np.arange(40, dtype=np.float32)[:, None]
    rows = np.arange(3, 33)
    found = embedded_sample(nn.Identity(), samples, rows, 10, 1).flatten().tolist()
    assert len(set(found)) == 10
    assert set(found) <= set(rows.tolist())
    assert found != embedded_sample(nn.Identity(), samples, rows, 10, 2).flatten().tolist()
    everything = embedded_sample(nn.Identity(), samples, rows, 300, 1)
    assert everything.flatten().tolist() == rows.tolist()


def test_the_command_compares_a_runs_data_with_the_clients(tmp_path, capsys) -> None:
    small = ("encoder=mlp", "encoder.hidden=[16]", "encoder.features=8", "data.limit=200")
    quick = (
        "cluster=serial",
        "executor=bare",
        "method.rounds=1",
        "method.epochs=1",
        "tracking.progress=none",
        "evaluation.figures=false",
        "evaluation.kmeans_baseline=false",
        "evaluation.linear_probe=false",
        "evaluation.knn=false",
    )
    assert pretrain(["experiment=simclr_digits", *small, *quick, f"out={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    clients = ("experiment=cpcfl_digits", "partition.clients=3")
    assert main([f"pretrained={tmp_path / 'run'}", "samples=2000", *clients]) == 0
    encoder = load_model(tmp_path / "run").encoder
    with torch.no_grad():
        first, second = (
            encoder(torch.from_numpy(data.samples[np.concatenate(parts)]) / 255)
            for data, parts in map(
                read_and_split, (compose("experiment=simclr_digits", *small), compose(*clients))
            )
        )
    expected = mean_cross_cosine(first, second)
    assert capsys.readouterr().out == f"relevance {expected:.4f}\n"
    config = compose(*clients, "encoder=pretrained", f"encoder.path={tmp_path / 'run'}")
    assert relevance(compose(*clients)) == {}
    assert main([f"pretrained={tmp_path / 'run'}", *clients]) == 0
    assert capsys.readouterr().out == f"relevance {relevance(config)['relevance']:.4f}\n"
    assert main([f"pretrained={tmp_path / 'run'}", *clients, "data.size=9"]) == 2
    assert "its samples are (1, 8, 8), the clients' (1, 9, 9)" in capsys.readouterr().err
    assert main(["experiment=cpcfl_digits"]) == 2
    assert "pretrained" in capsys.readouterr().err


def test_a_folder_without_a_run_is_named_by_its_key(tmp_path, capsys):
    missing = f"pretrained={tmp_path / 'none'}"
    assert main([missing, "experiment=fedmcc_digits"]) == 2
    assert capsys.readouterr().err == (
        f"{missing}: there is no such folder; give the folder of an earlier run.\n"
    )
