"""What `make check` runs."""

from tests.check import ROOT, mirror, touched, until


def test_the_mirrored_test_is_the_first() -> None:
    assert mirror("platform/coterie/rounds/loop.py") == "tests/unit/rounds/test_loop.py"
    assert mirror("modules/mcc.py") == "tests/unit/modules/test_mcc.py"
    assert touched(["platform/coterie/rounds/loop.py"])[0] == "tests/unit/rounds/test_loop.py"


def test_those_who_import_a_change_follow_by_their_distance() -> None:
    tests = touched(["modules/cfcl_device.py"])
    assert tests[0] == "tests/unit/modules/test_cfcl.py"
    assert "tests/parity/test_cfcl_round.py" in tests
    assert "tests/unit/modules/test_kfed.py" not in tests
    assert all((ROOT / test).is_file() for test in tests)


def test_a_change_of_a_test_or_of_a_builder_touches_its_users_alone() -> None:
    own = "tests/unit/modules/test_kfed.py"
    assert touched([own]) == [own]
    users = {own, "tests/unit/clustering/test_one_shot.py"}
    others = "concord ffcm kmeans noisy_lloyd noisy_prototypes prototypes synthesis turtle"
    users |= {f"tests/unit/modules/test_{method}.py" for method in others.split()}
    assert set(touched(["tests/builders/vectors.py"])) == users


def test_pages_touch_the_tests_of_the_documents() -> None:
    assert touched(["docs/methods.md"]) == ["tests/docs"]


def test_what_lint_takes_is_taken_from_the_tests_but_not_all() -> None:
    assert until(100.0, now=110.0) == 175.0
    assert until(100.0, now=170.0) == 190.0
