"""`make cluster`: three nodes on this machine, a job, and nothing left of them."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.builders.endless import ENDLESS, summary, wait_for_rounds
from tests.builders.page_cluster import BIN, REPO

SCRIPT = "deploy/local_cluster.sh"
NOBODY = 65534
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def slow(test):
    """Mark a test that runs the whole script."""
    return pytest.mark.ray(pytest.mark.slow(pytest.mark.timeout(1800)(test)))


as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def started(tmp_path):
    """Starts the script; what a failing test leaves of it is ended by id."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "COTERIE_"))}
    here = {"PATH": f"{BIN}:{os.environ['PATH']}", "COTERIE_RUNS": str(tmp_path / "runs")}
    begun = []

    def start(*arguments, place="/tmp"):
        process = subprocess.Popen(
            # Ctrl-C means something to it, even where these tests run in the background.
            ["env", "--default-signal=INT", "bash", REPO / SCRIPT, *arguments],
            env={
                **clean,
                **here,
                "RAY_worker_niceness": "0",
                "RAY_TMPDIR": str(place),
                "TMPDIR": str(place),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.terminate()
        process.communicate(timeout=300)
    for process in left(tmp_path):
        process.kill()


def left(tmp_path):
    """The processes that have this test's runs in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("COTERIE_RUNS") == str(tmp_path / "runs"):
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def ended(tmp_path):
    """Whether nothing is left; parts of Ray that have lost their parent end a moment later."""
    ending = time.monotonic() + 10
    while left(tmp_path) and time.monotonic() < ending:
        time.sleep(0.2)
    return not left(tmp_path)


def listeners(processes):
    """The addresses that processes listen on; at least the head's are there."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            connections = process.net_connections("inet")
            found |= {c.laddr for c in connections if c.status == psutil.CONN_LISTEN}
    assert found
    return found


def test_the_makefile_runs_the_script_in_its_environment():
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", "-o", "install", "cluster"],
        cwd=REPO,
        env=outside,  # a make that runs the tests would have this one say where it is
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(rf'PATH=".*\.venv/bin:\$PATH" {SCRIPT}\n', done.stdout)


@pytest.fixture
def place():
    """A short folder that everybody may look into, as /tmp."""
    path = Path("/tmp") / f"m{os.getpid()}"
    path.mkdir()
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def refused(place):
    """What the script tells of a place for its folder."""
    done = subprocess.run(
        ["bash", REPO / SCRIPT],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "RAY_TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    return done.stderr


@pytest.mark.parametrize("inner", ["", "own", "link"])
def test_a_place_where_everybody_may_rename_is_refused(place, inner):
    place.chmod(0o777)
    (place / "own").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "own")
    assert f"everybody may rename what is in {place}; chmod +t that" in refused(place / inner)
    assert {path.name for path in place.iterdir()} == {"own", "link"}


@as_root
def test_a_place_of_another_user_is_refused(place):
    os.chown(place, NOBODY, NOBODY)
    assert f"{place} belongs to another user, who may rename what is in it" in refused(place)


def is_ours(port):
    """The exit code of the script's function, and what it tells."""
    call = f"source <(sed -n '/^is_ours()/,/^}}/p' {REPO / SCRIPT}); is_ours {port}"
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@as_root
def test_a_port_that_another_user_has_taken_gets_no_token():
    listens = "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\n"
    tells = f"{listens}print(s.getsockname()[1], flush=True)\ntime.sleep(60)"
    command = ["/usr/bin/env", "python3", "-c", tells]
    for user, (code, told) in {
        os.getuid(): (0, ""),
        NOBODY: (1, "another user listens on port {}; start again.\n"),
    }.items():
        who = {"user": user, "group": user, "extra_groups": []}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **who) as taken:
            port = int(taken.stdout.readline())
            assert is_ours(port) == (code, told.format(port))
            taken.kill()
    assert is_ours(port) == (1, "")  # nobody listens


def starts(program, network=""):
    """What a program tells, run in place of the command that starts a node."""
    begun = re.search(r"^ray_start='\n(.*?)^'", (REPO / SCRIPT).read_text(), re.M | re.S)[1]
    head, main, _ = begun.partition("scripts.main()\n")
    assert main
    done = subprocess.run(
        [BIN / "python", "-c", network + head + program],
        env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_its_nodes_take_no_port_that_another_ray_may_have():
    assert starts("print(scripts.get_ray_client_dependency_error())") == "not used\n"


def test_its_nodes_take_the_loopback_where_the_network_knows_another_address():
    network = (
        "from ray._common import network_utils\n"
        "network_utils.node_ip_address_from_perspective = lambda address=None: '192.0.2.2'\n"
    )
    taken = "print(services.resolve_ip_for_localhost('127.0.0.1'))"
    assert starts(taken, network) == "127.0.0.1\n"


@slow
def test_the_demo_runs_as_a_job_and_nothing_is_left(started, tmp_path, place):
    log, _ = started(place=place).communicate(timeout=1200)
    assert "Evaluating the final model." in log
    assert re.search(r"Job 'coterie-\d+' succeeded", log)
    (run_dir,) = (tmp_path / "runs" / "concord_digits").iterdir()
    assert summary(run_dir)["status"] == "completed"
    assert ended(tmp_path)
    assert not [*place.iterdir()]


@slow
def test_what_a_killed_script_leaves_is_gone_at_the_next_start(started, tmp_path, place):
    run_dir = tmp_path / "run"
    process = started(*ENDLESS, f"run_dir={run_dir}", place=place)
    going = lambda: process.poll() is None or pytest.fail(process.communicate()[0])  # noqa: E731
    wait_for_rounds(run_dir, 0, going=going)
    process.kill()
    process.wait()
    (folder,) = place.glob("coterie-????????")
    os.utime(folder, (0, 0))
    clean = "from coterie.distributed.session_folder import remove_left; remove_left()"
    told = {**os.environ, "RAY_TMPDIR": str(place)}
    subprocess.run([BIN / "python", "-c", clean], env=told, check=True)
    assert not folder.exists()
    ending = time.monotonic() + 60
    while left(tmp_path) and time.monotonic() < ending:
        time.sleep(0.2)
    assert not left(tmp_path)


@slow
def test_ctrl_c_stops_the_job_with_a_checkpoint_and_ends_the_cluster(started, tmp_path):
    run_dir = tmp_path / "run"
    process = started(*ENDLESS, f"run_dir={run_dir}")
    wait_for_rounds(
        run_dir, 0, going=lambda: process.poll() is None or pytest.fail(process.communicate()[0])
    )
    listening = listeners(left(tmp_path))
    assert {place.ip for place in listening} <= LOOPBACK
    assert 10001 not in {place.port for place in listening}
    process.send_signal(signal.SIGINT)
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 130, log
    found = summary(run_dir)
    assert found["status"] == "interrupted"
    assert (run_dir / "checkpoints" / f"round-{found['rounds']:06}").is_dir()
    assert ended(tmp_path)
