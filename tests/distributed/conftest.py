"""One local Ray cluster for all tests that leave it as it was; the others start their own."""

import os

import pytest
import ray

from coterie.distributed.fork_server import worker_executable

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# As on local clusters of our own: OpenTelemetry's threads outlive the connection, and can crash
# the end of this process.
os.environ.setdefault("RAY_enable_open_telemetry", "0")


@pytest.fixture(scope="package")
def shared():
    """Ends the shared cluster behind the last test of this folder."""
    yield
    ray.shutdown()


@pytest.fixture
def cluster(shared):
    """The shared cluster, which stays when the test is over."""
    if not ray.is_initialized():
        # More CPUs than the machine has: five actors of one CPU each have to fit.
        ray.init(
            address="local",
            num_cpus=6,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=2 * 10**8,
            runtime_env={"py_executable": worker_executable()},
            _system_config={"prestart_worker_first_driver": False},
        )


@pytest.fixture(scope="module")
def no_cluster():
    """Ends the shared cluster, for tests that start Ray themselves."""
    ray.shutdown()
    yield
    ray.shutdown()
