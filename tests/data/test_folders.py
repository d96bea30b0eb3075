"""Classes and splits: the class list of train holds everywhere, junk stays out, a made split repeats."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyramidvit.data.folders import ClassData, read_class_data
from pyramidvit.errors import UserError
from pyramidvit.files import write_text


def tree(root: Path, *names: str) -> Path:
    """Create empty files; names that end in a slash become folders."""
    for name in names:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(name.encode())
    return root


def labels(data: ClassData, split: str) -> list[tuple[str, str]]:
    return [(item.path.relative_to(data.root).as_posix(), data.classes[item.label]) for item in data.splits[split]]


@pytest.mark.parametrize("empty", [False, True])
def test_a_class_missing_in_val_does_not_shift_the_others(tmp_path: Path, empty: bool) -> None:
    """PB-30: train {0, 90, 180, 270}, val without 180 or with an empty folder of it."""
    tree(tmp_path, *(f"train/{angle}/a.png" for angle in (0, 90, 180, 270)), *(f"val/{angle}/b.png" for angle in (0, 90, 270)))
    if empty:
        tree(tmp_path, "val/180/")
    data = read_class_data(tmp_path)
    assert data.classes == ("0", "180", "270", "90")
    assert labels(data, "val") == [("val/0/b.png", "0"), ("val/270/b.png", "270"), ("val/90/b.png", "90")]
    assert not data.made_split


def test_an_unknown_class_in_val_is_an_error(tmp_path: Path) -> None:
    """PB-30."""
    tree(tmp_path, "train/cat/a.png", "train/dog/a.png", "val/cat/b.png", "val/dgo/b.png", "val/empty/")
    with pytest.raises(UserError, match=r"val split.*'dgo' \(1 pictures\).*Did you mean dog"):
        read_class_data(tmp_path)


def test_a_given_class_list_is_imposed(tmp_path: Path) -> None:
    tree(tmp_path, "b/1.png", "a/1.png")
    assert read_class_data(tmp_path, classes=["b", "c", "a"]).classes == ("b", "c", "a")
    with pytest.raises(UserError, match="'b'"):
        read_class_data(tmp_path, classes=["a", "c"])


def test_an_empty_training_folder_keeps_its_class(tmp_path: Path) -> None:
    tree(tmp_path, "train/a/1.png", "train/b/", "val/b/1.png")
    data = read_class_data(tmp_path)
    assert data.classes == ("a", "b")
    assert labels(data, "val") == [("val/b/1.png", "b")]


def test_junk_is_ignored_and_named_once(tmp_path: Path) -> None:
    """PB-31."""
    junk = [".ipynb_checkpoints/a-checkpoint.png", ".DS_Store", "__MACOSX/cat/._a.png", "Thumbs.db", "@eaDir/a.png"]
    tree(tmp_path, "cat/a.png", "cat/.hidden.png", "cat/notes.txt", "cat/@eaDir/x.png", "dog/b.JPG", *junk)
    data = read_class_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert sum(map(len, data.splits.values())) == 2
    names = [path.relative_to(tmp_path).as_posix() for path in data.ignored]
    tops = [".DS_Store", ".ipynb_checkpoints", "@eaDir", "Thumbs.db", "__MACOSX"]
    assert names == sorted([*tops, "cat/.hidden.png", "cat/@eaDir", "cat/notes.txt"])


@pytest.mark.parametrize("name", ["valid", "validation", "test", "Val"])
def test_names_of_the_second_split(tmp_path: Path, name: str) -> None:
    tree(tmp_path, "train/a/1.png", f"{name}/a/2.png", "README.md", "docs/")
    data = read_class_data(tmp_path)
    assert labels(data, "val") == [(f"{name}/a/2.png", "a")]
    assert [path.name for path in data.ignored] == ["README.md", "docs"]


def test_val_goes_before_test(tmp_path: Path) -> None:
    tree(tmp_path, "train/a/1.png", "test/a/2.png", "val/a/3.png")
    data = read_class_data(tmp_path)
    assert labels(data, "val") == [("val/a/3.png", "a")]
    assert [path.name for path in data.ignored] == ["test"]


def test_train_alone_is_split_and_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    one = read_class_data(tree(tmp_path / "one", *(f"train/{c}/{i}.png" for c in "ab" for i in range(10)), "models/x.bin"))
    assert one.made_split
    assert one.classes == ("a", "b")
    two = read_class_data(tree(tmp_path / "two", "bus/1.png", "car/1.png", "train/1.png"))
    assert two.classes == ("bus", "car", "train")
    only_val = read_class_data(tree(tmp_path / "three", "val/a/1.png"))
    assert (only_val.splits["train"], len(only_val.splits["val"])) == ((), 1)


def test_class_folders_alone_are_split_by_class_and_the_split_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PB-33: seeded, stratified, the same whatever the order of the listing; a class of one picture stays in train."""
    tree(tmp_path, *(f"{c}/{i}.png" for c in "ab" for i in range(10)), "lone/1.png", "pair/1.png", "pair/2.png")
    data = read_class_data(tmp_path)
    assert data.made_split
    assert Counter(name for _, name in labels(data, "val")) == {"a": 2, "b": 2, "pair": 1}
    assert Counter(name for _, name in labels(data, "train")) == {"a": 8, "b": 8, "lone": 1, "pair": 1}
    listing = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: sorted(listing(path), reverse=True))
    assert read_class_data(tmp_path) == data
    monkeypatch.undo()
    assert read_class_data(tmp_path, seed=1).splits != data.splits
    relabelled = [{labels(read_class_data(tmp_path, seed=seed), "val")[0] for seed in range(20)}]
    assert len(relabelled[0]) > 3  # the seed really decides
    elsewhere = tree(tmp_path / "copy", *(f"{c}/{i}.png" for c in "ab" for i in range(10)), "lone/1.png", "pair/1.png", "pair/2.png")
    assert labels(read_class_data(elsewhere), "val") == labels(data, "val")  # where the folder lies doesn't


