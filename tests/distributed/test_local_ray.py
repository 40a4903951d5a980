"""The local Ray of a process starts beside its imports, serves all its runs, and ends with it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
import ray

from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect, disconnect, started_here
from coterie.distributed.local_ray import LocalRay
from coterie.distributed.startup import begin_local_ray
from coterie.distributed.watch import ClusterWatch
from coterie.errors import RunError
from coterie.jobs.train import main
from tests.builders.ray_processes import left_of, ray_process
from tests.builders.runs import COMMAND

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("no_cluster")]


@pytest.fixture
def mark():
    """Found in the environment of a command's processes."""
    return f"COTERIE_TEST={uuid.uuid4().hex}"


def begin(mark, *arguments, **options):
    name, value = mark.split("=")
    environment = {**os.environ, name: value, **options.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env=environment, **pipes, **options)


def test_further_runs_of_a_process_find_it_ready():
    assert connect(ClusterConfig()) is True
    local = LocalRay.running
    assert started_here()
    assert connect(ClusterConfig()) is False
    disconnect()
    begin_local_ray(ClusterConfig())
    assert connect(ClusterConfig()) is True
    assert LocalRay.running is local
    assert local.process.poll() is None
    disconnect()


@pytest.mark.parametrize("given", [pytest.param(None, marks=pytest.mark.slow), "7"])
def test_its_workers_have_this_processes_priority_or_the_users(monkeypatch, given):
    if LocalRay.running is not None:
        LocalRay.running.end()
    monkeypatch.delenv("RAY_worker_niceness")  # of all tests
    if given is not None:
        monkeypatch.setenv("RAY_worker_niceness", given)
    connect(ClusterConfig())
    found = ray.get(ray.remote(num_cpus=0)(lambda: os.nice(0)).remote())
    disconnect()
    LocalRay.running.end()
    assert found == min(19, os.nice(0) + int(given or 0))


@pytest.mark.slow
def test_a_dead_one_is_replaced():
    connect(ClusterConfig())
    dead = LocalRay.running
    raylet = ray_process("raylet")
    ray.shutdown()  # before: a driver ends itself when it sees that its raylet has died
    os.kill(raylet, signal.SIGKILL)
    assert dead.process.wait(20) == 0
    assert connect(ClusterConfig()) is True
    assert LocalRay.running is not dead
    assert ray.get(ray.remote(num_cpus=0)(lambda: 1).remote()) == 1
    disconnect()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("part", "read"),
    [
        pytest.param("gcs_server", True, id="gcs_server-told"),
        *(
            pytest.param(part, read, marks=pytest.mark.slow)
            for part, read in (
                ("raylet", False),
                ("gcs_server", False),
                ("raylet", True),
                ("ray::RuntimeEnvAgent", True),
                ("ray::RuntimeEnvAgent", False),
            )
        ),
    ],
)
def test_one_that_has_ended_before_it_was_joined_is_replaced_at_once(part, read):
    if LocalRay.running is not None:
        LocalRay.running.end()
    dead = LocalRay.begin()
    address = dead.wait(120)
    dead.address = address if read else None
    own = {name: pid for pid, name, _ in dead._children()}
    inner = psutil.Process(dead.process.pid).children(recursive=True)
    next(child for child in inner if part in " ".join(child.cmdline())).kill()
    ends = own["gcs_server" if part == "gcs_server" else "raylet"]
    while any(pid == ends and state != "Z" for pid, _, state in dead._children()):
        time.sleep(0.1)  # a raylet outlives its agent for seconds
    if not read:  # its pipe is empty
        dead._read = lambda seconds: address
    begun = time.monotonic()
    assert connect(ClusterConfig()) is True
    assert time.monotonic() < begun + 45  # Ray itself tries for 60 s, or for minutes
    assert LocalRay.running is not dead
    disconnect()


