"""Repair with the sources of several generations: shards of all are rebuilt together, with or without the table."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    CorruptionError,
    Progress,
    RingfeedError,
    SourceError,
    append,
    clean,
    open_dataset,
    repair,
    verify,
)
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.storage.storage import Storage
from ringfeed.tools.shard_dataset.program import main
from tests.helpers.builds import built, ends_in_writes
from tests.helpers.files import contents
from tests.helpers.rebuilding import damage, repaired, shards_of, spoil

Generations = tuple[Path, list[str]]
SPLITS = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
EQUAL, UNEQUAL = (160, 160, 160), (160, 120, 200)
pytestmark = pytest.mark.usefixtures("empty_folder")


def written(path: Path, first: int, rows: int, step: int = 1) -> str:
    """A source of integers with three classes; of later ones with four."""
    ids = np.arange(first, first + rows * step, step)
    table = pa.table({"id": pa.array(ids), "fold": pa.array(ids % 7), "label": pa.array(ids % (4 if first else 3))})
    pq.write_table(table, path, row_group_size=50)
    return str(path)


def grown(folder: Path, rows: tuple[int, ...] = UNEQUAL, **options: Any) -> Generations:
    """A dataset of several generations, and their sources."""
    sources = [written(folder / f"{number}.parquet", 1000 * number, n) for number, n in enumerate(rows)]
    built(sources[0], folder / "out", label="label", shards=2, **({"splits": SPLITS} | options))
    for source in sources[1:]:
        append(AppendOptions(source=source, destination=str(folder / "out"), shards=2))
    return folder / "out", sources


@pytest.fixture
def three(tmp_path: Path) -> Generations:
    return grown(tmp_path)


def moved(sources: list[str], names: Callable[[str], str]) -> list[str]:
    """Copies whose times are others."""
    return [str(shutil.copyfile(source, names(source))) for source in sources]


# --- shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_shards_of_all_generations_are_rebuilt_together(tmp_path: Path, shard_format: str) -> None:
    out, sources = grown(tmp_path, shard_format=shard_format)
    before = contents(out)
    damage(out, 0, 1, 2)
    done = repaired(out, *reversed(sources))
    assert contents(out) == before
    assert verify(str(out)) == []
    assert done.lost == ()
    for number, source in enumerate(sources):
        remedies = [remedy for remedy in done.remedies if generation_of(remedy.path) == number]
        assert [(remedy.action, remedy.how) for remedy in remedies] == [("rebuild", f"rebuilt from {source}")] * 3


@pytest.mark.parametrize("table", [False, True])
def test_small_appends_whose_rounding_depended_on_earlier_records_are_rebuilt(tmp_path: Path, table: bool) -> None:
    """Also from sources that are named in another order; and one with the table needs no other."""
    out, sources = grown(tmp_path, (160, 12, 3, 6, 5, 4))
    before = contents(out)
    for number in () if table else range(6):
        damage(out, number)
        repaired(out, sources[number])
        assert contents(out) == before
    damage(out, *range(6), table=table)
    repaired(out, *reversed(sources))
    assert {path: data for path, data in contents(out).items() if path in before} == before


def test_an_append_to_a_dataset_that_lost_records_is_rebuilt(tmp_path: Path) -> None:
    out, sources = grown(tmp_path, (160, 12, 3))
    damage(out, 0)
    repair(str(out))
    for number in (3, 4, 5):
        sources.append(written(tmp_path / f"{number}.parquet", 1000 * number, 5))
        append(AppendOptions(source=sources[-1], destination=str(out), shards=1))
    before = contents(out)
    for number in (2, 3, 4, 5):
        (out / shards_of(open_dataset(str(out)), number)[0].path).unlink()
        repaired(out, sources[number])
        assert contents(out) == before


def test_shards_of_a_generation_without_a_source_are_left(three: Generations) -> None:
    out, sources = three
    before = contents(out)
    damage(out, 0, 1, 2)
    done = repaired(out, sources[2], sources[0])
    left = {remedy.path for remedy in done.remedies if remedy.action == "leave"}
    assert {found.path for found in verify(str(out))} == left
    assert {generation_of(path) for path in left} == {1}
    repaired(out, sources[1])
    assert contents(out) == before


@pytest.mark.parametrize("rows", [EQUAL, UNEQUAL])
def test_copies_serve_in_any_order(tmp_path: Path, rows: tuple[int, ...]) -> None:
    """Sources alike in counts are told by their names; others whatever they are called."""
    out, sources = grown(tmp_path, rows)
    (tmp_path / "copies").mkdir()
    before = contents(out)
    name = "{}" if rows == EQUAL else "copy of {}"
    copies = moved(sources, lambda source: str(tmp_path / "copies" / name.format(Path(source).name)))
    for order in itertools.permutations(copies):
        damage(out, 0, 1, 2)
        repaired(out, *order)
        assert contents(out) == before, order


def test_indistinguishable_copies_are_matched_in_order(tmp_path: Path) -> None:
    out, sources = grown(tmp_path, EQUAL)
    before = contents(out)
    damage(out, 1, 2)
    copies = moved(sources, lambda source: source.replace(".parquet", "-copy.parquet"))
    wounded = contents(out)
    with pytest.raises(SourceError, match="differs from what was written"):
        repaired(out, copies[2], copies[1])
    assert contents(out) == wounded
    repaired(out, *copies[1:])
    assert contents(out) == before


@pytest.mark.parametrize("table", [False, True])
def test_a_source_that_was_appended_twice_serves_for_both(tmp_path: Path, table: bool) -> None:
    out, sources = grown(tmp_path, (160, 120))
    append(AppendOptions(source=sources[1], destination=str(out), shards=3, again=True))
    before = contents(out)
    damage(out, 1, 2, table=table)
    (copy,) = moved(sources[1:], lambda source: str(tmp_path / "copy.parquet"))
    repaired(out, copy)
    assert contents(out) == before


# --- the table lost with them ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("generations", [(0, 1), (1, 2), (0, 1, 2)])
def test_the_table_is_rebuilt_with_shards_of_several_generations(
    tmp_path: Path, shard_format: str, generations: tuple[int, ...]
) -> None:
    out, sources = grown(tmp_path, shard_format=shard_format)
    clean(Storage(str(out)))
    before = contents(out)
    damage(out, *generations, table=True)
    wounded = contents(out)
    wanted = [sources[number] for number in generations]
    flags = " ".join(f"--source {source}" for source in wanted)
    with pytest.raises(CorruptionError, match=f"repair it with {flags}, and the source of each other generation"):
        repair(str(out))
    for lacking in wanted:
        rest = [source for source in wanted if source != lacking]
        last = ": shards of another generation are damaged, too, or a source is not the original"
        with pytest.raises(CorruptionError, match=last if lacking == wanted[-1] else f"with --source {lacking}, too"):
            repaired(out, *rest)
    assert contents(out) == wounded
    assert repaired(out, *wanted).lost == ()
    assert contents(out) == before


def test_the_table_is_rebuilt_though_no_file_is_missing(tmp_path: Path) -> None:
    """Which generations are damaged cannot be told then, so all sources are named."""
    out, sources = grown(tmp_path, EQUAL)
    before = contents(out)
    dataset = open_dataset(str(out))
    spoil(out / dataset.manifest.shards_path)
    for number in (1, 2):
        spoil(out / shards_of(dataset, number)[1].path)
    with pytest.raises(CorruptionError, match=f"repair it with --source {sources[0]}, and the source of each other"):
        repair(str(out))
    done = repaired(out, *moved(sources, lambda source: source.replace(".parquet", "-copy.parquet")))
    assert contents(out) == before
    assert sorted(remedy.action for remedy in done.remedies) == ["rebuild", "rebuild", "rewrite"]


def test_copies_are_tried_first_for_generations_whose_files_are_missing(tmp_path: Path) -> None:
    out, sources = grown(tmp_path, EQUAL)
    before = contents(out)
    damage(out, 1, 2, table=True)
    copies = moved(sources, lambda source: source.replace(".parquet", "-copy.parquet"))
    repaired(out, *copies[1:])
    assert contents(out) == before


# --- another source ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda path: written(path, 5000, 90), "other.parquet is not what generation 2 of .*; nothing was changed"),
        (lambda path: written(path, 5000, 200), "not the original; nothing|differs from .*nothing was changed"),
        (lambda path: str(path), "there is nothing at .*other.parquet"),
    ],
    ids=["other counts", "other values", "missing"],
)
def test_a_wrong_source_is_one_line_and_nothing_is_changed(
    three: Generations, other: Callable[[Path], str], told: str, table: bool
) -> None:
    out, sources = three
    damage(out, 0, 2, table=table)
    wounded = contents(out)
    wrong = other(out.parent / "other.parquet")
    for order in itertools.permutations([sources[0], wrong]):
        # with the table lost, all generations are wanted, and the first of those that lack shards is named
        with pytest.raises(RingfeedError, match=told.replace("generation 2", "generation [02]")) as raised:
            repaired(out, *order)
        assert "\n" not in str(raised.value)
        assert contents(out) == wounded


def test_a_source_is_given_once(three: Generations) -> None:
    out, sources = three
    damage(out, 0, 1, 2)
    wounded = contents(out)
    with pytest.raises(SourceError, match=r"0\.parquet is one source too many: .*nothing was changed; leave it out"):
        repaired(out, *sources, sources[0])
    with pytest.raises(SourceError, match="is not what generation 1 of"):
        repaired(out, sources[0], sources[0])
    assert contents(out) == wounded


# --- cut short ---------------------------------------------------------------------------------------------------


def test_killed_at_any_write_and_run_again(three: Generations, tmp_path: Path) -> None:
    out, sources = three
    before = contents(out)
    damage(out, 0, 2)
    for last in itertools.count():
        root = Path(shutil.copytree(out, tmp_path / "copies" / f"{last}"))
        done = ends_in_writes(partial(repaired, root, sources[2], sources[0]), root, last)
        repaired(root, sources[2], sources[0])
        assert contents(root) == before, last
        if done:
            break
    assert last == 6  # three files of each of the two generations


def test_rebuilt_shards_are_spilled_to_the_given_folder(three: Generations, tmp_path: Path) -> None:
    out, sources = three
    before = contents(out)
    damage(out, 0, 2)
    seen: set[int] = set()

    def look(progress: Progress) -> None:
        if progress.stage == "write":
            for folder, _, names in os.walk(tmp_path / "spill"):  # no file is opened: workers write there
                seen.update(generation_of(f"{folder}/{name}".partition("/made/")[2]) for name in names)

    repaired(out, sources[0], sources[2], spill=str(tmp_path / "spill"), rebuilding=look)
    assert seen == {0, 2}
    assert contents(out) == before
    assert contents(tmp_path / "spill") == {}


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_takes_several_sources(three: Generations, capsys: pytest.CaptureFixture[str]) -> None:
    out, sources = three
    before = contents(out)
    damage(out, 0, 2)
    assert main(["repair", str(out), "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert f"none with --source {sources[0]} --source {sources[2]} if they are still there" in told
    flags = ["--source", sources[0], f"--source={sources[2]}", "--workers", "1"]
    assert main(["repair", str(out), *flags, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lost_records"] == 0
    assert {remedy["how"] for remedy in document["remedies"]} == {
        f"rebuilt from {source}" for source in (sources[0], sources[2])
    }
    assert main(["repair", str(out), *flags]) == 0
    assert "repaired 6 damaged files; no record is lost" in capsys.readouterr().out
    assert contents(out) == before


def test_the_command_counts_repaired_and_remaining_files(
    three: Generations, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the index that is whole, of a shard that is left."""
    out, sources = three
    damage(out, 0, 1, 2)
    assert main(["repair", str(out), "--source", sources[0], "--source", sources[2], "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "repaired 6 damaged files; no record is lost; 3 files are left for another source"
    )


def test_the_command_reports_a_wrong_source_in_one_line(three: Generations, capsys: pytest.CaptureFixture[str]) -> None:
    out, sources = three
    damage(out, 0, 2)
    wounded = contents(out)
    other = written(out.parent / "other.parquet", 5000, 90)
    assert main(["repair", str(out), "--source", sources[0], "--source", other, "--workers", "1"]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert f"{other} is not what generation 2 of" in errors[0]
    assert contents(out) == wounded
