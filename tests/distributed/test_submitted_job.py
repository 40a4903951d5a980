"""The lines of docs/cluster.md in a fresh home: a cluster with a token, jobs, and their ends."""

import json
import math
import re
import stat
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.builders.dashboard import asked_metrics, queries, samples_of, series_of
from tests.builders.endless import ENDLESS, rows, summary, wait_for_rounds
from tests.builders.page_cluster import BIN, REPO, SETTINGS, PageCluster, blocks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster():
    made = PageCluster()
    try:
        made.start()
    except (
        AssertionError,
        subprocess.CalledProcessError,
    ):  # Ray gives a node 30 seconds, on any machine
        made.end()
        made = PageCluster()
        made.start()
    try:
        yield made
    finally:
        made.end()


GAUGE = "ray_coterie_score{"


def test_the_token_is_its_owners_alone(cluster):
    token = cluster.home / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64


LAST_ROUND = re.compile(r"^ray_coterie_round{.*} 15\.0$", re.MULTILINE)


def last_page(cluster, over):
    """The exporter's last page with scores; it keeps a job's numbers for 20 s after its end."""
    page, until = "", math.inf
    while time.monotonic() < until and not (over.is_set() and LAST_ROUND.search(page)):
        if over.wait(1):
            until = min(until, time.monotonic() + 60)
            time.sleep(1)
        url = f"http://127.0.0.1:{cluster.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=120) as answer:
            text = answer.read().decode()
        page = text if GAUGE in text else page
    return page


@pytest.fixture(scope="module")
def first(cluster):
    """The page's job, and the run's last numbers at the exporter, which is read as it runs."""
    (lines,) = blocks("Submit")
    over = threading.Event()
    with ThreadPoolExecutor() as reader:
        page = reader.submit(last_page, cluster, over)
        try:
            done = cluster.shell(lines)
        finally:
            over.set()
    return done, samples_of(page.result())


def test_the_pages_job_trains_on_the_cluster_and_its_log_has_lines(cluster, first):
    done, _ = first
    assert done.returncode == 0, done.stdout + done.stderr
    end = r"\nThe method ended after round 15 of at most 35\.\nEvaluating the final"
    assert re.search(rf"\nround 15/35 clustering  loss .*{end}", done.stdout)
    assert "\ncompleted" in done.stdout
    found = summary(cluster.home / "runs" / "first")
    assert found["status"] == "completed"
    assert found["metrics"]["clustering"]["acc"] > 0.8


@pytest.mark.parametrize(("title", "query"), queries())
def test_every_panel_of_the_dashboard_has_a_series(first, title, query):
    _, samples = first
    found = series_of(query, samples)
    assert found, f"{title}: {query}"
    if "ray_coterie_" in query:
        assert {sample.labels["run"] for sample in found} == {"first"}


def test_the_exporter_has_the_runs_numbers(cluster, first):
    _, samples = first
    found = summary(cluster.home / "runs" / "first")
    own = [sample for sample in samples if sample.name.startswith("ray_coterie_")]

    def value(name, /, **labels):
        (hit,) = [s for s in own if s.name == name and labels.items() <= s.labels.items()]
        return hit.value

    assert value("ray_coterie_round") == 15
    assert value("ray_coterie_stage", stage="clustering") == 1
    assert value("ray_coterie_clients_done") == 150
    assert value("ray_coterie_clients_failed") == 0
    assert value("ray_coterie_client_seconds_count") == 150
    assert value("ray_coterie_actors", which="wanted") == 10  # one for each client
    assert value("ray_coterie_actors", which="present") in {0, 2}  # they end before the run
    assert (
        value("ray_coterie_score", name="clustering/acc") == found["metrics"]["clustering"]["acc"]
    )
    for way in ("up", "down"):
        assert value("ray_coterie_bytes", direction=way) == found["bytes"][way]


