"""Ray is started beside the driver's imports: taken over by the run, or ended without it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from coterie.config.schema import ClusterConfig
from coterie.distributed.startup import EarlyStart, connect, early_start, local_options
from coterie.errors import RunError
from ray_jobs.train import main
from tests.builders.runs import COMMAND

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("no_cluster")]


def test_who_connects_takes_it_over():
    with early_start(ClusterConfig()):
        assert connect(ClusterConfig()) is True  # and it is theirs to end
        assert EarlyStart.pending is None
        assert connect(ClusterConfig()) is False
    assert ray.is_initialized()
    ray.shutdown()


@pytest.mark.slow
def test_actors_begin_with_what_they_need_imported(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert connect(ClusterConfig()) is True
    actor = ray.remote(num_cpus=1)(Imported).remote()
    assert ray.get(actor.has.remote("coterie.distributed.actors"))
    ray.shutdown()


ENDS = """
import ray
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import disconnect
from coterie.distributed.startup import connect

connect(ClusterConfig())
processes = ray._private.worker._global_node.all_processes
pids = {kind: infos[0].process.pid for kind, infos in processes.items()}
shutdown = ray.shutdown

def late():
    print(*(kind for kind in pids if kind not in processes))
    print(*pids.values())
    shutdown()

ray.shutdown = late
disconnect()
"""


def test_the_end_does_not_wait_for_the_monitor_and_leaves_nothing_of_its_ray():
    done = subprocess.run(
        [sys.executable, "-c", ENDS], check=True, capture_output=True, text=True, timeout=120
    )
    before, pids = done.stdout.splitlines()
    assert before == "monitor"
    assert len(pids.split()) > 3
    ending = time.monotonic() + 20
    while left := [pid for pid in pids.split() if Path("/proc", pid).exists()]:
        assert time.monotonic() < ending, left
        time.sleep(0.1)


STAYS = """
import contextlib
import time
from pathlib import Path
import ray
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import disconnect
from coterie.distributed.startup import connect

for _ in range(2):
    connect(ClusterConfig())
    ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())
    disconnect()

def alike():
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            names.append(path.read_text())
    return names.count(Path("/proc/self/comm").read_text())

ending = time.monotonic() + 10
while alike() > 1 and time.monotonic() < ending:
    time.sleep(0.1)
print(alike())
"""


@pytest.mark.slow
def test_a_program_that_goes_on_has_no_thread_of_rays_metrics_left():
    # Such a thread is named as the one that made it. At the end of Python it reads what is gone:
    # with an export each 100 ms, four of ten such programs ended by a segmentation fault.
    environment = {k: v for k, v in os.environ.items() if k != "RAY_enable_open_telemetry"}
    environment["RAY_metrics_report_interval_ms"] = "100"
    done = subprocess.run(
        [sys.executable, "-c", STAYS],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "1\n"


def test_with_many_more_cpus_than_actors_nothing_is_imported_ahead(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    preload = "preload_python_modules"
    assert preload not in local_options(ClusterConfig(num_actors=31))["_system_config"]
    assert preload in local_options(ClusterConfig(num_actors=32))["_system_config"]


class Imported:
    def has(self, module):
        return module in sys.modules


def test_a_run_that_is_refused_leaves_no_ray(capsys):
    assert main(["experiment=fedmcc_digits", "method.momentun=1"]) == 2
    assert not ray.is_initialized()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_whose_actors_are_late_leaves_no_ray(tmp_path, capsys):
    late = (
        *COMMAND,
        "cluster=local",
        "cluster.start_timeout_s=0.01",
        f"run_dir={tmp_path / 'run'}",
    )
    assert main(late) == 1
    assert capsys.readouterr().err.startswith("cluster.start_timeout_s=0.01: ")
    if EarlyStart.late is not None:  # it had not even connected
        assert EarlyStart.late.over.wait(100)
    assert not ray.is_initialized()


def test_its_error_is_raised_where_ray_is_needed():
    config = ClusterConfig(address="127.0.0.1:1")
    with early_start(config), pytest.raises(RunError, match=r"cluster.address=127.0.0.1:1"):
        connect(config)
    with early_start(config):
        pass  # nobody needed it
    assert not ray.is_initialized()


def test_the_serial_backend_starts_none():
    with early_start(ClusterConfig(backend="serial")):
        assert EarlyStart.pending is None
