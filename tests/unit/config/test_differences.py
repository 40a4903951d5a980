from coterie.commands.compose import compose
from coterie.config.differences import changed_keys


def test_only_what_differs_is_there_in_the_order_of_the_config():
    given = ("experiment=fedmcc_digits", "seed=3", "tracking=csv", "method.batch_size=9")
    changed = changed_keys(compose(*given))
    assert changed["method"] == "coterie.modules.fedmcc:FedMCC"
    assert changed["method.batch_size"] == 9
    assert (changed["seed"], changed["tracking.loggers"]) == (3, ["csv"])
    assert "checkpoint.keep" not in changed
    assert "resume" not in changed
    assert list(changed)[:2] == ["experiment", "seed"]


def test_a_key_back_at_its_default_is_gone():
    assert "seed" not in changed_keys(compose("experiment=fedmcc_digits", "seed=0"))
