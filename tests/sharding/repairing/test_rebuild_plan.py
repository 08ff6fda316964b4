"""Repair with the source: damaged files are restored bit by bit, or nothing is changed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import (
    BuildOptions,
    ConfigError,
    CorruptionError,
    Dataset,
    DatasetError,
    DestinationError,
    Original,
    Progress,
    SourceError,
    Verification,
    build,
    check_dataset,
    open_dataset,
    plan_repair,
    repair,
    verify,
)
from ringfeed.sharding.destination.clean import clean
from ringfeed.sharding.prepare import Encoding, Filter, ImageOptions, MapBatches, PrepareOptions, Size
from ringfeed.sharding.storage.lease import LEASE_NAME, hold_lease
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built, ends_in_writes, is_heartbeat, make_table
from tests.helpers.damages import wound
from tests.helpers.files import contents
from tests.servers.store import Store

SPLITS = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """900 records in five shards and two splits, too large for a search over all bits."""
    folder = tmp_path_factory.mktemp("pristine")
    write_table(make_table(900), folder / "x.parquet")
    return built(str(folder / "x.parquet"), folder / "out", label="label", shards=4, splits=SPLITS)


def write_table(table: pa.Table, path: Path) -> None:
    texts = np.random.default_rng(1).choice(list("abcdefgh"), (len(table), 400))
    pq.write_table(table.append_column("text", pa.array(map("".join, texts))), path, row_group_size=100)


@pytest.fixture
def original(pristine: Dataset, tmp_path: Path) -> Original:
    """A copy of its source, whose name and time are others."""
    return Original(url=str(shutil.copyfile(pristine.manifest.source["url"], tmp_path / "moved.parquet")))


def blank(path: Path) -> None:
    """Leave no record of a shard intact."""
    path.write_bytes(bytes(path.stat().st_size))


def test_a_rebuild_takes_the_memory_that_the_caller_gives(root: Path, original: Original) -> None:
    before = contents(root)
    blank(root / min(path.name for path in root.glob("train-*.tfrecord")))
    hurt = contents(root)
    with pytest.raises(ConfigError, match=r"of memory .*, and --memory allows 1 MiB"):
        repair(str(root), originals=[replace(original, memory=1 << 20)])
    assert contents(root) == hurt
    repair(str(root), originals=[replace(original, memory=1 << 30)])
    assert contents(root) == before


class TestEveryByte:
    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_restores_any_damage(self, tmp_path: Path, shard_format: str) -> None:
        """The short version of the campaign below."""
        self.check(tmp_path, shard_format, seeds=7)

    @pytest.mark.campaign
    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_campaign_of_damages(self, tmp_path: Path, shard_format: str) -> None:
        self.check(tmp_path, shard_format, seeds=100)

    def check(self, tmp_path: Path, shard_format: str, seeds: int) -> None:
        how: dict[str, Any] = {"label": "label", "shards": 6, "splits": SPLITS, "shard_format": shard_format}
        write_table(make_table(900), tmp_path / "x.parquet")
        dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", **how)
        pq.write_table(make_table(1000), tmp_path / "y.parquet")
        built(str(tmp_path / "y.parquet"), tmp_path / "other", **how)
        whole = contents(tmp_path / "out")
        for seed in range(seeds):
            rng = random.Random(seed)
            root = Path(shutil.copytree(tmp_path / "out", tmp_path / f"{seed}"))
            wounds = []
            for _ in range(rng.randint(1, 5)):
                try:
                    wounds.append(wound(root, dataset, tmp_path / "other", rng))
                except (FileNotFoundError, ValueError):  # of a file that is gone, or empty, since the last one
                    continue
            if {"_ringfeed/dataset.json", "_ringfeed/shards.table"} <= {path for w in wounds for path in w.paths}:
                continue  # nothing tells any more what the dataset was
            report = repair(str(root), originals=[Original(url=str(tmp_path / "x.parquet"))])
            assert contents(root) == whole, wounds
            assert report.lost == ()
            assert verify(str(root)) == []

    def test_restores_on_every_store(self, store: Store, pristine: Dataset, original: Original) -> None:
        folder = Path(pristine.storage.locate())
        whole = contents(folder)
        for name, data in whole.items():
            store.write_bytes(name, data)
        a, b, c, *_ = pristine.shards
        store.write_bytes(a.path, whole[a.path][: a.bytes // 2] + bytes(a.bytes - a.bytes // 2))
        store.delete(b.path)
        store.delete(b.index_path)
        store.write_bytes(c.path, whole[c.path][:1000])
        store.delete("_ringfeed/dataset.json")
        seen: list[Progress] = []
        repair(store.url, originals=[original], rebuilding=seen.append)
        assert {name: store.read_bytes(name) for name in store.list()} == whole
        assert verify(store.url) == []
        assert [(p.done, p.total) for p in seen if p.stage == "write"] == [(1, 3), (2, 3), (3, 3)]

    def test_only_what_is_damaged_is_written(
        self, root: Path, pristine: Dataset, original: Original, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blank(root / pristine.shards[1].path)
        (root / pristine.shards[2].index_path).unlink()
        expected = {pristine.shards[1].path, pristine.shards[2].index_path}
        write, written = Storage.write, set()

        def writing(storage: Storage, path: str, data: Any, **how: Any) -> None:
            if storage.locate() == str(root) and not is_heartbeat():
                written.add(path)
            write(storage, path, data, **how)

        monkeypatch.setattr(Storage, "write", writing)
        actions = {r.path: r.action for r in repair(str(root), originals=[original]).remedies}
        assert actions == {pristine.shards[1].path: "rebuild", pristine.shards[2].index_path: "rewrite"}
        assert written == expected

    def test_a_table_lost_together_with_shards_is_rebuilt(
        self, root: Path, pristine: Dataset, original: Original
    ) -> None:
        (root / "_ringfeed/shards.table").unlink()
        blank(root / pristine.shards[0].path)
        (root / pristine.shards[4].index_path).unlink()
        with pytest.raises(CorruptionError, match=r"repair it with --source .*x\.parquet"):
            repair(str(root))
        repair(str(root), originals=[original])
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_a_dataset_without_intact_records_is_rebuilt(
        self, root: Path, pristine: Dataset, original: Original
    ) -> None:
        for shard in pristine.shards:
            (root / shard.path).unlink()
            (root / shard.index_path).unlink()
        with pytest.raises(CorruptionError, match=r"no record of .* --source .*x\.parquet"):
            repair(str(root))
        repair(str(root), originals=[original])
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_later_damage_of_a_dataset_that_lost_records_is_rebuilt(
        self, root: Path, pristine: Dataset, original: Original
    ) -> None:
        a, b, *_ = pristine.shards
        (root / a.path).unlink()
        repair(str(root))
        before = open_dataset(str(root))
        blank(root / b.path)
        (root / f".{b.path}.0123abcd.part").write_bytes(b"of a write that was killed")
        assert repair(str(root), originals=[original]).lost == ()
        assert open_dataset(str(root)).shards == before.shards
        assert open_dataset(str(root)).manifest == before.manifest
        assert check_dataset(str(root)) == Verification(damages=(), notes=(), files=8, bytes=ANY)


class TestEverySource:
    """Options and kinds of sources are those of the build, by what `dataset.json` says of them."""

    def check(self, out: Path, original: Original) -> None:
        whole = contents(out)
        for path in [next(out.glob("*-00001-of-*.tfrecord")), next(out.glob("_ringfeed/*-00000-of-*.index"))]:
            path.unlink()
        next(out.glob("*-00000-of-*.tfrecord")).write_bytes(b"")
        repair(str(out), originals=[original])
        assert contents(out) == whole

    def test_prepared_and_without_duplicates(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pyarrow.csv.write_csv(make_table(300).select(["id", "price", "label"]), tmp_path / "x.csv")
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "rebuild_functions.py").write_text(
            "import pyarrow.compute as pc\n\ndef double(batch):\n"
            "    return batch.append_column('twice', pc.multiply(batch['price'], 2.0))\n"
        )
        steps = (
            MapBatches(function="rebuild_functions:double", folder=str(tmp_path / "here")),
            Filter("price > -1 and label != 'c'"),
        )
        how: dict[str, Any] = {"prepare": PrepareOptions(steps=steps, dedup=("price",)), "seed": 7, "label": "label"}
        built(str(tmp_path / "x.csv"), tmp_path / "out", shard_bytes=3000, compression="gzip", **how)
        original = Original(url=str(tmp_path / "x.csv"), workers=2, folder=str(tmp_path / "here"), trust_code=True)
        self.check(tmp_path / "out", original)
        next((tmp_path / "out").glob("*-00000-of-*.tfrecord")).unlink()
        before = contents(tmp_path / "out")
        with pytest.raises(DatasetError, match=r"names code .* \(rebuild_functions:double\), .*; .* add --trust-code$"):
            repair(str(tmp_path / "out"), originals=[replace(original, trust_code=False)])
        assert contents(tmp_path / "out") == before

    @pytest.mark.parametrize(
        "how",
        [
            {"split_column": "part"},
            {"group_by": "id", "splits": SPLITS},
            {"balance": "bytes"},
            {"balance": "bytes", "group_by": "part", "splits": SPLITS},
        ],
        ids=lambda how: " ".join(how),
    )
    def test_records_placed_by_more_than_their_class(self, tmp_path: Path, how: dict[str, Any]) -> None:
        table = make_table(400).select(["id", "price", "label"])
        words = pa.array(["x" * (i % 97) for i in range(400)])
        parts = pa.array([f"part {i % 5}" if "group_by" in how else "ab"[i % 3 == 0] for i in range(400)])
        pq.write_table(table.append_column("word", words).append_column("part", parts), tmp_path / "x.parquet")
        built(str(tmp_path / "x.parquet"), tmp_path / "out", label="label", shards=5, **how)
        self.check(tmp_path / "out", Original(url=str(tmp_path / "x.parquet"), workers=2))

    @pytest.mark.parametrize(
        "how",
        [
            {
                "prepare": PrepareOptions(
                    images=ImageOptions(size=Size(width=16), encoding=Encoding(form="jpeg", quality=80))
                )
            },
            {"on_bad_record": "skip:3"},
            {"on_bad_record": "skip:3", "balance": "bytes"},
        ],
        ids=lambda how: " ".join(how),
    )
    def test_images_resized_or_skipped(self, tmp_path: Path, how: dict[str, Any]) -> None:
        rng = np.random.default_rng(0)
        for i in range(12):
            path = tmp_path / "photos" / f"class {i % 2}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(path)
            path.write_bytes(path.read_bytes()[: 100 if i % 5 == 0 and "on_bad_record" in how else None])
        built(str(tmp_path / "photos"), tmp_path / "out", shards=3, **how)
        self.check(tmp_path / "out", Original(url=str(tmp_path / "photos")))

    def test_of_a_kind_that_was_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "rebuild_records.py").write_text(
            "def records():\n    return ({'x': i, 'kind': 'ab'[i % 2]} for i in range(100))\n"
        )
        monkeypatch.chdir(tmp_path)
        built("rebuild_records:records", tmp_path / "out", source_kind="python", label="kind", shards=3)
        assert open_dataset(str(tmp_path / "out")).manifest.options["source_kind"] == "python"
        self.check(tmp_path / "out", Original(url="rebuild_records:records"))

    def test_of_another_kind_than_it_was(self, tmp_path: Path) -> None:
        """The very records in files of another format."""
        table = make_table(100).select(["id", "price", "label"])
        pq.write_table(table, tmp_path / "x.parquet")
        built(str(tmp_path / "x.parquet"), tmp_path / "out", label="label", shards=3, source_kind="parquet")
        with pa.ipc.new_file(tmp_path / "y.arrow", table.schema) as writer:
            writer.write_table(table)
        self.check(tmp_path / "out", Original(url=str(tmp_path / "y.arrow"), source_kind="ipc"))

    def test_one_split_of_a_dataset(self, pristine: Dataset, tmp_path: Path) -> None:
        url = f"{pristine.storage.locate()}#test"
        built(url, tmp_path / "out", shards=2, source_kind="ringfeed", splits={"test": Fraction(1)})
        self.check(tmp_path / "out", Original(url=url))


class TestAnotherSource:
    """One line says what is other, and not a byte is changed."""

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (lambda table: table.slice(0, 899), "it has 899 records, not 900"),
            (lambda table: table.drop_columns(["flag"]), "it has no column 'flag'"),
            (lambda table: table.append_column("more", table["id"]), "it has a column 'more'"),
            (
                lambda table: table.set_column(0, "id", table["id"].cast("int32")),
                "column 'id' holds int32 [], not int6",
            ),
            (
                lambda table: pa.concat_tables([table.slice(1), table.slice(0, 1)]),
                "differs from what was written: it is another",
            ),
            (lambda table: table.set_column(3, "price", table["id"].cast("double")), "differs from what was written"),
            (lambda table: relabelled(table), "records of class 'a', not"),
        ],
        ids=["shorter", "column missing", "column more", "type", "order", "values", "labels"],
    )
    def test_is_distinguished_from_the_original(
        self, root: Path, pristine: Dataset, tmp_path: Path, change: Any, told: str
    ) -> None:
        table = pq.read_table(pristine.manifest.source["url"])
        pq.write_table(change(table), tmp_path / "y.parquet", row_group_size=100)
        blank(root / pristine.shards[0].path)
        (root / pristine.shards[4].path).unlink()
        (root / "_ringfeed/dataset.json").unlink()
        before = contents(root)
        with pytest.raises(SourceError) as raised:
            repair(str(root), originals=[Original(url=str(tmp_path / "y.parquet"))])
        assert told in str(raised.value)
        assert "nothing was changed" in str(raised.value)
        assert contents(root) == before

    def test_that_looks_like_the_original_is_not_trusted(self, tmp_path: Path) -> None:
        table = make_table(300)
        pq.write_table(table, tmp_path / "x.parquet", compression="none", use_dictionary=False)
        dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", label="label", shards=3)
        stat = (tmp_path / "x.parquet").stat()
        other = table.set_column(3, "price", pa.array(np.arange(300.0)))
        pq.write_table(other, tmp_path / "x.parquet", compression="none", use_dictionary=False)
        assert (tmp_path / "x.parquet").stat().st_size == stat.st_size
        os.utime(tmp_path / "x.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        (tmp_path / "out" / dataset.shards[0].path).unlink()
        with pytest.raises(SourceError, match="it looks unchanged"):
            repair(str(tmp_path / "out"), originals=[Original(url=str(tmp_path / "x.parquet"))])

    def test_may_be_another_function(self, tmp_path: Path) -> None:
        source, module = tmp_path / "x.parquet", tmp_path / "rebuild_changed.py"
        pq.write_table(make_table(300), source)
        module.write_text("def f(batch): return batch\n")
        steps = (MapBatches(function="rebuild_changed:f", folder=str(tmp_path)),)
        dataset = built(str(source), tmp_path / "out", label="label", shards=3, prepare=PrepareOptions(steps=steps))
        (tmp_path / "out" / dataset.shards[0].path).unlink()
        module.write_text("def f(batch): return batch.take(list(range(batch.num_rows))[::-1])\n")
        flags = ["-m", "ringfeed.tools.shard_dataset", "repair", "out", "--source", str(source), "--trust-code"]
        done = subprocess.run([sys.executable, *flags], cwd=tmp_path, capture_output=True, text=True)
        assert "was changed since, or the function of --map was (written by" in done.stderr

    def test_that_is_missing_is_reported_first(self, root: Path, pristine: Dataset) -> None:
        (root / pristine.shards[0].path).unlink()
        with pytest.raises(SourceError, match="there is nothing at"):
            repair(str(root), originals=[Original(url=str(root.parent / "nowhere.parquet"))])

    def test_is_not_read_if_nothing_needs_it(self, root: Path, pristine: Dataset) -> None:
        (root / pristine.shards[0].index_path).unlink()
        repair(str(root), originals=[Original(url="/nowhere")])
        assert contents(root) == contents(Path(pristine.storage.locate()))


def relabelled(table: pa.Table) -> pa.Table:
    labels = table["label"].to_pylist()
    labels[labels.index("a")] = "b"
    return table.set_column(table.schema.get_field_index("label"), "label", pa.array(labels))


class TestInterrupted:
    def test_killed_at_any_write_and_run_again(self, pristine: Dataset, original: Original, tmp_path: Path) -> None:
        whole = contents(Path(pristine.storage.locate()))
        for last in range(20):
            root = Path(shutil.copytree(pristine.storage.locate(), tmp_path / f"{last}"))
            for shard in pristine.shards[1:4]:
                blank(root / shard.path)
            (root / "_ringfeed/dataset.json").unlink()
            done = ends_in_writes(partial(repair, str(root), originals=[original]), root, last)
            repair(str(root), originals=[original])
            assert contents(root) == whole
            if done:
                break
        assert 4 <= last < 19

    def test_killed_at_random_and_run_again(self, store: Store, tmp_path: Path) -> None:
        """By SIGKILL, as a process of its own; the mark that it leaves keeps builds and `clean` off."""
        source = tmp_path / "x.parquet"
        write_table(make_table(10_000), source)
        dataset = built(str(source), store.url, label="label", shards=8)
        whole = {name: store.read_bytes(name) for name in store.list()}
        program = str(Path(sys.executable).with_name("shard-dataset"))
        argv = [program, "repair", store.url, "--source", str(source), "--workers", "1"]
        env, rng = os.environ | store.env, random.Random(0)
        for shard in dataset.shards[2:6]:
            store.write_bytes(shard.path, bytes(shard.bytes))
        store.delete("_ringfeed/dataset.json")
        killed = 0
        while killed < 2:
            process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while LEASE_NAME not in store.list() and process.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 0.6))
            killed += 1
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            elif process.returncode == 0:
                break
        if LEASE_NAME in store.list() and "_ringfeed/dataset.json" not in store.list():
            with pytest.raises(DestinationError, match="repair it first"):
                clean(Storage(store.url))
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
        assert {name: store.read_bytes(name) for name in store.list()} == whole
        clean(Storage(store.url))  # what was made for it on this machine


class TestOneWriter:
    def test_repairs_and_builds_exclude_each_other(self, root: Path, pristine: Dataset, original: Original) -> None:
        (root / pristine.shards[0].path).unlink()
        before = contents(root)
        with hold_lease(Storage(str(root)), {}) as lease:
            with pytest.raises(DestinationError, match="another build is writing to"):
                repair(str(root), originals=[original])
            lease.release(keep=False)
        assert contents(root) == before
        options = BuildOptions(source=original.url, destination=str(root), label="label", overwrite=True)
        refused = []

        def rebuilding(progress: Progress) -> None:
            if progress.stage == "write":
                with pytest.raises(DestinationError, match="another repair is writing to") as raised:
                    build(options)
                refused.append(raised)
                with pytest.raises(DestinationError, match="another repair is writing to"):
                    clean(Storage(str(root)))

        repair(str(root), originals=[original], rebuilding=rebuilding)
        assert len(refused) == 1
        assert verify(str(root)) == []

    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SourceError])
    def test_the_lease_is_always_released(
        self, root: Path, pristine: Dataset, original: Original, error: type[BaseException]
    ) -> None:
        (root / pristine.shards[0].path).unlink()
        before = contents(root)

        def fail(progress: Progress) -> None:
            if progress.stage == "write":
                raise error

        with pytest.raises(error):
            repair(str(root), originals=[original], rebuilding=fail)
        assert contents(root) == before

    def test_a_dataset_changed_after_planning_is_left_alone(
        self, root: Path, pristine: Dataset, original: Original
    ) -> None:
        (root / pristine.shards[0].path).unlink()

        def overwrite(_: Progress) -> None:
            (root / "more.txt").write_text("changed")

        with pytest.raises(DestinationError, match="changed while the repair was planned; run the repair again"):
            repair(str(root), originals=[original], rebuilding=overwrite)

    def test_a_dataset_with_the_lease_of_a_killed_repair_is_a_dataset(self, root: Path, pristine: Dataset) -> None:
        whole = contents(root)
        with hold_lease(Storage(str(root)), {"task": "repair"}):
            pass  # not released: as if it was killed
        mark = (root / LEASE_NAME).read_text().replace('"pid": ', '"pid": 9')
        (root / LEASE_NAME).write_text(mark)
        options = BuildOptions(source=pristine.manifest.source["url"], destination=str(root), label="label", shards=4)
        with pytest.raises(DestinationError, match="already holds a dataset"):
            build(options)
        (root / LEASE_NAME).write_text(mark)
        (root / "_ringfeed/dataset.json").unlink()
        for act in (lambda: build(options), lambda: clean(Storage(str(root)))):
            with pytest.raises(DestinationError, match=r"whose dataset\.json is missing; repair it first"):
                act()
        repair(str(root))
        assert contents(root) == whole

    def test_without_a_lease_a_lost_manifest_is_no_reason_to_clean_up(self, root: Path) -> None:
        (root / "_ringfeed/dataset.json").unlink()
        before = contents(root)
        with pytest.raises(DestinationError, match="repair it first: shard-dataset repair"):
            clean(Storage(str(root)))
        assert contents(root) == before


def test_a_dry_run_reports_what_it_would_do(root: Path, pristine: Dataset, original: Original) -> None:
    blank(root / pristine.shards[0].path)
    before = contents(root)
    told = repair(str(root), originals=[original], dry_run=True)
    assert contents(root) == before
    assert [(remedy.path, remedy.action) for remedy in told.remedies] == [(pristine.shards[0].path, "rebuild")]
    assert told.lost == ()
    assert repair(str(root), originals=[original]) == told
    assert plan_repair(str(root)).remedies == ()
