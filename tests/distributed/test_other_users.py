"""What another user of the machine can do to a local Ray: nothing."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
import ray
from ray._private import services

from coterie.config.schema import ClusterConfig
from coterie.distributed import session_folder
from coterie.distributed.address import clusters_here
from coterie.distributed.cluster import connect, disconnect
from coterie.distributed.local_ray import LocalRay
from coterie.distributed.session_folder import SessionFolder
from coterie.errors import RunError

NOBODY = 65534
ATTACKS = {
    "a link among the logs": 'ln -sf "$2" "$1/logs/gcs_server.out"',
    "another socket": 'rm -f "$1/sockets/plasma_store" && touch "$1/sockets/plasma_store"',
    "other code": 'mv "$1/runtime_resources" "$1/moved" && mkdir "$1/runtime_resources"',
    "a look": 'ls "$1/logs"',
}


def attack(how, session, mine):
    command = ["/bin/sh", "-c", ATTACKS[how], "attack", session, mine]
    return subprocess.run(command, user=NOBODY, group=NOBODY, check=False, capture_output=True)


def laid_out(path, mode):
    for part in ("", "logs", "sockets", "runtime_resources"):
        (path / "session" / part).mkdir(exist_ok=True, parents=True)
        (path / "session" / part).chmod(mode)
    (path / "session" / "sockets" / "plasma_store").touch()
    return path / "session"


as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def place(monkeypatch):
    """A short folder that everybody may look into, as /tmp."""
    path = Path("/tmp") / f"c{os.getpid()}"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setenv("RAY_TMPDIR", str(path))
    yield path
    shutil.rmtree(path)


@as_root
@pytest.mark.parametrize("how", ATTACKS)
def test_what_ray_lays_open_stays_closed(how, place):
    folder = SessionFolder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    session = laid_out(folder.path, 0o777)
    assert attack(how, session, place / "mine").returncode != 0
    folder.path.chmod(0o755)  # as Ray's own folder is: then it works
    assert attack(how, session, place / "mine").returncode == 0
    os.close(folder._lock)


@as_root
@pytest.mark.ray
@pytest.mark.usefixtures("no_cluster")
def test_a_local_ray_is_its_users_alone(tmp_path):
    connect(ClusterConfig())
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.is_relative_to("/tmp/")
    assert (session / "sockets").is_dir()
    for how in ATTACKS:
        assert attack(how, session, tmp_path / "mine").returncode != 0
    assert ray.get(ray.remote(num_cpus=0)(lambda: 1).remote()) == 1
    disconnect()
    local = LocalRay.running
    local._folder.chmod(0o755)  # as if Ray had made it: each attack works then
    for how in ATTACKS:
        assert attack(how, session, tmp_path / "mine").returncode == 0
    local._folder.chmod(0o700)
    local.end()
    local.process.wait(30)
    assert {path.name for path in session.iterdir()} <= {"logs"}


def test_what_was_left_is_gone_at_the_next_start(place):
    killed = SessionFolder()
    (killed.path / "session").mkdir()
    program = ["sleep", "600"]
    left = subprocess.Popen(["/bin/sh", "-c", '"$@"; :', f"{killed.path}/raylet", *program])
    while not Path(f"/proc/{left.pid}/cmdline").read_bytes():  # it is being executed
        time.sleep(0.01)
    running = SessionFolder()
    os.utime(killed.path, (0, 0))
    os.close(SessionFolder()._lock)
    assert killed.path.is_dir()  # its process runs
    os.close(killed._lock)
    third = SessionFolder()
    assert not killed.path.exists()
    assert running.path.is_dir()
    assert left.wait(10) == -signal.SIGKILL
    for each in (running, third):
        os.close(each._lock)
    session_folder.discard(running.path)
    assert not running.path.exists()


def test_a_folder_whose_process_ended_before_or_while_it_was_filled_is_removed(place):
    left = [place / name for name in ("coterie-abcdefgh", "coterie-ijklmnop")]
    for each in left:
        each.mkdir()
    (left[1] / "ray").mkdir()
    SessionFolder().close()
    assert all(each.is_dir() for each in left)  # another process may be making them
    for each in left:
        os.utime(each, (0, 0))
    SessionFolder().close()
    assert not any(each.exists() for each in left)


def test_nothing_of_somebody_else_is_removed(place):
    folder = place / "coterie-abcdefgh"
    folder.mkdir()
    (folder / "lock").touch()
    own = place / "coterie-examples"  # of the user, with a name like Coterie's
    own.mkdir()
    (own / "mine.txt").touch()
    os.utime(own, (0, 0))
    link = place / "coterie-linklink"
    link.symlink_to(folder)
    os.utime(folder, (0, 0))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    os.close(SessionFolder()._lock)
    assert folder.is_dir() or os.getuid()
    assert (own / "mine.txt").is_file()
    assert link.is_symlink()


@pytest.mark.parametrize("path", ["/tmp/" + "x" * 60, "/nowhere"])
def test_a_place_that_does_not_do_is_passed_over(monkeypatch, path):
    monkeypatch.setenv("RAY_TMPDIR", path)
    folder = SessionFolder()
    assert not folder.path.is_relative_to(path)
    folder.close()


@pytest.mark.parametrize("inner", ["", "own", "link"])
def test_a_place_where_everybody_may_rename_is_refused(place, monkeypatch, inner):
    place.chmod(0o777)
    (place / "own").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "own")
    monkeypatch.setenv("RAY_TMPDIR", str(place / inner))
    with pytest.raises(RunError, match=rf"may rename what is in {place}; chmod \+t that"):
        SessionFolder()


@as_root
@pytest.mark.parametrize("whose", ["group", "owner"])
def test_a_place_where_some_may_rename_is_refused(place, monkeypatch, whose):
    inner = place / "inner"
    inner.mkdir()
    os.chown(inner, NOBODY if whose == "owner" else 0, NOBODY)
    inner.chmod(0o775 if whose == "group" else 0o1777)
    (inner / "coterie-x").mkdir(mode=0o700)
    moved = ["mv", inner / "coterie-x", inner / "moved"]
    assert subprocess.run(moved, user=NOBODY, group=NOBODY, extra_groups=[], check=True)
    monkeypatch.setenv("RAY_TMPDIR", str(inner))
    told = {"group": "its group may rename what is in", "owner": "belongs to another user"}
    with pytest.raises(RunError, match=told[whose]):
        SessionFolder()
    os.chown(inner, 0, 0)  # its owner's group, which has no other member
    os.close(SessionFolder()._lock)


@as_root
def test_a_link_that_another_user_can_turn_is_refused(place, monkeypatch):
    (place / "own" / "i").mkdir(parents=True, mode=0o700)
    for name in ("l", "l/i"):
        with contextlib.suppress(FileExistsError):
            (place / "l").symlink_to(place / "own")
        monkeypatch.setenv("RAY_TMPDIR", str(place / name))
        os.close(SessionFolder()._lock)
        os.chown(place / "l", NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(RunError, match="l belongs to another user, who may rename"):
            SessionFolder()
        (place / "l").unlink()


@as_root
def test_a_cluster_that_another_user_pretends_to_have_is_not_found():
    name, flag = "/ray/core/src/ray/raylet/raylet", "--gcs-address=127.0.0.1:1"
    pretends = subprocess.Popen(
        [name, "-c", "sleep 60; :", flag], executable="/bin/sh", user=NOBODY, group=NOBODY
    )
    try:
        while name.encode() not in Path(f"/proc/{pretends.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        services.find_gcs_addresses.cache_clear()
        assert "127.0.0.1:1" in services.find_gcs_addresses()  # Ray itself would join it
        assert "127.0.0.1:1" not in clusters_here()
    finally:
        pretends.kill()
        pretends.wait()
    own = subprocess.Popen([name, "-c", "sleep 60; :", flag], executable="/bin/sh")
    try:
        while "127.0.0.1:1" not in clusters_here():
            time.sleep(0.01)
    finally:
        own.kill()
        own.wait()
