"""`failures.log`: each kind of failure once, and no more than a mebibyte."""

from pathlib import Path

from coterie.contract.phase import Phase
from coterie.execution.events import ClientFailed
from coterie.tracking.failure_log import FailureLog

PHASE = Phase(name="training", stage="all", round=3)


def failed(client: int, trace: str) -> ClientFailed:
    return ClientFailed(call=1, client=client, message="no", trace=trace)


def test_the_first_of_each_kind_is_written_and_told_once(tmp_path: Path) -> None:
    notes: list[str] = []
    log = FailureLog(tmp_path / "failures.log", notes.append)
    log.write(PHASE, failed(1, ""))
    assert (list(tmp_path.iterdir()), notes) == ([], [])
    log.write(PHASE, failed(1, "line 1\nValueError: of client 1"))
    log.write(PHASE, failed(2, "line 1\nValueError: of client 2"))
    log.write(PHASE, failed(3, "line 1\nKeyError: 3"))
    log.write(PHASE, failed(4, "line 2\nValueError: of client 4"))
    assert (tmp_path / "failures.log").read_text() == (
        "round 3, training: client 1\nline 1\nValueError: of client 1\n\n"
        "round 3, training: client 3\nline 1\nKeyError: 3\n\n"
        "round 3, training: client 4\nline 2\nValueError: of client 4\n\n"
    )
    assert notes == [f"Tracebacks of what fails: {tmp_path / 'failures.log'}."]


def test_a_copy_by_hard_links_is_written_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "failures.log", tmp_path / "other.log"
    other.write_text("other\n")
    path.hardlink_to(other)
    FailureLog(path, lambda note: None).write(PHASE, failed(1, "line 1\nValueError: of client 1"))
    assert other.read_text() == "other\n"
    assert path.read_text().startswith("other\nround 3, training: client 1")


def test_it_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "failures.log"
    for _ in range(2):  # a resumed run appends
        log = FailureLog(path, lambda note: None)
        for line in range(200):
            log.write(PHASE, failed(1, f"line {line}\n" + "x" * 10_000))
    assert 1_000_000 < path.stat().st_size <= 1 << 20


def test_a_log_that_cannot_be_written_ends_nothing_and_is_told_once(tmp_path: Path) -> None:
    notes: list[str] = []
    log = FailureLog(tmp_path / "gone" / "failures.log", notes.append)
    log.write(PHASE, failed(1, "File \udcff, line 1\nValueError: 1"))
    log.write(PHASE, failed(1, "line 2\nValueError: 2"))
    (told,) = notes
    assert told.startswith("The traceback of a failure cannot be written ([Errno 2]")
