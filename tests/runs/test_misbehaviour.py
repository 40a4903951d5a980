"""A client that raises, dawdles or sends rubbish: refused, recorded, and the others go on."""

import json
import os
from pathlib import Path

import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError, DataError, RunError
from coterie.run.federation import Federation
from tests.builders import misbehaves
from tests.builders.forks import python
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

ROOT = Path(__file__).resolve().parents[2]
RUN = (
    *SMALL,
    "cluster=serial",
    "executor=bare",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "method.target=tests.builders.misbehaves:Misbehaves",
    "method.clusters=10",
    *(
        f"method.{key}"
        for key in (
            "representation_rounds=2",
            "representation_epochs=1",
            "clustering_rounds=2",
            "clustering_epochs=1",
            "batch_size=32",
        )
    ),
)
REASONS = {
    "raise": "ValueError: its disk is broken",
    "memory": "out of memory: MemoryError; lower method.batch_size or give each client more",
    "gpu_memory": "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB; lower method",
    "cap": "out of memory: ",
    "not_finite": "is not finite; lower the learning rate, scale the data, or drop the client.",
    "infinite": "is not finite; lower the learning rate, scale the data, or drop the client.",
    "huge": "has a value of 1e+30; training diverged; lower the learning rate.",
    "shape": "; send the server's shapes.",
    "weight": "has weight -1; give a positive int.",
    "heavy": "has weight 8388608, and this client",
    "grown": "has a value of 1.6e+07, and faults.max_growth allows at most 1e+04",
    "complex": "is torch.complex64; send a dense tensor of real numbers.",
    "exit": "(SystemExit: 0)",
    "interrupt": "(KeyboardInterrupt: no message)",
    "generator": "(GeneratorExit: no message)",
    "stop": "(InterruptedRunError: it says that somebody pressed Ctrl-C)",
    "run_error": "(RunError: it says that the run is over)",
    "state_lost": "(StateLostError: The state of clients 3 is lost with its node",
    "sums_exceeded": "(SumsExceededError: it says that the sums are full)",
    "refuse": "(it says that its config is bad)",
    "unprintable": "(UnprintableError: no message)",
    "nameless": "(an error without a readable message)",
    "classless": "(an error without a readable message)",
    "traceless": "(TracelessError: its text is told)",
    "long": f"(ValueError: {'x' * 487}…)",
    "escape": "(ValueError: ?[31mred?[0m ? ?)",
    "metric_text": "metric: 'loss' is str; report a number.",
    "metric_tensor": "metric: 'loss' is Tensor; report a number.",
    "state_key": "Outcome.state has the key b'x'; give a printable str of at most 1000 char",
    "metric_name": "; give a printable str of at most 1000 characters.",
    "metric_huge": "metric: 'loss' has a value of 1e+38; send -1e+12 to 1e+12.",
}


def run(run_dir, *overrides):
    view = Silent()
    result = Federation(compose(*RUN, f"run_dir={run_dir}", *overrides), view).run()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    server = [row for row in rows if row["scope"] == "server"]
    events = [row for row in rows if row["scope"] == "event"]
    assert [row["failure"] for row in events] == json.loads((run_dir / "summary.json").read_text())[
        "failures"
    ]
    assert {row["client"] for row in events} <= {1}
    return result, json.loads((run_dir / "summary.json").read_text()), server


QUICK = {"raise", "memory", "not_finite", "shape", "exit", "state_lost", "unprintable", "heavy"}
"""One of each kind; tests/unit/execution/test_messages.py has each message that is refused."""


@pytest.mark.parametrize(
    "how", [pytest.param(h, marks=[pytest.mark.slow] * (h not in QUICK)) for h in REASONS]
)
def test_it_is_retried_then_dropped_from_the_round(tmp_path, how):
    result, summary, rows = run(tmp_path / "run", f"method.how={how}")
    assert (result.exit_code, summary["status"]) == (3, "completed")
    retried, dropped = summary["failures"]
    assert retried.startswith("round 1, ")
    assert "client 1 failed" in retried
    assert REASONS[how] in retried
    assert (retried.endswith("retried"), dropped.endswith("dropped from the phase")) == (True, True)
    counted = [(row["participants"], row["failures"], row["dropped"]) for row in rows]
    assert counted == [(4, 2, 1), (5, 0, 0), (5, 0, 0), (5, 0, 0)]


