"""Files that a config names are opened if they are regular ones."""

import os
from pathlib import Path

import pytest

from coterie.config.availability_file import read_availability
from coterie.config.file_digest import files_untouched, with_digest
from coterie.config.regular_files import open_regular
from coterie.datamodules.partition_files import read_partition
from coterie.errors import ConfigError, DataError
from coterie.networks.weight_files import read_file


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    return str(tmp_path / "pipe.json")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/environ", "pipe", "no\0name", "."])
def test_devices_and_pipes_are_neither_digested_nor_read(path, pipe):
    path = pipe if path == "pipe" else path
    given = {"weights": path}
    assert with_digest(given, file="weights", digest="digest", section="encoder") == given
    with pytest.raises(ConfigError, match=r"encoder\.weights=.*: it (cannot be read|is a folder)"):
        read_file("encoder.weights", path)
    with pytest.raises(DataError, match="it cannot be read as parquet"):
        read_partition(Path(path), None)
    with pytest.raises((OSError, ValueError)):
        open_regular(Path(path))


@pytest.mark.timeout(60)
def test_a_pipe_of_clients_is_not_waited_for(pipe):
    with pytest.raises(ConfigError, match=r"cannot read it \(not a regular file\)"):
        read_availability(pipe, 3)


def test_a_config_that_is_only_shown_touches_no_file(tmp_path):
    (tmp_path / "w").write_text("x")
    given = {"weights": str(tmp_path / "w")}
    with files_untouched():
        assert with_digest(given, file="weights", digest="digest", section="encoder") == given
    found = with_digest(given, file="weights", digest="digest", section="encoder")
    assert len(found["digest"]) == 64
