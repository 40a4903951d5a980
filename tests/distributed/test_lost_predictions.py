"""An actor that dies with many predictions under way is one loss, and is recorded as one."""

import json
import os
import signal

import pytest
import ray

from coterie.commands.compose import compose
from coterie.run import session
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

pytestmark = pytest.mark.ray

# The last evaluation is ten chunks of four batches, five on each of two actors.
RUN = (*SMALL, "executor=bare", "evaluation.batch_size=5", "evaluation.figures=false")


class Kills(Silent):
    """Ends an actor's process when the last evaluation begins."""

    backend = None

    def note(self, text):
        super().note(text)
        if self.backend and text == "Evaluating the final model.":
            actor = self.backend.fleet.actors[0]
            os.kill(ray.get(actor.ready.remote()), signal.SIGKILL)


@pytest.mark.slow
def test_a_dead_actor_counts_once_and_its_chunks_run_again(cluster, tmp_path, monkeypatch):
    make, view = session.make_backend, Kills()

    def remember(*args):
        view.backend = make(*args)
        return view.backend

    expected = Federation(
        compose(*RUN, "cluster=serial", f"run_dir={tmp_path / 'serial'}"), Silent()
    ).run()
    monkeypatch.setattr(session, "make_backend", remember)
    on_ray = (f"run_dir={tmp_path / 'run'}", "cluster.num_actors=2", "cluster.max_actor_restarts=1")
    result = Federation(compose(*RUN, *on_ray), view).run()
    assert result.metrics == expected.metrics
    assert result.assignments.tolist() == expected.assignments.tolist()
    assert result.exit_code == 0
    (failure,) = result.failures
    assert failure == (
        "round 4, evaluation: an actor failed (ActorDiedError); replaced, its work runs again"
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    (event,) = [row for row in rows if row["scope"] == "event"]
    assert (event["stage"], event["phase"], event["failure"]) == (
        "clustering",
        "evaluation",
        failure,
    )
    assert f"{failure}." in view.notes
