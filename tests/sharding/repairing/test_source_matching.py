"""Repair of several generations that depend on earlier ones, by groups or by dropped duplicates.

They are rebuilt in the order in which they were written, from sources given in any order.
"""

import itertools
import os
import shutil
import uuid
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
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.storage.lease import LEASE_NAME
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built, ends_in_writes
from tests.helpers.files import contents
from tests.helpers.rebuilding import damage, repaired, shards_of
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

SPLITS = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
GROUPS: dict[str, Any] = {"group_by": "fold"}
DOUBLES: dict[str, Any] = {"prepare": PrepareOptions(dedup=())}
KINDS = {
    "groups": GROUPS,
    "doubles": DOUBLES | {"shard_format": "parquet"},
    "both": GROUPS | DOUBLES | {"compression": "gzip"},
    "both by bytes": GROUPS | {"prepare": PrepareOptions(dedup=("id",)), "balance": "bytes"},
}
ROWS = (160, 120, 200)
pytestmark = pytest.mark.usefixtures("empty_folder")


def written(path: Path, number: int, rows: int, start: int | None = None) -> str:
    """A source that has a third of its records twice, a third in common with the one before, and old and new groups."""
    start = 100 * number - (rows // 3 if number else 0) if start is None else start
    kept = np.arange(start, start + rows - rows // 3)
    ids = np.concatenate([kept, kept[: rows // 3]])
    columns = {"id": ids, "fold": ids // 9, "label": np.where((ids > 150) & (ids % 5 == 0), 3, ids % 3)}
    text = pa.array(["x" * (i % 31) for i in ids.tolist()])
    pq.write_table(pa.table(columns).append_column("text", text), path, row_group_size=50)
    return str(path)


def grown(folder: Path, rows: tuple[int, ...] = ROWS, **options: Any) -> tuple[Path, list[str]]:
    """A dataset of several generations, and their sources."""
    sources = [written(folder / f"{number}.parquet", number, n) for number, n in enumerate(rows)]
    built(sources[0], folder / "out", label="label", shards=2, splits=SPLITS, min_class_records=1, **options)
    for source in sources[1:]:
        append(AppendOptions(source=source, destination=str(folder / "out"), shards=2, min_class_records=1))
    return folder / "out", sources


class Grown:
    """One of the datasets that tests share, and a copy of it to damage."""

    def __init__(self, pristine: Path, sources: list[str]) -> None:
        self.pristine, self.sources = pristine, sources
        self.whole = contents(pristine)

    def copy(self, folder: Path) -> Path:
        return Path(shutil.copytree(self.pristine, folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[str]]]:
    return {name: grown(tmp_path_factory.mktemp("grown"), **options) for name, options in KINDS.items()}


@pytest.fixture(params=KINDS)
def three(request: pytest.FixtureRequest, made: dict[str, tuple[Path, list[str]]]) -> Grown:
    """A dataset of each kind."""
    return Grown(*made[request.param])


@pytest.fixture
def both(made: dict[str, tuple[Path, list[str]]]) -> Grown:
    return Grown(*made["both"])


def moved(sources: list[str], folder: Path, name: str) -> list[str]:
    """Copies whose times are others."""
    folder.mkdir()
    copies = [str(folder / name.format(Path(source).stem)) for source in sources]
    return [str(shutil.copyfile(source, copy)) for source, copy in zip(sources, copies, strict=True)]


def test_earlier_records_decide_about_later_ones(three: Grown) -> None:
    """Else these tests would pass whatever shards are looked into."""
    dataset = open_dataset(str(three.pristine))
    options = dataset.manifest.options
    alone = [pq.read_table(source).to_pandas().drop_duplicates() for source in three.sources]
    if "prepare" in options:
        assert dataset.manifest.records == len({i for table in alone for i in table["id"]}) < sum(map(len, alone))
    if "group_by" in options:
        folds = [set(table["fold"]) for table in alone]
        assert all([folds[0] & folds[1], folds[1] & folds[2], folds[2] - folds[1]])


# --- shards, and the table with them -----------------------------------------------------------------------------


@pytest.mark.parametrize("table", [False, True])
def test_shards_of_all_generations_are_rebuilt_together(three: Grown, tmp_path: Path, table: bool) -> None:
    clean(Storage(str(three.pristine)))
    whole = contents(three.pristine)
    for generations in [(0,), (1,), (0, 1), *([] if table else [(0, 2), (0, 1, 2)])]:
        out = three.copy(tmp_path / "".join(map(str, generations)))
        damage(out, *generations, table=table)
        done = repaired(out, *(three.sources[number] for number in reversed(generations)))
        assert contents(out) == whole
        assert verify(str(out)) == []
        assert done.lost == ()
        rebuilt = [remedy for remedy in done.remedies if remedy.action == "rebuild"]
        assert {(generation_of(r.path), r.how) for r in rebuilt} == {
            (number, f"rebuilt from {three.sources[number]}") for number in generations
        }


def test_by_several_processes(both: Grown, tmp_path: Path) -> None:
    out = both.copy(tmp_path / "out")
    damage(out, 1)
    repaired(out, both.sources[1], workers=2)
    assert contents(out) == both.whole


def test_of_a_dataset_on_another_machine(
    both: Grown, s3_bucket: str, s3_env: dict[str, str], s3_server: S3Server
) -> None:
    """What is read lies on two stores then."""
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    store = Store(name="s3", url=url, env=s3_env, storage_options=s3_server.storage_options)
    for name, data in both.whole.items():
        store.write_bytes(name, data)
    dataset = open_dataset(store.url)
    for number in (0, 1):
        first, second, *_ = shards_of(dataset, number)
        store.delete(first.path)
        store.delete(second.path)
        store.delete(second.index_path)
    store.delete(dataset.manifest.shards_path)
    repaired(store.url, *both.sources[:2])
    assert {name: store.read_bytes(name) for name in store.list()} == both.whole


@pytest.mark.parametrize("three", ["doubles", "both"], indirect=True)
def test_the_table_is_rebuilt_though_no_file_is_missing(three: Grown, tmp_path: Path) -> None:
    """Which shards are damaged is told by looking into them; nothing is read of those that are."""
    out = three.copy(tmp_path / "out")
    dataset = open_dataset(str(out))
    for path in [dataset.manifest.shards_path, *(shards_of(dataset, number)[0].path for number in (0, 1))]:
        data = bytearray((out / path).read_bytes())
        data[len(data) // 3 : len(data) // 3 + 40] = os.urandom(40)
        (out / path).write_bytes(data)
    wounded = contents(out)
    with pytest.raises(
        CorruptionError, match=f"shards of generation 0 are damaged as well; .* {three.sources[0]}, too"
    ):
        repaired(out, three.sources[1])
    assert contents(out) == wounded
    repaired(out, *three.sources[:2])
    assert contents(out) == three.whole


# --- one source after the other ----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [False, True])
def test_earlier_generations_are_needed_and_later_ones_can_wait(both: Grown, tmp_path: Path, table: bool) -> None:
    out = both.copy(tmp_path / "out")
    damage(out, 0, 1, 2, table=table)
    wounded = contents(out)
    for lacking in (0, 1):
        rest = [source for number, source in enumerate(both.sources) if number != lacking]
        with pytest.raises(CorruptionError, match=f"repair with --source {both.sources[lacking]}, too") as raised:
            repaired(out, *rest)
        assert "\n" not in str(raised.value)
        assert contents(out) == wounded
    if table:
        return
    done = repaired(out, *both.sources[:2])
    left = {remedy.path for remedy in done.remedies if remedy.action == "leave"}
    assert {generation_of(path) for path in left} == {2}
    repaired(out, both.sources[2])
    assert contents(out) == both.whole


def test_the_source_of_an_intact_generation_is_ignored(both: Grown, tmp_path: Path) -> None:
    out = both.copy(tmp_path / "out")
    damage(out, 1)
    with pytest.raises(SourceError, match=rf"is not what generation 1 of .* \(it was {both.sources[1]}\)"):
        repaired(out, both.sources[0])
    with pytest.raises(SourceError, match=r"0\.parquet is one source too many|0\.parquet is not what"):
        repaired(out, *both.sources, both.sources[0])
    assert len(repaired(out, *both.sources).remedies) == 3
    assert contents(out) == both.whole


def test_records_left_out_by_an_earlier_repair_are_not_invented(both: Grown, tmp_path: Path) -> None:
    out = both.copy(tmp_path / "out")
    first = shards_of(open_dataset(str(out)), 0)[0]
    (out / first.path).unlink()
    assert repair(str(out)).lost[0].records == first.records
    damage(out, 1)
    wounded = contents(out)
    with pytest.raises(
        SourceError, match=r"generation 1 of .* was built from: .* some of which an earlier repair left out"
    ):
        repaired(out, both.sources[1])
    assert contents(out) == wounded


@pytest.mark.parametrize("table", [False, True])
def test_a_plain_append_depends_on_nothing_earlier(tmp_path: Path, table: bool) -> None:
    out, sources = grown(tmp_path, (160,), **DOUBLES)
    for number, how in enumerate([{"as_is": True}, {}], 1):
        sources.append(written(tmp_path / f"{number}.parquet", number, 120))
        append(AppendOptions(source=sources[number], destination=str(out), shards=2, min_class_records=1, **how))
    whole = contents(out)
    damage(out, 0, 1, table=table)
    if not table:
        repaired(out, sources[1])
        assert {generation_of(found.path) for found in verify(str(out))} == {0}
    repaired(out, *sources)
    assert contents(out) == whole


# --- copies ------------------------------------------------------------------------------------------------------


def test_copies_serve_under_any_names_and_in_any_order(both: Grown, tmp_path: Path) -> None:
    copies = moved(both.sources, tmp_path / "copies", "copy of {}.parquet")
    for number, order in enumerate(itertools.permutations(copies)):
        out = both.copy(tmp_path / f"{number}")
        damage(out, 0, 1, 2, table=number % 2 == 0)
        repaired(out, *order)
        assert contents(out) == both.whole, order


def test_copies_distinguished_only_by_their_records_are_proven(tmp_path: Path) -> None:
    """The first makes other shards of the first generation than were written, so it is that of the second."""
    out, sources = grown(tmp_path, (90,), **DOUBLES)
    sources.append(written(tmp_path / "1.parquet", 1, 90, start=60))
    append(AppendOptions(source=sources[1], destination=str(out), shards=2))
    assert len({tuple(of.records.values()) for of in open_dataset(str(out)).manifest.generations}) == 1
    before = contents(out)
    damage(out, 0, 1)
    repaired(out, *reversed(moved(sources, tmp_path / "copies", "copy of {}.parquet")))
    assert contents(out) == before


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("options", [DOUBLES, GROUPS | DOUBLES], ids=["doubles", "both"])
def test_records_appended_again_are_no_duplicates(tmp_path: Path, table: bool, options: dict[str, Any]) -> None:
    """By the fingerprint of its source, which a copy has not."""
    out, sources = grown(tmp_path, (160, 120), **options)
    again = AppendOptions(source=sources[1], destination=str(out), shards=2, again=True, min_class_records=1)
    assert append(again).generations[2].records.values()
    before = contents(out)
    damage(out, 1, 2, table=table)
    repaired(out, *moved(sources[1:], tmp_path / "copies", "copy of {}.parquet"))
    assert contents(out) == before


# --- what can be mended without a source -------------------------------------------------------------------------


def test_shards_restored_without_a_source_are_read_restored(three: Grown, tmp_path: Path) -> None:
    """The records that a lost generation follows from are there, but not as they lie."""
    out = three.copy(tmp_path / "out")
    dataset = open_dataset(str(out))
    a, b, c, *_ = shards_of(dataset, 0)
    (out / a.path).write_bytes((out / a.path).read_bytes() + b"more")
    (out / a.index_path).unlink()
    (out / b.path).rename(out / "aside")
    (out / c.path).rename(out / b.path)
    (out / "aside").rename(out / c.path)
    damage(out, 1)
    repaired(out, three.sources[1])
    assert contents(out) == three.whole


# --- another source, and what is cut short -----------------------------------------------------------------------


@pytest.mark.parametrize("table", [False, True])
def test_one_wrong_source_is_one_line_and_nothing_is_changed(both: Grown, tmp_path: Path, table: bool) -> None:
    out = both.copy(tmp_path / "out")
    damage(out, 0, 1, table=table)
    wounded = contents(out)
    changed = pq.read_table(both.sources[0])
    texts = pa.array([text[1:] or "?" for text in changed["text"].to_pylist()])
    pq.write_table(changed.set_column(3, "text", texts), tmp_path / "0.parquet", row_group_size=50)
    other = written(tmp_path / "other.parquet", 7, 90)
    for wrong in (str(tmp_path / "0.parquet"), other):
        with pytest.raises(RingfeedError) as raised:
            repaired(out, wrong, both.sources[1])
        assert "\n" not in str(raised.value)
        assert contents(out) == wounded


def test_killed_at_any_write_and_run_again(both: Grown, tmp_path: Path) -> None:
    out = both.copy(tmp_path / "out")
    damage(out, 0, 1, table=True)
    for last in itertools.count():
        root = Path(shutil.copytree(out, tmp_path / f"{last}"))
        done = ends_in_writes(partial(repaired, root, *both.sources[:2]), root, last)
        repaired(root, *both.sources[:2])
        assert contents(root) == both.whole, last
        if done:
            break
    assert last == 7  # the table, and three files of each generation


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_is_changed_if_it_fails(both: Grown, tmp_path: Path, error: type[BaseException]) -> None:
    """While shards are made to plan with, and while they are made to be put back, with the lease held."""
    out = both.copy(tmp_path / "out")
    damage(out, 0, 1)
    wounded = contents(out)

    def fail(progress: Progress, at: int) -> None:
        nonlocal begun
        if progress.stage == "write":
            begun += progress.done == 1
            assert (out / LEASE_NAME).exists() == (begun > 1)
            if begun == at:
                raise error

    for at in (1, 2, 3):
        begun = 0
        with pytest.raises(error):
            repaired(out, *both.sources[:2], rebuilding=partial(fail, at=at))
        assert contents(out) == wounded


def test_a_dry_run_writes_nothing_and_reports_the_same(both: Grown, tmp_path: Path) -> None:
    out = both.copy(tmp_path / "out")
    damage(out, 0, 1, table=True)
    wounded = contents(out)
    told = repaired(out, *both.sources[:2], dry_run=True)
    assert contents(out) == wounded
    assert repaired(out, *both.sources[:2]) == told
    assert contents(out) == both.whole
