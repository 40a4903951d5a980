"""Run folders of strangers: no command runs code that lies in them, or touches other files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from coterie import load_model
from coterie.checkpoints.integrity import file_digest, seal, unseal
from coterie.commands import train
from coterie.commands.compose import compose
from coterie.errors import ConfigError, DataError
from coterie.jobs import cite, evaluate, export, predict, report, show
from coterie.jobs.train import main as train_main
from coterie.run.federation import Federation
from tests.builders.runs import COMMAND

ROOT = Path(__file__).resolve().parents[2]
EVIL = "from pathlib import Path\nPath('executed').touch()\n"
RUN_ONLY = ("evaluation.figures=false", "tracking.progress=none")


@pytest.fixture
def run(finished_run, tmp_path, monkeypatch):
    """A copy of a finished run, in the current folder beside a file of Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "stranger.py").write_text(EVIL)
    np.save("x.npy", np.zeros((3, 8, 8), np.uint8))
    return shutil.copytree(finished_run.run_dir, tmp_path / "run")


def test_a_checkpoint_of_other_tensors_that_is_sealed_again_is_told_as_that(run, capsys):
    (newest,) = [(run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip())]
    save_file({'["joint", "x"]': torch.zeros(7)}, newest / "server.safetensors")
    record = unseal(newest / "run.json")
    record["slots"] = ["joint"]
    record["files"]["server.safetensors"] = file_digest(newest / "server.safetensors")
    (newest / "run.json").write_text(seal(record))
    assert train_main(["resume=true", f"run_dir={run}", *RUN_ONLY[:1]]) == 2
    told = capsys.readouterr()
    assert "its checkpoint does not fit coterie.modules.fedmcc:FedMCC (" in told.out + told.err
    assert "Traceback" not in told.out + told.err
    assert evaluate.main([f"run={run}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"run={run}: its checkpoint does not fit coterie.modules.fedmcc:FedMCC")


def change(run, **sections):
    """Change keys of a run's stored configs."""
    for path in (run / "config.yaml", run / "model" / "config.yaml"):
        values = yaml.safe_load(path.read_text())
        for name, change in sections.items():
            both = isinstance(change, dict) and isinstance(values.get(name), dict)
            values[name] = {**values[name], **change} if both else change
        path.write_text(yaml.safe_dump(values))


LIGHTNING = {"target": "coterie.modules.lightning_module:Lightning", "arguments": {}}
OWN_DATA = {"target": "coterie.datamodules.lightning_data:LightningData", "arguments": {}}
SWAPS = {
    "method": {"method": {"target": "stranger:Method"}},
    "encoder": {"encoder": {"target": "stranger:Net"}},
    "augmentation": {"augmentation": {"target": "stranger:Noise"}},
    "callback": {"callbacks": [{"target": "stranger:Call"}]},
    "logger": {"tracking": {"loggers": [{"target": "stranger:Log"}]}},
    "metric": {"evaluation": {"metrics": [{"target": "stranger:Metric"}]}},
    "data": {"data": {"target": "stranger:Data"}},
    "own module": {"method": {**LIGHTNING, "module": "stranger:Lit"}},
    "own data": {"data": {**OWN_DATA, "module": "stranger:Data"}},
}
COMMANDS = {
    "evaluate": lambda run: evaluate.main([f"run={run}", "cluster.backend=serial"]),
    "resume": lambda run: train.main(["resume=true", f"run_dir={run}"]),
    "report": lambda run: report.main([f"run={run}"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("swap", SWAPS)
def test_no_command_imports_what_a_stored_config_names(run, capsys, command, swap):
    change(run, **SWAPS[swap], trust=["stranger"])
    assert COMMANDS[command](run) == 2
    assert not Path("executed").exists()
    text = capsys.readouterr().err
    assert "if you trust the code of stranger, add trust=stranger." in text
    assert "Traceback" not in text


@pytest.mark.parametrize("swap", ["method", "encoder", "augmentation"])
def test_a_stored_model_is_not_built_of_a_strangers_classes(run, swap):
    change(run, **SWAPS[swap])
    with pytest.raises(ConfigError, match=r"add trust=stranger\."):
        load_model(run)
    assert not Path("executed").exists()


def test_a_pretrained_encoder_goes_by_the_same_rule(run):
    change(run, **SWAPS["encoder"])
    chosen = (*COMMAND, "encoder=pretrained", f"encoder.path={run}")
    with pytest.raises(ConfigError, match=r"add trust=stranger\."):
        compose(*chosen)
    assert not Path("executed").exists()
    with pytest.raises(ConfigError, match="'stranger' has no 'Net'"):
        compose(*chosen, "trust=[other,stranger]")
    assert Path("executed").exists()


OWN = """\
from coterie.networks.encoders import MLP


class Own(MLP):
    pass
"""


def test_own_classes_need_to_be_trusted_once_the_run_is_read_back(run, tmp_path, capsys):
    (tmp_path / "own_net.py").write_text(OWN)
    folder = tmp_path / "own"
    own = (*COMMAND, "encoder.target=own_net:Own", "encoder.hidden=[16]", f"run_dir={folder}")
    trained = Federation(compose(*own)).run()
    batch = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"add trust=own_net\."):
        load_model(folder)
    model = load_model(folder, trust=["own_net"])
    assert torch.equal(model(batch).embedding, trained.model(batch).embedding)
    longer = ("resume=true", f"run_dir={folder}", "method.clustering_rounds=2")
    assert train.main(longer) == 2
    assert "add trust=own_net." in capsys.readouterr().err
    assert train.main((*longer, "trust=own_net")) == 0
    assert train.main((*longer, "encoder.target=own_net:Own")) == 0  # typed, and thus trusted
    assert evaluate.main([f"run={folder}", "trust=own_net", *RUN_ONLY[:1]]) == 0
    assert report.main([f"run={folder}", "trust=[own_net]"]) == 0
    assert "trust" not in yaml.safe_load((folder / "config.yaml").read_text())


def test_a_stored_cluster_is_not_joined(run, capsys):
    change(run, cluster={"backend": "ray", "address": "203.0.113.7:6379"})
    assert train.main(["resume=true", f"run_dir={run}"]) == 2
    assert "give cluster.address again" in capsys.readouterr().err
    assert evaluate.main([f"run={run}"]) == 2


@pytest.mark.parametrize(
    "target", ["coterie.tracking.wandb_logger:WandbRunLogger", "coterie.tracking.loggers:CSVLogger"]
)
def test_a_stored_logger_neither_sends_nor_writes_elsewhere(run, home, capsys, target):
    logger = {"target": target, "save_dir": str(home), "settings": {"base_url": "http://127.0.0.1"}}
    change(run, tracking={"loggers": [logger]})
    assert (
        train.main(
            ["resume=true", f"run_dir={run}", "encoder.target=coterie.networks.encoders:MLP"]
        )
        == 2
    )
    assert "give tracking.loggers again." in capsys.readouterr().err
    assert {path.name for path in home.iterdir()} == {"notes.jsonl", "weights.safetensors"}


def test_what_reads_a_run_sends_nothing_to_a_tracker(run, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the evaluation of a stored run is sent")

    monkeypatch.setattr("coterie.tracking.wandb_logger.send_to_wandb", refuse)
    change(run, tracking={"loggers": ["wandb"], "wandb": {"entity": "evil", "mode": "offline"}})
    command = [f"run={run}", "labelled_shares=[]", "evaluation.figures=false"]
    assert evaluate.main(command) == 0


def test_a_stored_account_of_a_tracker_is_given_again(run, capsys):
    change(run, tracking={"loggers": ["wandb"], "wandb": {"entity": "evil", "mode": "offline"}})
    assert train.main(["resume=true", f"run_dir={run}"]) == 2
    assert "give tracking.wandb.entity again." in capsys.readouterr().err
    assert not (run / "wandb").exists()


@pytest.mark.timeout(60)
def test_a_stored_config_reads_no_device(run, capsys):
    vision = "coterie.networks.torchvision_models:Torchvision"
    encoder = {"target": vision, "model": "resnet18", "weights": "/dev/zero", "digest": "0" * 64}
    for path in (run / "config.yaml", run / "model" / "config.yaml"):
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "encoder": encoder}))
    assert report.main([f"run={run}"]) == 0
    assert evaluate.main([f"run={run}", "evaluation.figures=false"]) == 2
    assert "Traceback" not in capsys.readouterr().err


NONE = (..., None, 3, [1], "text", {"target": 3})


@pytest.mark.parametrize(
    ("section", "value"),
    [*(("data", value) for value in NONE), ("encoder", "text"), ("augmentation", [1])],
)
def test_a_section_that_is_none_is_told_in_a_sentence(run, capsys, section, value):
    for path in (run / "config.yaml", run / "model" / "config.yaml"):
        values = yaml.safe_load(path.read_text())
        del values[section]
        path.write_text(yaml.safe_dump(values | ({} if value is ... else {section: value})))
    assert train.main(["resume=true", f"run_dir={run}"]) == 2
    assert capsys.readouterr().err.startswith(f"{section}")
    if section != "data":
        with pytest.raises((ConfigError, DataError)):
            load_model(run)


@pytest.mark.parametrize("part", ["tracking.offset", "tracking.round", "config.checkpoint"])
def test_a_checkpoint_without_a_part_is_resumed_or_refused_in_a_sentence(run, capsys, part):
    for path in (run / "checkpoints").glob("round-*/run.json"):
        record = unseal(path)
        section, _, key = part.partition(".")
        del record[section][key]
        path.write_text(seal(record))
    whole = part == "config.checkpoint"
    assert train.main(["resume=true", f"run_dir={run}"]) == (0 if whole else 2)
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert whole or "the checkpoint does not say where it ends" in text


@pytest.mark.parametrize("strategy", ["target", ["target"], {"target": {"a": 1}}, 3])
def test_what_is_no_strategy_is_not_cited(run, capsys, strategy):
    change(run, method={"strategy": strategy})
    assert cite.main([f"run={run}"]) == 0
    assert "Federated Momentum Contrastive Clustering" in capsys.readouterr().out


@pytest.mark.parametrize(
    "data",
    [
        "text",
        [1],
        {"source": "text"},
        {"fit": 3},
        {"levels": [1]},
        {"frame": "x"},
        {"max_pixels": 0},
    ],
)
def test_pictures_are_not_prepared_by_a_section_that_is_none(run, capsys, data):
    change(run, data=data)
    assert predict.main([f"model={run}", "input=x.npy", "output=a.parquet"]) == 2
    assert capsys.readouterr().err.startswith("data")


def test_a_name_of_very_many_parts_is_not_imported(run, capsys):
    change(run, encoder={"target": "coterie." + "a." * 50_000 + "b:C"})
    for command in (lambda: report.main([f"run={run}"]), lambda: export.main([f"model={run}"])):
        assert command() == 2
        assert "write it as package.module:Name." in capsys.readouterr().err


def test_environment_variables_stay_out_of_stored_configs(run, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    change(run, experiment="${oc.env:SECRET}", tracking={"wandb": {"group": "${oc.env:SECRET}"}})
    config = compose("resume=true", f"run_dir={run}", "seed=0")
    assert config.experiment == "${oc.env:SECRET}"
    assert config.tracking.wandb.group == "${oc.env:SECRET}"


@pytest.mark.parametrize(
    "packages",
    [
        ("coterie", "z3"),  # PyTorch looks for z3, which is not installed
        pytest.param(("torch", "yaml"), marks=pytest.mark.slow),
    ],
)
def test_a_folder_in_the_current_one_takes_no_packages_place(run, tmp_path, packages):
    """`python -m` puts the current folder first on the path."""
    for package in packages:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(EVIL)
    done = subprocess.run(
        [sys.executable, "-m", "ray_jobs.predict", f"model={run}", "input=x.npy"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not Path("executed").exists()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["train", "experiment=kmeans_digits", "cluster.num_actors=1"], id="actors"),
        pytest.param(
            ["compare", "experiments=[kmeans_digits]", "seeds=[0]", "cluster=serial"],
            id="runs of a comparison",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nothing_there_is_run_by_the_processes_that_a_command_starts(tmp_path, command):
    for name in ("coterie", "ray", "json", "torch", "psutil"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    out = f"{'run_dir' if command[0] == 'train' else 'out'}={tmp_path / 'out'}"
    program = f"import sys; sys.path.remove(''); from coterie.jobs.{command[0]} import main; "
    quick = ("data.limit=200", "evaluation.figures=false", "evaluation.every=0")
    done = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(main(sys.argv[1:]))", *command[1:], *quick, out],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "executed").exists()
    assert done.returncode == 0, done.stderr


@pytest.fixture
def home(tmp_path):
    """Files of the user's own, outside of the run."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("notes.jsonl", "weights.safetensors"):
        (folder / name).write_text("mine\n" * 1000)
    return folder


LINKS = {
    "metrics.jsonl": "notes.jsonl",
    "checkpoints/states": "",
    "checkpoints": "",
    "model": "",
    "figures": "",
    "summary.json": "notes.jsonl",
    "csv/metrics.csv": "notes.jsonl",
    ".lock": "notes.jsonl",
}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_in_a_run_leads_to_no_file_of_the_users(run, home, capsys, name):
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(home / LINKS[name])
    for command in (
        lambda: train.main(["resume=true", f"run_dir={run}", "method.clustering_rounds=3"]),
        lambda: evaluate.main([f"run={run}"]),
        lambda: report.main([f"run={run}"]),
    ):
        assert command() == 2
        assert "is a link" in capsys.readouterr().err
    assert {path.name for path in home.iterdir()} == {"notes.jsonl", "weights.safetensors"}
    assert all(path.read_text() == "mine\n" * 1000 for path in home.iterdir())


def test_a_pipe_in_a_run_is_refused_and_not_waited_for(run, capsys):
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    assert train.main(["resume=true", f"run_dir={run}"]) == 2
    assert "neither a file nor a folder" in capsys.readouterr().err


def test_predict_needs_no_class_of_the_run(run, tmp_path):
    """The exported program and its description are enough, whatever the config names."""
    change(run, **SWAPS["method"])
    change(run, **SWAPS["encoder"])
    assert predict.main([f"model={run}", "input=x.npy", "output=a.parquet"]) == 0
    assert not Path("executed").exists()


def test_a_model_that_could_not_be_exported_is_built_of_trusted_classes(run, capsys):
    (run / "model" / "model.pt2").unlink()
    assert predict.main([f"model={run}", "input=x.npy", "output=a.parquet"]) == 0
    change(run, **SWAPS["method"])
    assert predict.main([f"model={run}", "input=x.npy", "output=b.parquet"]) == 2
    assert "add trust=stranger." in capsys.readouterr().err
    assert not Path("executed").exists()


def test_states_and_assignments_are_the_owners_and_the_rest_is_the_umasks(tmp_path):
    done = Federation(compose(*COMMAND, f"run_dir={tmp_path / 'run'}")).run()
    modes = {path.relative_to(done.run_dir): path.stat().st_mode & 0o777 for path in
             done.run_dir.rglob("*") if "checkpoints" not in path.parts}  # fmt: skip
    umask = os.umask(0)
    os.umask(umask)
    assert (done.run_dir / "checkpoints").stat().st_mode & 0o777 == 0o700
    for private in ("assignments.parquet", ".lock"):
        assert modes.pop(Path(private)) == 0o600
    for path, mode in modes.items():
        assert mode == (0o777 if (done.run_dir / path).is_dir() else 0o666) & ~umask, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("command", ["report", "export"])
def test_nothing_is_written_into_another_users_run(run, capsys, command):
    for path in (run, run / "model"):
        os.chown(path, 65534, 65534)
    before = sorted(run.rglob("*"))
    told = {"report": report, "export": export}[command].main(
        [f"run={run}" if command == "report" else f"model={run}"]
    )
    assert told == 2
    assert "it belongs to another user" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


def test_a_model_that_is_a_link_out_of_the_run_is_not_written_in(run, tmp_path, capsys):
    (run / "model").rename(tmp_path / "mine")
    (run / "model").symlink_to(tmp_path / "mine")
    before = sorted((tmp_path / "mine").iterdir())
    assert export.main([f"model={run}"]) == 2
    assert f"{run / 'model'} is a link" in capsys.readouterr().err
    assert sorted((tmp_path / "mine").iterdir()) == before


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@pytest.mark.parametrize("command", ["export", "show", "predict"])
def test_what_is_no_file_is_not_written_over(run, tmp_path, capsys, command, kind):
    place = tmp_path / "out.parquet"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to("nowhere")
    else:
        place.mkdir()
    before = place.lstat()
    told = {
        "export": lambda: export.main([f"model={run}", f"out={place}"]),
        "show": lambda: show.main([f"run={run}", f"out={place}"]),
        "predict": lambda: predict.main([f"model={run}", "input=x.npy", f"output={place}"]),
    }[command]()
    assert told == 2
    assert str(place) in capsys.readouterr().err
    assert place.lstat() == before
