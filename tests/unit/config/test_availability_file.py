"""Lists of the clients present in each round: the forms they come in, and what is refused."""

import hashlib

import pytest

from coterie.commands.compose import compose
from coterie.config.availability_file import read_availability
from coterie.config.file_digest import with_digest
from coterie.config.loading import dump_config
from coterie.config.participation import ParticipationConfig
from coterie.errors import ConfigError
from coterie.run.same_run import check_same_run

ROUNDS = (frozenset({0, 1, 4}), frozenset(), frozenset({2}))


def written(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def test_a_list_a_json_file_and_a_csv_file_say_the_same(tmp_path):
    assert read_availability(((4, 0, 1), (), (2, 2)), 5) == ROUNDS
    assert read_availability(written(tmp_path, "a.json", "[[0,1,4],[],[2]]"), 5) == ROUNDS
    lines = "round, client\n1,4\n3,2\n1,0\n1, 1\n"
    assert read_availability(written(tmp_path, "a.csv", lines), 5) == ROUNDS


@pytest.mark.parametrize("end", ["\n", "\r\n", ",\r\n", " , \n\n"])
def test_what_a_spreadsheet_adds_says_nothing(tmp_path, end):
    lines = f"\ufeffround,client\n1,4\n3,2\n1,0\n1,1\n{end}"
    assert read_availability(written(tmp_path, "a.csv", lines), 5) == ROUNDS


FILES = [
    ("a.txt", "", "give a .json or a .csv file."),
    ("a.json", "[[0],\n[1", "line 2 is not JSON; correct it."),
    ("a.json", '{"1": [0]}', "write a list of lists of clients, such as [[0, 1], [2]]."),
    ("a.json", "[[0], [true]]", "write a list of lists of clients, such as [[0, 1], [2]]."),
    ("a.json", "[]", "it lists no rounds; give each round its clients."),
    ("a.csv", "round,client\n", "it lists no rounds; give each round its clients."),
    ("a.csv", "client,round\n1,1\n", "its first line must be round,client."),
    ("a.csv", "round,client\n1,1\n1,x\n", "line 3 is 1,x; write two whole numbers."),
    ("a.csv", "round,client\n0,1\n", "line 2 has round 0; count from 1 to 1,000,000."),
    (
        "a.csv",
        "round,client\n300000000,0\n",
        "line 2 has round 300000000; count from 1 to 1,000,000.",
    ),
    (
        "a.csv",
        f"round,client\n{'1' * 200_000},0\n",
        "it is not CSV (field larger than field limit (131072)); correct it.",
    ),
    ("a.json", "[" * 100_000, "it is not a list of rounds; correct it."),
    ("a.json", f"[[{'1' * 5001}]]", "it is not a list of rounds; correct it."),
    ("a.json", "[[0], [9]]", "round 2 names client 9; there are 5 clients, from 0 to 4."),
    ("a.csv", "round,client\n1,-1\n", "round 1 names client -1; there are 5 clients, from 0 to 4."),
]


@pytest.mark.parametrize(("name", "text", "sentence"), FILES)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, name, text, sentence):
    path = written(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        read_availability(path, 5)
    assert str(caught.value) == f"participation.availability={path}: {sentence}"


def test_a_missing_file_and_a_bad_list_are_refused():
    with pytest.raises(ConfigError) as caught:
        read_availability("no/such.json", 5)
    assert str(caught.value) == (
        "participation.availability=no/such.json: cannot read it (No such file or directory); "
        "check the path."
    )
    with pytest.raises(ConfigError) as caught:
        read_availability(((0,), (5,)), 5)
    assert str(caught.value) == (
        "participation.availability: round 2 names client 5; there are 5 clients, from 0 to 4."
    )


def test_a_run_is_not_resumed_with_another_list(tmp_path):
    file = written(tmp_path, "a.json", "[[0, 1]]")
    keys = ["experiment=fedmcc_digits", f"participation.availability={file}"]
    stored = dump_config(compose(*keys))
    check_same_run(stored, compose(*keys))
    written(tmp_path, "a.json", "[[0, 2]]")
    with pytest.raises(ConfigError, match=r"run had participation\.availability_digest="):
        check_same_run(stored, compose(*keys))


def test_a_file_that_cannot_be_read_is_left_to_its_reader():
    given = {"availability": "/proc/self/mem"}  # a file whose first byte nobody can read
    assert with_digest(given, file="availability", digest="d", section="s") == given


def test_a_digest_that_is_given_has_to_be_the_files(tmp_path):
    file = written(tmp_path, "a.csv", "round,client\n1,0\n")
    own = ParticipationConfig(availability=file).availability_digest
    assert own == hashlib.sha256(b"round,client\n1,0\n").hexdigest()
    ParticipationConfig(availability=file, availability_digest=own)
    with pytest.raises(
        ConfigError, match=r"participation\.availability_digest=ab: the file .*a\.csv has"
    ):
        ParticipationConfig(availability=file, availability_digest="ab")
