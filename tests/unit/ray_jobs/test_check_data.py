"""`coterie check_data`: what is in a data set, and what is wrong with it."""

import csv

import numpy as np
import pytest
from PIL import Image

from coterie.jobs.check_data import main


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures of two classes; two are the same, in both classes, and two are bad."""
    rng = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (30, 40, 3) if number % 3 else (40, 40)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
    pictures = tmp_path / "pictures"
    (pictures / "b" / "copy.png").write_bytes((pictures / "a" / "02.png").read_bytes())
    (pictures / "a" / "bad.png").write_bytes(b"no picture")
    (pictures / "b" / "empty.jpg").write_bytes(b"")
    return pictures


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_report_tells_all_in_one_pass(folder, tmp_path, capsys):
    out = tmp_path / "check"
    assert main(["data=class_folders", f"data.path={folder}", f"out={out}"]) == 1
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for expected in (
        "samples 13",
        "2 sizes 30×40: 9, 40×40: 4",
        "2 modes RGB: 9, L: 4",
        "2 classes b: 7, a: 6",
        "other shape 9: choose data.fit",
        "cannot be read 2",
        "a/bad.png: is not a readable picture",
        "b/empty.jpg: is empty (0 bytes)",
        "1 samples are there more than once, 1 of them in two classes or halves",
    ):
        assert expected in shown
    assert [row[1] for row in rows(out / "unreadable.csv")] == [
        "reason",
        "is not a readable picture",
        "is empty (0 bytes)",
    ]
    found = [[row[0], row[1], row[2], row[3][-8:]] for row in rows(out / "duplicates.csv")[1:]]
    assert found == [["0", "train", "a", "a/02.png"], ["0", "train", "b", "copy.png"]]
    with Image.open(out / "contact_sheet.png") as sheet:
        assert len(sheet.getcolors(10**6)) > 1000


def test_a_variable_stands_for_its_value(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PICTURES", str(folder))
    given = ["data=class_folders", f"out={tmp_path}/check"]
    assert main([*given, "data.path=${oc.env:PICTURES}"]) == 1
    assert (tmp_path / "check" / "unreadable.csv").is_file()
    capsys.readouterr()
    assert main([*given, "data.path=${oc.env:NO_PICTURES}"]) == 2
    error = capsys.readouterr().err
    assert "data.path=${oc.env:NO_PICTURES}: the config does not compose:" in error.replace(
        "\n", " "
    )


def test_samples_without_a_label_are_no_class(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        Image.fromarray(np.zeros((8, 8), np.uint8) + ord(name)).save(tmp_path / f"{name}.png")
    table = "path;kind\r\na.png;1\r\nb.png;2\r\nc.png;\r\n"
    (tmp_path / "list.csv").write_text(table, encoding="utf-8-sig")
    assert main(["data=manifest", "data.path=list.csv", "data.label_column=kind"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "2 classes 1: 1, 2: 1 without label 1" in shown


def test_data_in_order_gives_zero_and_no_lists(folder, tmp_path):
    for name in ("a/bad.png", "b/empty.jpg", "b/copy.png"):
        (folder / name).unlink()
    out = tmp_path / "check"
    assert main(["data=client_folders", f"data.path={folder}", f"out={out}"]) == 0
    assert [path.name for path in out.iterdir()] == ["contact_sheet.png"]


def test_icons_are_shown_with_the_ground_that_they_get(tmp_path, capsys):
    (tmp_path / "icons").mkdir()
    for number in range(3):
        icon = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
        icon.putpixel((number, number), (0, 0, 0, 255))
        icon.save(tmp_path / "icons" / f"{number}.png")
    data = ("data=image_folder", f"data.path={tmp_path / 'icons'}")
    assert main([*data, f"out={tmp_path / 'check'}"]) == 0
    assert "on white: 3: see data.background" in capsys.readouterr().out


def test_names_in_the_data_are_no_markup_and_no_escapes(folder, tmp_path, capsys):
    names = ["[/b]", "[red]x", "\x1b[2J\x1b]0;title\x07a", "=cmd|calc"]
    files = sorted(folder.glob("?/*.png"))[:12]
    rows = [[str(path), name] for path, name in zip(files, names * 3, strict=True)]
    with (tmp_path / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    out = tmp_path / "check"
    manifest = ("data=manifest", f"data.path={tmp_path / 'm.csv'}", "data.label_column=label")
    main([*manifest, f"out={out}"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[/b]: 3, [red]x: 3" in shown


def test_a_runs_command_line_is_taken_as_it_is(folder, tmp_path):
    data = ("data=client_folders", f"data.path={folder}", f"out={tmp_path / 'check'}")
    run = ("experiment=concord", "partition=by_client", "partition.clients=2", "method.clusters=3")
    assert main([*run, *data, "seed=1", "~method.rounds", "run_dir=runs/mine"]) == 1
    assert main([*data, "partitoin=by_client"]) == 2
    assert main([*data, "data.paht=x", "partition=by_client"]) == 2


def test_vectors_have_no_sheet(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", samples=np.ones((3, 5)))
    out = tmp_path / "check"
    assert main(["data=npz", f"data.path={tmp_path / 'x.npz'}", f"out={out}"]) == 0
    shown = capsys.readouterr()
    assert "3 samples" not in shown.err
    assert "number of features" in shown.out
    assert "mode" not in shown.out
    assert [path.name for path in out.iterdir()] == ["duplicates.csv"]


def test_a_class_is_named_by_its_path(folder, tmp_path, capsys):
    target = "data.target=coterie.datamodules.folders:ClassFolders"
    assert main([target, f"data.path={folder}", f"out={tmp_path / 'check'}"]) == 1
    assert "samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["data.target=coterie.datamodules.folders:Nothing"], "Nothing"),
        (["data=class_folders", "data.path=gone"], "gone: there is no such folder"),
        (["data=node_local", "data.clients={a: x}"], "its samples are not in one place"),
        ([], "data: none is chosen"),
        (["data=class_folders", "data.path=x", "data.fit=crop"], "fit has no effect without size"),
        (["data=class_folders", "data.path=x", "data.levels=[5,5]"], "give the lower one first"),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("widest", "told"), [(1000, True), (2, False)])
def test_columns_of_unlike_scales_are_told_with_their_ranges(tmp_path, capsys, widest, told):
    rows = "".join(f"{n / 10},{n % 3},{n % 5 * widest}\n" for n in range(20))
    (tmp_path / "t.csv").write_text(f"a,b,c\n{rows}")
    given = ["data=manifest", f"data.path={tmp_path / 't.csv'}", f"out={tmp_path / 'out'}"]
    assert main(given) == 0
    found = " ".join(capsys.readouterr().out.split())
    assert ("'data.feature_ranges={a: [0, 1.9], b: [0, 2], c: [0, 4000]}'" in found) is told


def test_what_is_left_out_of_a_table_is_told_once(tmp_path, caplog):
    path = tmp_path / "t.csv"
    path.write_text("a,b,text\n1,5000,x\n2,1,y\n3,9,z\n")
    assert main(["data=manifest", f"data.path={path}", f"out={tmp_path}/out"]) == 0
    told = [record.getMessage() for record in caplog.records]
    assert sum("left out of the features" in each for each in told) == 1
    assert sum("its features are the columns" in each for each in told) == 1


def test_a_link_in_its_folder_is_replaced_and_not_followed(tmp_path):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for name in "ab":
        Image.new("L", (8, 8), 9).save(tmp_path / "pictures" / f"{name}.png")
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("kept")
    (out / "contact_sheet.png").symlink_to(victim)
    keys = ["data=image_folder", f"data.path={tmp_path / 'pictures'}", f"out={out}"]
    assert main(keys) == 0
    assert victim.read_text() == "kept"
    assert Image.open(out / "contact_sheet.png").width > 8


def test_lists_of_another_data_set_do_not_stay(folder, tmp_path):
    out = tmp_path / "out"
    keys = ["data=class_folders", f"data.path={folder}", f"out={out}"]
    main(keys)
    assert (out / "unreadable.csv").exists()
    assert main(["data=digits", f"out={out}"]) == 0
    assert not (out / "unreadable.csv").exists()