def test_one_whose_keeper_is_killed_is_told_and_nothing_of_it_stays():
    connect(ClusterConfig())
    local = LocalRay.running
    watch = ClusterWatch(lambda: None)
    watch.check()
    raylet = ray_process("raylet")
    local.process.kill()
    local.process.wait(10)
    watch._due = 0.0
    with pytest.raises(RunError, match="was killed; go on with resume=true"):
        watch.check()
    disconnect()
    ending = time.monotonic() + 10
    while Path(f"/proc/{raylet}").exists() and time.monotonic() < ending:
        time.sleep(0.1)
    assert not Path(f"/proc/{raylet}").exists()
    assert not local._folder.exists()


def _check_for(watch, seconds):
    ending = time.monotonic() + seconds
    while time.monotonic() < ending:
        watch.check()
        time.sleep(0.1)


@pytest.mark.slow
def test_one_whose_control_process_stands_still_is_told_in_time_and_ends():
    connect(ClusterConfig())
    local = LocalRay.running
    watch = ClusterWatch(lambda: None)
    watch.check()
    os.kill(ray_process("gcs_server"), signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(RunError, match="does not answer any more"):
        _check_for(watch, 30)
    disconnect()
    assert time.monotonic() < begun + 25  # 13 s on a quiet machine
    assert local.process.wait(20) == 0


TASK = """
import os, signal, sys, ray
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect
connect(ClusterConfig())
ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())
print("connected", flush=True)
if sys.argv[1] != "ends":
    from tests.builders.ray_processes import ray_process
    for stopped in sys.argv[2:]:
        os.kill(ray_process(stopped), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("stopped", ["gcs_server", pytest.param("raylet", marks=pytest.mark.slow)])
def test_it_ends_with_its_driver_also_where_a_part_of_it_stands_still(mark, stopped):
    driver = begin(mark, "-c", TASK, "killed", stopped)
    output, errors = driver.communicate(timeout=120)
    assert (driver.returncode, output) == (-signal.SIGKILL, "connected\n"), errors
    assert left_of(mark) == []


LEAVE = """
import os, signal, sys, time, ray
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect, disconnect
from coterie.distributed.local_ray import LocalRay
from tests.builders.ray_processes import ray_process
connect(ClusterConfig())
ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())
part, sent = sys.argv[1], signal.Signals[sys.argv[2]]
keeper = LocalRay.running.process.pid
os.kill(keeper if part == "keeper" else ray_process(part), sent)
begun = time.monotonic()
disconnect()
print(time.monotonic() - begun < 20, flush=True)
"""


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        pytest.param("gcs_server", "SIGSTOP", marks=pytest.mark.slow),
        pytest.param("raylet", "SIGSTOP", marks=pytest.mark.slow),
        pytest.param("keeper", "SIGSTOP", marks=pytest.mark.slow),
        pytest.param("keeper", "SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_who_leaves_it_waits_for_no_part_that_stands_still_and_leaves_nothing(mark, part, sent):
    """As when a run has ended its actors, and nobody watches the cluster any more."""
    driver = begin(mark, "-c", LEAVE, part, sent)
    try:
        output, errors = driver.communicate(timeout=90)
    finally:
        driver.kill()
    assert (driver.returncode, output) == (0, "True\n"), errors
    assert left_of(mark, 10) == []


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("ends", 0), ("killed", -signal.SIGKILL)])
def test_it_ends_with_its_driver(mark, how, code):
    driver = begin(mark, "-c", TASK, how)
    output, errors = driver.communicate(timeout=120)  # which no other process holds open
    assert (driver.returncode, output) == (code, "connected\n"), errors
    assert left_of(mark) == []


def test_it_ends_while_it_starts(mark):
    driver = begin(
        mark, "-m", "coterie.jobs.train", "experiment=fedmcc_digits", "method.momentum=2"
    )
    _, errors = driver.communicate(timeout=120)
    assert (driver.returncode, errors.count("\n")) == (2, 1)
    assert left_of(mark) == []


@pytest.mark.parametrize(
    ("send", "number"),  # as a terminal does, and a scheduler
    [
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C"),
        pytest.param(os.kill, signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_signal_leaves_a_checkpoint_and_no_process(mark, tmp_path, send, number):
    driver = begin(
        mark,
        "-m",
        "coterie.jobs.train",
        *COMMAND,
        "cluster=local",
        "cluster.num_actors=2",
        "method.representation_rounds=500",
        "tracking.progress=lines",
        f"run_dir={tmp_path / 'run'}",
        start_new_session=True,
    )
    for line in driver.stdout:
        if "round" in line:
            break
    send(driver.pid, number)
    told = "".join(driver.communicate(timeout=60))
    assert (driver.returncode, f"{number.name} came; the run stopped" in told) == (130, True), told
    assert "***" not in told
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()
    assert left_of(mark) == []


STARTS = """
import time
import psutil
from coterie.distributed.local_ray import LocalRay