@pytest.mark.ci
def test_what_a_client_has_forked_does_not_go_on_with_the_run(tmp_path):
    words = ["-m", "coterie.jobs", "train", *RUN, "method.how=twice", "run_dir=run"]
    paths = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    done = python(words, tmp_path, os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("completed") == 1


def test_a_config_that_every_client_refuses_is_refused(tmp_path):
    everyone = "partition.clients=1", "method.culprit=0", "method.how=refuse"
    with pytest.raises(ConfigError, match=r"^it says that its config is bad$"):
        Federation(compose(*RUN, f"run_dir={tmp_path / 'run'}", *everyone), Silent()).run()
    assert not (tmp_path / "run").exists()


def test_code_of_the_run_that_exits_fails_it(tmp_path):
    overrides = f"run_dir={tmp_path / 'run'}", "method.how=server_exit"
    with pytest.raises(RunError, match=r"^Code of the run raised SystemExit \(0\); remove the exi"):
        Federation(compose(*RUN, *overrides), Silent()).run()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"


def test_a_run_in_which_clients_trained_stays_also_if_it_is_refused_then(tmp_path):
    overrides = f"run_dir={tmp_path / 'run'}", "method.how=server_refuse"
    with pytest.raises(DataError):
        Federation(compose(*RUN, *overrides), Silent()).run()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", "what a client sent cannot be used")


def test_drop_does_not_retry(tmp_path):
    overrides = "method.how=not_finite", "faults.on_client_failure=drop", "method.until_round=4"
    result, summary, rows = run(tmp_path / "run", *overrides)
    assert (result.exit_code, len(summary["failures"])) == (3, 4)
    assert [row["participants"] for row in rows] == [4, 4, 4, 4]


def test_fail_ends_the_run(tmp_path):
    with pytest.raises(RunError, match=r"Client 1 failed in round 1 \(ValueError: its disk is bro"):
        run(tmp_path / "run", "faults.on_client_failure=fail")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], RunError.exit_code) == ("failed", 1)
    assert summary["error"].endswith("correct its data, or set faults.on_client_failure=drop.")


def test_the_traceback_of_the_first_failure_is_in_a_file_that_the_error_names(tmp_path):
    with pytest.raises(
        RunError, match=r"its disk is broken\); see failures\.log in the run's folde"
    ):
        run(tmp_path / "run", "faults.on_client_failure=fail")
    with pytest.raises(
        RunError, match=r"its disk is broken\); see failures\.log in the run's folde"
    ):
        run(tmp_path / "few", "faults.min_participation=0.9")
    for name in ("run", "few"):  # retried in the second, which fails alike
        text = (tmp_path / name / "failures.log").read_text()
        assert text.startswith("round 1, representation: client 1\nTraceback (most")
        assert f'File "{misbehaves.__file__}", line ' in text
        assert 'raise ValueError("its disk is broken")\nValueError: its disk is broken\n' in text
        assert text.count("Traceback") == 1


def test_too_few_left_ends_the_run(tmp_path):
    with pytest.raises(RunError, match=r"Round 1: 4 of 5 clients succeeded, below faults.min_part"):
        run(tmp_path / "run", "faults.min_participation=0.9")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["failures"]) == 2
    assert summary["failures"][-1].endswith("; the phase failed")
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    told = [row["failure"] for row in map(json.loads, rows) if row.get("failure")]
    assert told == summary["failures"]


@pytest.mark.ci
def test_slow_training_is_stopped_between_steps(tmp_path):
    overrides = "faults.client_timeout_s=4", "faults.on_client_failure=drop"
    for executor in ("bare", "lightning"):
        result, summary, rows = run(
            tmp_path / executor, "method.how=slow", f"executor={executor}", *overrides
        )
        assert result.exit_code == 3
        (failure,) = summary["failures"]
        assert "(ClientTimeoutError: took longer than faults.client_timeout_s=4)" in failure
        assert [row["participants"] for row in rows] == [4, 5, 5, 5]


@pytest.mark.ci
def test_what_is_slow_outside_of_training_is_noticed_at_its_end(tmp_path):
    overrides = "faults.client_timeout_s=5", "method.how=dawdle"
    _, summary, rows = run(tmp_path / "run", *overrides)
    assert len(summary["failures"]) == 2
    assert [row["participants"] for row in rows] == [4, 5, 5, 5]