def test_a_saved_split_is_read_back_and_may_have_moved(tmp_path: Path) -> None:
    """PB-33: written to disk, reused."""
    data = read_class_data(tree(tmp_path / "a", *(f"{c}/{i}.png" for c in "xy" for i in range(5)), "x/.junk"))
    saved = json.loads(json.dumps(data.to_json()))
    assert ClassData.from_json(saved) == data
    (tmp_path / "a").rename(tmp_path / "b")
    moved = ClassData.from_json(saved, root=tmp_path / "b")
    assert moved.splits["val"][0].path.is_file()
    for key, value in (("classes", ["x"]), ("splits", {}), ("splits", {"train": [["../../etc/passwd", 0]], "val": []})):
        with pytest.raises(UserError, match="saved split"):
            ClassData.from_json({**saved, key: value})


def test_fingerprint_follows_names_sizes_and_labels(tmp_path: Path) -> None:
    tree(tmp_path / "a", "x/1.png", "y/2.png")
    first = read_class_data(tmp_path / "a").fingerprint
    assert read_class_data(tmp_path / "a", seed=5, classes=["y", "x"]).fingerprint == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert read_class_data(tmp_path / "b").fingerprint == first
    data = read_class_data(tmp_path / "b")
    (tmp_path / "b/x/1.png").write_bytes(b"longer than before")
    assert data.fingerprint != first
    longer = data.fingerprint
    (tmp_path / "b/x/1.png").unlink()
    assert data.fingerprint not in (first, longer)


def test_a_link_that_leads_nowhere_is_listed_as_the_bad_file_it_is(tmp_path: Path) -> None:
    """Whoever reads it says so, or skips it when asked to; the fingerprint tells whether it was there."""
    tree(tmp_path, "x/1.png", "y/2.png")
    (tmp_path / "x/gone.png").symlink_to(tmp_path / "nowhere.png")
    data = read_class_data(tmp_path)
    assert tmp_path / "x/gone.png" in [item.path for items in data.splits.values() for item in items]
    before = data.fingerprint
    (tmp_path / "nowhere.png").write_bytes(b"")
    assert data.fingerprint != before