head = psutil.Process(LocalRay.begin().process.pid)
while len(head.children(recursive=True)) < 4:  # gcs_server, raylet and its two agents
    time.sleep(0.01)
"""


def test_one_that_has_just_started_its_agents_leaves_none(mark):
    started = begin(mark, "-c", STARTS)
    assert started.communicate(timeout=120) == ("", "")
    assert left_of(mark, seconds=10) == []


STAYS = """
import contextlib
import time
from pathlib import Path
import ray
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect, disconnect

def alike():
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            names.append(path.read_text())
    return names.count(Path("/proc/self/comm").read_text())

def left(most):
    connect(ClusterConfig())
    ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())
    disconnect()
    ending = time.monotonic() + 10
    while alike() > most and time.monotonic() < ending:
        time.sleep(0.1)
    return alike()

first = left(1)
print(left(first) - first)
"""


@pytest.mark.slow
def test_no_connection_leaves_a_thread_of_rays_metrics(mark):
    # Such a thread is named as the one that made it. At the end of Python it reads what is gone:
    # with an export each 100 ms, four of ten such programs ended by a segmentation fault.
    environment = {"RAY_metrics_report_interval_ms": "100", "OPENBLAS_NUM_THREADS": "1"}
    process = begin(mark, "-c", STAYS, env=environment)
    output, _ = process.communicate(timeout=120)
    assert (output, process.returncode) == ("0\n", 0)


def test_a_late_one_is_one_sentence(tmp_path, capsys):
    if LocalRay.running is not None:
        LocalRay.running.end()
    late = (
        *COMMAND,
        "cluster=local",
        "cluster.start_timeout_s=0.01",
        f"run_dir={tmp_path / 'run'}",
    )
    assert main(late) == 1
    assert capsys.readouterr().err == (
        "cluster.start_timeout_s=0.01: Ray did not start in time; look for what else runs here, "
        "or raise it.\n"
    )
    assert LocalRay.running is None
    assert not ray.is_initialized()


def test_one_that_is_killed_while_it_starts_is_one_sentence():
    if LocalRay.running is not None:
        LocalRay.running.end()
    LocalRay.begin().process.kill()
    local = LocalRay.running
    with pytest.raises(RunError, match=r"^Ray could not be started \(its process was killed\); "):
        local.wait(10)


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_one_whose_process_is_killed_while_it_starts_is_told_at_once(name):
    if LocalRay.running is not None:
        LocalRay.running.end()
    local = LocalRay.begin()
    head = psutil.Process(local.process.pid)
    while not (found := [child for child in head.children() if child.name() == name]):
        time.sleep(0.01)
    found[0].kill()
    killed = time.monotonic()
    with pytest.raises(
        RunError, match=rf"^Ray could not be started \(its {name} has ended\); make"
    ):
        local.wait(120)
    assert time.monotonic() - killed < 15  # Ray itself waits for a minute
    left = [child for child in (head, *found) if child.is_running()]
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in left)


def test_a_worker_that_dies_is_not_told_by_ray(capfd):
    connect(ClusterConfig())
    actor = ray.remote(num_cpus=0)(Dies).remote()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.now.remote())
    time.sleep(3)  # Ray tells it after a moment
    disconnect()
    assert "died" not in "".join(capfd.readouterr())


class Dies:
    def now(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_another_cluster_that_does_not_answer_starts_none():
    before = LocalRay.running
    config = ClusterConfig(address="127.0.0.1:1")
    begin_local_ray(config)
    with pytest.raises(RunError, match=r"cluster.address=127.0.0.1:1"):
        connect(config)
    begin_local_ray(ClusterConfig(backend="serial"))
    assert LocalRay.running is before
    assert not ray.is_initialized()
