"""One local Ray cluster per test module, ended with it."""

import os

import pytest
import ray

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# As on local clusters of our own: OpenTelemetry's threads outlive the connection, and can crash
# the end of this process.
os.environ.setdefault("RAY_enable_open_telemetry", "0")


@pytest.fixture(scope="module")
def cluster():
    # More CPUs than the machine has: five actors of one CPU each have to fit.
    ray.init(address="local", num_cpus=6, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
