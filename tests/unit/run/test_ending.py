"""The error that ends a run: of its own code, or of a checkpoint that is not its method's."""

import pytest

from coterie import compose
from coterie.errors import DataError, RunError
from coterie.run.ending import ending

NEW = compose("experiment=kmeans_digits")
RESUMED = NEW.model_copy(update={"resume": True, "run_dir": "runs/x"})


def raised(work):
    """What calling it raises, with its traceback from there on."""
    with pytest.raises(ValueError, match="users") as found:
        work()
    return found.value.with_traceback(found.tb.tb_next)


def test_an_error_of_the_users_code_stays_as_it_is():
    def callback():
        raise ValueError("the users own")

    error = raised(callback)
    assert ending(error, RESUMED, trained=False) is error


@pytest.mark.parametrize("error", [KeyError("best"), RuntimeError("cdist"), ValueError("shape")])
def test_what_a_resumed_state_leads_to_is_the_checkpoints_fault(error):
    found = ending(error, RESUMED, trained=False)
    assert isinstance(found, DataError)
    assert str(found).startswith("run_dir=runs/x: its checkpoint does not fit coterie.modules.kmea")
    assert ending(error, RESUMED, trained=True) is error
    assert ending(error, NEW, trained=False) is error


def test_other_errors_stay_as_they_are():
    for error in (KeyboardInterrupt(), RunError("it failed"), OSError("full")):
        assert ending(error, RESUMED, trained=False) is error


def test_an_exit_of_loaded_code_has_not_completed_the_run():
    found = ending(SystemExit(0), NEW, trained=True)
    assert isinstance(found, RunError)
    assert "remove the exit, and go on with resume=true" in str(found)
