"""A study writes to the folder that it has opened, whatever is put in its place meanwhile."""

import shutil

import pytest

from coterie.errors import RunError
from coterie.studies.study import WRITTEN, Study


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "comparison.yaml").write_text("{}")
    return Study(kind="comparison", folder=folder, runs=())


def move(folder):
    folder.rename(folder.with_name("away"))


def delete(folder):
    shutil.rmtree(folder)


def replace_by_link(folder):
    move(folder)
    folder.symlink_to(folder.with_name("victim"))


def replace_by_copy(folder):
    move(folder)
    shutil.copytree(folder.with_name("away"), folder)


def lose_its_plan(folder):
    (folder / "comparison.yaml").unlink()


@pytest.mark.parametrize("change", [move, delete, replace_by_link, replace_by_copy, lose_its_plan])
def test_it_does_not_go_on_in_another_folder(study, change):
    with study.opened() as check:
        check()
        change(study.folder)
        with pytest.raises(RunError, match="was moved, deleted or replaced while its runs"):
            check()


@pytest.mark.parametrize("name", WRITTEN)
def test_it_does_not_write_through_links_that_are_put_into_it(study, name):
    with study.opened() as check:
        (study.folder / name).symlink_to(study.folder.with_name("victim"))
        with pytest.raises(RunError, match="it has become a link"):
            check()


def test_a_folder_that_is_a_link_from_the_start_is_one(study, tmp_path):
    (tmp_path / "link").symlink_to(study.folder)
    with Study(kind="comparison", folder=tmp_path / "link", runs=()).opened() as check:
        check()
