"""What a build says of names, folders and images that may be a mistake."""

import shlex
import unicodedata
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import BuildOptions, open_dataset, plan_build
from ringfeed.sharding.prepare import ImageOptions, PrepareOptions, parse_encoding, parse_step
from tests.helpers.builds import built

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
KEPT_APART = r"differ only in their Unicode form, such as 'caf\xe9' and 'cafe\u0301'; they are kept apart: "


def plan(source: Path, label: str | None = None, **options: object) -> None:
    prepare = PrepareOptions(**options)  # type: ignore[arg-type]
    plan_build(BuildOptions(source=str(source), destination=f"{source}.out", label=label, prepare=prepare))


def picture(path: Path, orientation: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (8, 6)).save(path, exif=exif)


@pytest.mark.parametrize(
    ("name", "index", "shown"),
    [
        ("a.parquet", "__index_level_0__", "__index_level_0__"),
        ("a.csv", "", "''"),
        ("again.csv", "Unnamed: 0", "'Unnamed: 0'"),
    ],
)
def test_the_index_of_a_data_frame_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, index: str, shown: str
) -> None:
    frame = pd.DataFrame({"x": [1, 2, 3]}, index=[5, 6, 7])
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv")
    pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "again.csv", index=False)
    plan(tmp_path / name)
    assert caplog.messages == [
        f"the column {index!r} is the index of a pandas DataFrame, and is stored like the others; leave it "
        f"out with --drop-columns {shown}"
    ]
    caplog.clear()
    (text,) = shlex.split(shown)
    plan(tmp_path / name, steps=(parse_step("--drop-columns", text, folder=""),))
    assert not caplog.messages


def test_classes_and_columns_that_differ_in_their_unicode_form_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"y": [COMPOSED, DECOMPOSED, "tea"] * 2, COMPOSED: range(6), DECOMPOSED: range(6)})
    pq.write_table(table, tmp_path / "a.parquet")
    plan(tmp_path / "a.parquet", "y")
    columns, classes = caplog.messages
    assert columns == f"1 pair of names of columns {KEPT_APART}rename one with --rename, or drop it"
    assert classes.startswith("1 pair of names of classes differ only in their Unicode form, such as ")


def test_files_that_differ_in_their_unicode_form_and_empty_folders_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (COMPOSED, DECOMPOSED):
        picture(tmp_path / "in" / "a" / f"{name}.jpg")
    for name in ("b", "c"):
        (tmp_path / "in" / name).mkdir()
    plan(tmp_path / "in")
    empty, twins = caplog.messages
    assert empty == "2 folders hold no image and no class of the dataset: 'b', 'c'"
    assert twins.startswith("1 pair of names of files differ only in their Unicode form, such as ")
    assert twins.endswith("; they are kept apart: remove one of each pair if it is a copy")


def test_images_that_exif_turns_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, orientation in enumerate([1, 6, 3, 1]):
        picture(tmp_path / "in" / "a" / f"{number}.jpg", orientation)
    dataset = built(str(tmp_path / "in"), tmp_path / "out")
    assert caplog.messages == [
        "2 of 4 images are turned or mirrored by EXIF (column 'image'), which loaders ignore; --encode jpeg:90 stores "
        "them upright"
    ]
    for found in (dataset, open_dataset(tmp_path / "out")):
        image = found.manifest.splits["train"].statistics["image"].image
        assert image is not None
        assert (image.rotated, image.images) == (2, 4)
    caplog.clear()
    prepare = PrepareOptions(images=ImageOptions(encoding=parse_encoding("jpeg:90")))
    built(str(tmp_path / "in"), tmp_path / "upright", prepare=prepare)
    assert not caplog.messages