def run_folder(root: Path, name: str) -> None:
    tree(root, f"{name}/config.yaml", f"{name}/checkpoints/", f"{name}/predictions/cat-1.png", f"{name}/plots/confusion.png")


@pytest.mark.parametrize("layout", [("cat/1.png", "dog/2.png"), ("train/cat/1.png", "train/dog/2.png"), ("val/cat/1.png", "val/dog/2.png")])
@pytest.mark.parametrize("where", ["runs/classify/a", "runs/a", "a"])
def test_runs_beside_the_pictures_are_no_class(tmp_path: Path, layout: tuple[str, ...], where: str) -> None:
    """Training in the folder of the pictures puts runs/ beside the classes."""
    before = read_class_data(tree(tmp_path, *layout))
    run_folder(tmp_path, where)
    run_folder(tmp_path, where + "-2")
    if where != "a":
        tree(tmp_path, "runs/.DS_Store")
    after = read_class_data(tmp_path)
    assert (after.classes, after.splits, after.fingerprint) == (before.classes, before.splits, before.fingerprint)
    assert [path.name for path in after.ignored] == (["a", "a-2"] if where == "a" else ["runs"])


def test_a_class_with_a_run_in_it_stays_a_class(tmp_path: Path) -> None:
    tree(tmp_path, "runs/1.png", "walks/1.png", "runs/more/2.png", "odd/config.yaml", "odd/1.png", "empty/")
    run_folder(tmp_path, "runs/classify/a")
    data = read_class_data(tmp_path)
    assert data.classes == ("empty", "odd", "runs", "walks")
    assert Counter(name for split in data.splits for _, name in labels(data, split)) == {"runs": 2, "odd": 1, "walks": 1}
    assert "runs/classify" in [path.relative_to(tmp_path).as_posix() for path in data.ignored]


def test_names_that_are_no_utf8_come_back_from_a_saved_split(tmp_path: Path) -> None:
    tree(tmp_path, "x/1.png", "y/2.png")
    (tmp_path / os.fsdecode(b"x/b\xff.png")).write_bytes(b"")
    (tmp_path / os.fsdecode(b"\xfe")).mkdir()
    (tmp_path / os.fsdecode(b"\xfe/1.png")).write_bytes(b"")
    data = read_class_data(tmp_path)
    write_text(tmp_path / "data.json", json.dumps(data.to_json(), ensure_ascii=False))
    back = ClassData.from_json(json.loads((tmp_path / "data.json").read_text(encoding="utf-8")))
    assert (back.classes, back.splits, back.fingerprint) == (data.classes, data.splits, data.fingerprint)
    assert all(item.path.is_file() for items in back.splits.values() for item in items)


def test_a_path_that_is_too_long_is_said_like_any_other(tmp_path: Path) -> None:
    tree(tmp_path, "1.png")
    with pytest.raises(UserError, match=r"line 2: there is no file .*xxx") as caught:
        read_class_data(write(tmp_path, "1.png,a\n" + "x" * 5000 + ".png,b\n"))
    assert len(str(caught.value)) < 1000
    with pytest.raises(UserError, match="no folder or CSV file"):
        read_class_data(tmp_path / ("x" * 5000))


def test_files_below_a_class_folder_count_to_it_and_circles_end(tmp_path: Path) -> None:
    tree(tmp_path, "a/1.png", "a/b/2.png", "a/b/c/3.png", "d/1.png")
    (tmp_path / "a/b/again").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "linked").symlink_to(tmp_path / "d", target_is_directory=True)
    data = read_class_data(tmp_path)
    assert Counter(name for split in data.splits for _, name in labels(data, split)) == {"a": 3, "d": 1, "linked": 1}