def test_prometheus_finds_the_exporters_by_the_pages_line(cluster):
    path = blocks("Watch")[1].strip().partition("=")[2]
    config = yaml.safe_load(Path(path.replace("$HOME/ray/s", str(cluster.head))).read_text())
    (found,) = (file for job in config["scrape_configs"] for file in job["file_sd_configs"])
    targets = json.loads(Path(*found["files"]).read_text())
    ports = {int(target.rpartition(":")[2]) for each in targets for target in each["targets"]}
    assert cluster.metrics in ports


def test_the_dashboard_draws_every_metric(first):
    _, samples = first
    own = {s.name for s in samples if s.name.startswith("ray_coterie_")}
    assert own - asked_metrics() == {
        "ray_coterie_client_seconds_count",
        "ray_coterie_client_seconds_sum",
    }


@pytest.mark.slow
def test_a_stopped_job_leaves_a_checkpoint_from_which_the_same_command_goes_on(cluster, tmp_path):
    run_dir = tmp_path / "run"
    command = ("python", "-m", "coterie.jobs.train", *ENDLESS, f"run_dir={run_dir}")
    _, follow, stop = blocks("Watch")[0].splitlines()
    logs, reached = [], []
    for job in ("one", "two"):
        before = rows(run_dir)
        done = cluster.submit(*command, options=f"--no-wait --submission-id {job}")
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for_rounds(run_dir, before)
        done = cluster.shell(f"{SETTINGS}\n{stop.replace('JOB', job)}")
        assert done.returncode == 0, done.stdout + done.stderr
        logs.append(cluster.shell(f"{SETTINGS}\n{follow.replace('JOB', job)}").stdout)
        assert summary(run_dir)["status"] == "interrupted"
        reached.append(summary(run_dir)["rounds"])
        assert (run_dir / "checkpoints" / f"round-{reached[-1]:06}").is_dir()
    assert reached[1] > reached[0] > 0
    assert "\nround 1/100001 representation  loss " in logs[0]
    assert f"Resumed after round {reached[0]}." in logs[1]


@pytest.mark.slow
def test_a_relative_run_directory_is_refused_under_a_job(cluster):
    done = cluster.submit("python", "-m", "coterie.jobs.train", *ENDLESS, "run_dir=here")
    assert done.returncode != 0
    assert "run_dir=here: a submitted job's working directory is deleted" in done.stdout


def test_a_job_without_the_token_is_refused(cluster, tmp_path):
    done = subprocess.run(
        [BIN / "ray", "job", "list", f"--address=http://127.0.0.1:{cluster.dashboard}"],
        env=cluster.environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "token" in (done.stdout + done.stderr).lower()


JOIN = """
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect
from coterie.errors import RunError

try:
    connect(ClusterConfig(address="127.0.0.1:{port}"))
except RunError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("mode", "token", "sentence"),
    [
        ({}, None, "{address}: the Ray cluster there refuses this process's token; "),
        ({"RAY_AUTH_MODE": "token"}, "another", "{address}: the Ray cluster there refuses this "),
        ({"RAY_AUTH_MODE": "token"}, None, "Ray's token cannot be read (Token authentication is "),
    ],
    ids=["no token", "another cluster's", "no token, but asked for one"],
)
def test_a_refused_token_is_told_at_once(cluster, tmp_path, mode, token, sentence):
    if token is not None:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text(token)
    begun = time.monotonic()
    done = subprocess.run(
        [BIN / "python", "-c", JOIN.format(port=cluster.gcs)],
        env=cluster.environment
        | {"HOME": str(tmp_path), "PYTHONPATH": str(REPO / "platform"), **mode},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    address = f"cluster.address=127.0.0.1:{cluster.gcs}"
    assert done.stdout.startswith(sentence.format(address=address)), done.stdout + done.stderr
    assert time.monotonic() - begun < 15  # Ray itself would repeat the call for 20 seconds


@pytest.mark.slow
def test_the_job_imports_the_engine_from_its_own_copy(cluster):
    code = "import platform, coterie; print(coterie.__file__); print('on', platform.system())"
    done = cluster.submit("python", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "_ray_pkg_" in done.stdout
    assert "on Linux" in done.stdout
