"""`shard-dataset inspect`: images, class names, TFDS splits and skipped records."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ringfeed.tools.shard_dataset.program import main
from tests.helpers.commands import Cli


def test_images_are_described_by_size_and_pixel_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((10 + i, 20, 3), (10, 20, 30 + 2 * i), np.uint8)).save(
                tmp_path / "photos" / label / f"{i}.png"
            )
    build = ["build", str(tmp_path / "photos"), str(tmp_path / "out"), "--shards", "2", "--workers", "1", "--json"]
    assert main(build) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("image "))
    assert "10 to 13 high, 20 wide; RGB mean 10.0/20.0/33.2, std 0.0/0.0/2.2 (of 8 images)" in line
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    features = json.loads(capsys.readouterr().out)["features"]
    found = {feature["name"]: feature["statistics"]["train"]["image"] for feature in features}
    assert (found["image"]["images"], found["image"]["sampled"], found["image"]["pixels"]) == (8, 8, 2 * 920)
    assert found["path"] is None


def test_control_characters_in_class_names_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"x": i, "a\tlabel": ("\x1b[31mred\n0", "blue")[i % 2]} for i in range(8)]
    (tmp_path / "x\x1b[1m.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    source, out = str(tmp_path / "x\x1b[1m.jsonl"), str(tmp_path / "out")
    build = ["build", source, out, "--shards", "2", "--workers", "1", "--label", "a\tlabel"]
    for command in ([*build, "--dry-run"], build, ["inspect", out]):
        assert main(command) == 0
        text = capsys.readouterr().out
        assert any(line.startswith("?[31mred 0  50.00%") for line in text.splitlines())
        assert "\x1b" not in text
    assert "  label    a label\n" in text
    assert main(["export", out, str(tmp_path / "hf"), "--to", "hf", "--workers", "1"]) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| `?[31mred 0` |" in card
    assert "\x1b" not in card


@pytest.mark.parametrize(
    ("appended", "told"),
    [
        (1, "train_g00000+train_g00001"),
        (2, "train_g00000+train_g00001+train_g00002"),
        (4, "train_g00000+train_g00001+...+train_g00004"),
    ],
)
def test_the_splits_that_tfds_needs_for_all_generations_are_named(
    tmp_path: Path, cli: Cli, appended: int, told: str
) -> None:
    for number in range(appended + 1):
        (tmp_path / f"{number}.csv").write_text("x,y\n" + "".join(f"{number}{i},{i % 2}\n" for i in range(20)))
    out = str(tmp_path / "out")
    cli("shard-dataset", "build", str(tmp_path / "0.csv"), out, "--label", "y", "--shards", "2", check=True)
    for number in range(1, appended + 1):
        cli("shard-dataset", "append", str(tmp_path / f"{number}.csv"), out, check=True)
    shown = cli("shard-dataset", "inspect", out, check=True).stdout
    assert f"tfds.builder_from_directory; a whole split is {told}" in " ".join(shown.split())


def test_rejected_records_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [json.dumps({"x": i, "y": i % 2}) for i in range(8)]
    for name, lines in (("a", [*good, "{", "["]), ("b", [*good, "]"]), ("c", good)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    out, lenient = str(tmp_path / "out"), ["--on-bad-record", "skip:2", "--workers", "1"]
    build = ["build", str(tmp_path / "a.jsonl"), out, "--label", "y", "--shards", "2", *lenient]

    def told(*command: str) -> list[str]:
        assert main(list(command)) == 0
        return [line.strip() for line in capsys.readouterr().out.splitlines() if "skip" in line]

    (line,) = told(*build, "--dry-run")
    assert line.startswith(
        f"would skip 2 bad records; the first is file://{tmp_path}/a.jsonl: line 9: no JSON object: "
    )
    assert line[-1] != ";"
    assert told(*build) == [f"skipped 2 bad records, listed in {out}/_ringfeed/rejected.jsonl"]
    assert told("inspect", out) == ["skipped  2 bad records, listed in _ringfeed/rejected.jsonl"]
    assert told("append", str(tmp_path / "b.jsonl"), out, *lenient) == [
        f"skipped 1 bad record, listed in {out}/_ringfeed/rejected-g00001.jsonl"
    ]
    assert told("append", str(tmp_path / "c.jsonl"), out, *lenient) == []
    assert told("inspect", out) == ["skipped  3 bad records, listed in 2 files from _ringfeed/rejected.jsonl on"]
    assert main(["inspect", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == {
        "_ringfeed/rejected.jsonl": 2,
        "_ringfeed/rejected-g00001.jsonl": 1,
    }
    (tmp_path / "out" / "_ringfeed/rejected.jsonl").unlink()
    (line,) = told("inspect", out)
    assert line.endswith(
        "listed in 2 files from _ringfeed/rejected.jsonl on, which cannot be read; see: shard-dataset verify"
    )


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_rejected_records_are_in_the_json_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    lines = [json.dumps({"x": i}) for i in range(8)]
    for name, end in (("a", "{\n"), ("b", "")):
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, end]))
        build = ["build", str(tmp_path / f"{name}.jsonl"), str(tmp_path / name), "--on-bad-record", "skip:2", "--json"]
        assert main([*build, "--workers", "1", *flags]) == 0
        assert json.loads(capsys.readouterr().out)["skipped"] == ({"_ringfeed/rejected.jsonl": 1} if end else {})