def write(root: Path, text: str | bytes, name: str = "list.csv") -> Path:
    path = root / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "a 1.png,0\nsub/b.png,07\n",
        "path,label\r\na 1.png,0\r\n\r\nsub/b.png,07\r\n",
        "\ufefffile,label\na 1.png, 0\nsub/b.png, 07\n",
        'label,width,path\n0,5,"a 1.png"\n"07",5,"./sub/b.png"\n',
    ],
    ids=["plain", "header and CRLF", "BOM and spaces", "quotes and other columns"],
)
def test_csv_of_path_and_label(tmp_path: Path, text: str) -> None:
    """Labels are names, so 07 stays 07."""
    tree(tmp_path, "a 1.png", "sub/b.png")
    data = read_class_data(write(tmp_path, text))
    assert data.classes == ("0", "07")
    assert labels(data, "train") == [("a 1.png", "0"), ("sub/b.png", "07")]
    assert data.made_split
    assert data.root == tmp_path


def test_folder_with_train_and_val_csv(tmp_path: Path) -> None:
    tree(tmp_path, "1.png", "2.png", "3.png")
    write(tmp_path, "1.png,cat\n2.png,dog\n", "train.csv")
    write(tmp_path, "3.png,dog\n", "val.csv")
    data = read_class_data(tmp_path)
    assert labels(data, "val") == [("3.png", "dog")]
    write(tmp_path, "3.png,cow\n", "val.csv")
    with pytest.raises(UserError, match="'cow'"):
        read_class_data(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("path,label\n", "no rows"),
        ("1.png,cat\nmissing.png,cat\n", "line 2: there is no file"),
        ("1.png,cat\n../secret.png,cat\n", "line 2: '../secret.png'"),
        ("/etc/passwd,cat\n", "line 1: '/etc/passwd'"),
        ("1.png,\n", "line 1: 1.png has no label"),
        ("1.png;cat\n", "line 1: expected path,label separated by a comma"),
        ("1.png,cat,extra\n", "line 1: expected path,label"),
        ("path,label\n1.png,cat\n./1.png,dog\n", "line 3: ./1.png is already in line 2"),
        ('1.png,cat\n"1.png,dog', "after line 1"),
        (b"1.png,caf\xe9\n", "UTF-8"),
        ("1.png\0,cat\n", "Can't read|line 1"),
        ("".join(f"{i}x.png,a\n" for i in range(50)), "50 wrong lines(.|\n)*and 40 more"),
    ],
)
def test_wrong_csv_names_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    tree(tmp_path, "1.png")
    with pytest.raises(UserError, match=message):
        read_class_data(write(tmp_path, text))


@pytest.mark.parametrize(
    ("names", "target", "message"),
    [
        ((), "missing", "no folder or CSV file"),
        (("photos/a/1.png",), "photo", "Did you mean photos"),
        (("x.png",), "x.png", "is a file"),
        (("a/",), ".", "No pictures"),
        (("a/readme.txt",), ".", "No pictures.*Left out: a/readme.txt"),
        (("1.png", "2.png"), ".", "no class folders"),
        (("train/1.png", "val/a/1.png"), ".", "train holds pictures but no class folders"),
        (("train/a/", "val/a/1.png"), ".", "No pictures in the train split"),
    ],
)
def test_messages_for_what_is_not_there(tmp_path: Path, names: Iterable[str], target: str, message: str) -> None:
    tree(tmp_path, *names)
    with pytest.raises(UserError, match=message):
        read_class_data(tmp_path / target)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_folder_that_may_not_be_listed(tmp_path: Path) -> None:
    tree(tmp_path, "a/1.png", "b/1.png")
    (tmp_path / "a").chmod(0)
    with pytest.raises(UserError, match="Can't list"):
        read_class_data(tmp_path)
    (tmp_path / "a").chmod(0o700)


def test_grocery_photos(shared: Path) -> None:
    data = read_class_data(shared / "data/grocery")
    assert len(data.classes) == 43
    assert len(data.splits["train"]) + len(data.splits["val"]) > 1000
    assert data.ignored == ()
