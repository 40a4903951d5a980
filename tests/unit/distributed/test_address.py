"""Which cluster is meant; `auto` never guesses."""

import subprocess
import sys

import pytest
import ray

from coterie.config.schema import ClusterConfig
from coterie.distributed.address import find_address, only_one
from coterie.errors import ConfigError, RunError


def test_one_cluster_is_the_one_that_is_meant():
    assert only_one(["10.0.0.3:6379"]) == "10.0.0.3:6379"


def test_no_cluster_is_an_error():
    with pytest.raises(RunError, match=r"^cluster.address=auto: no Ray cluster answers there; "):
        only_one([])


def test_a_head_that_is_named_twice_is_one_cluster():
    own = ray.util.get_node_ip_address()
    assert only_one(["127.0.0.1:6379", f"{own}:6379"]) in {"127.0.0.1:6379", f"{own}:6379"}


def test_auto_is_refused_where_several_clusters_have_nodes(monkeypatch):
    """Ray looks at the command lines of raylets, which these two processes have."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    wait = "import sys; print(flush=True); sys.stdin.read()"
    here = [
        subprocess.Popen(
            ["raylet", "-c", wait, f"--gcs-address=127.0.0.1:{port}"],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for port in (1, 2)
    ]
    try:
        for process in here:  # the system shows a command line after Popen has returned
            process.stdout.readline()
        with pytest.raises(ConfigError) as caught:
            find_address(ClusterConfig(address="auto"))
    finally:
        for process in here:
            process.communicate()
    assert "127.0.0.1:1, 127.0.0.1:2" in str(caught.value)
    assert str(caught.value).endswith("; give the address of the one that you mean.")


def test_a_submitted_job_has_its_cluster_for_auto(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RunError, match=r"^cluster.address=127.0.0.1:1: no Ray cluster answers"):
        find_address(ClusterConfig(address="auto"))


def test_without_an_address_a_cluster_is_started(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert find_address(ClusterConfig()) == "local"
