"""Companion files of other programs survive resumed builds, and are checked and rebuilt."""

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    BuildOptions,
    Dataset,
    Storage,
    build,
    check_dataset,
    clean,
    open_dataset,
    plan_repair,
    repair,
    verify,
)
from ringfeed.sharding.dataset import tfds_files as tfds
from tests.helpers.builds import built, interrupted, is_heartbeat, make_table, rows_of_blocks
from tests.helpers.files import all_files, contents

BUILD = import_module("ringfeed.sharding.building.build")  # the package has a function of this name
SHARDS = 4
OPTIONS: dict[str, Any] = {"label": "label", "shards": SHARDS, "dali_index": True}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("pristine")
    pq.write_table(make_table(900), folder / "x.parquet")
    return built(str(folder / "x.parquet"), folder / "out", **OPTIONS)


def index_of(dataset: Dataset, number: int) -> str:
    return dataset.shards[number].dali_path


def change(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 255
    path.write_bytes(data)


def test_the_manifest_and_the_plan_list_them(pristine: Dataset, parquet: str) -> None:
    indexes = [index_of(pristine, number) for number in range(SHARDS)]
    assert list(pristine.manifest.files) == [*indexes, "dataset_info.json", "features.json"]
    assert pristine.manifest.options["dali_index"] is True
    assert "dali_index" not in BuildOptions(source=parquet, destination="out").recorded()


class TestBuild:
    @pytest.mark.parametrize("damaged", [False, True])
    def test_files_of_finished_shards_are_kept(self, parquet: str, tmp_path: Path, damaged: bool) -> None:
        built(parquet, tmp_path / "whole", **OPTIONS)

        options = BuildOptions(source=parquet, destination=str(tmp_path / "out"), **OPTIONS)
        interrupted(options, 2)
        first, second = sorted((tmp_path / "out").glob("_ringfeed/*.idx"))[:2]
        written = first.stat().st_mtime_ns, second.stat().st_mtime_ns
        if damaged:
            change(second, 3)
        build(options)
        assert first.stat().st_mtime_ns == written[0]
        assert (second.stat().st_mtime_ns == written[1]) is not damaged
        assert contents(tmp_path / "out") == contents(tmp_path / "whole")

    def test_a_shard_that_is_streamed_has_the_same(self, parquet: str, tmp_path: Path) -> None:
        built(parquet, tmp_path / "whole", **OPTIONS)
        with rows_of_blocks(7):
            built(parquet, tmp_path / "blocks", **OPTIONS)
        for path in (tmp_path / "whole").glob("_ringfeed/*.idx"):
            assert (tmp_path / "blocks/_ringfeed" / path.name).read_bytes() == path.read_bytes()
        assert verify(str(tmp_path / "blocks")) == []

    def test_a_dataset_that_is_replaced_leaves_none(self, parquet: str, root: Path) -> None:
        built(parquet, root, label="label", shards=2, shard_format="parquet", overwrite=True)
        assert {path.suffix for path in all_files(root)} == {".json", ".parquet", ".index", ".table"}
        assert list(root.glob("*.json")) == []

    def test_a_failed_replacement_leaves_those_that_were_there(
        self, parquet: str, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = contents(root)

        def fail(*_: object) -> None:
            raise ValueError("planted")

        monkeypatch.setattr(BUILD, "seal", fail)
        with pytest.raises(ValueError, match="planted"):
            built(parquet, root, **(OPTIONS | {"shards": 2, "overwrite": True}))
        assert contents(root) == before

    def test_cleaning_removes_none_of_a_dataset(self, root: Path) -> None:
        before = contents(root)
        assert clean(Storage(str(root))) == []
        assert contents(root) == before


class TestDamages:
    def test_damage_of_each_is_found_and_located(self, root: Path, pristine: Dataset) -> None:
        change(root / "dataset_info.json", 40)
        (root / "features.json").unlink()
        cut = root / index_of(pristine, 1)
        cut.write_bytes(cut.read_bytes()[:-5])
        a, b = (root / index_of(pristine, number) for number in (2, 3))
        a.rename(root / "aside")
        b.rename(a)
        (root / "aside").rename(b)
        found = {damage.path: (damage.kind, damage.offset) for damage in verify(str(root))}
        assert found == {
            "dataset_info.json": ("altered", 40),
            "features.json": ("missing", None),
            index_of(pristine, 1): ("truncated", cut.stat().st_size),
            index_of(pristine, 2): ("swapped", 0),
            index_of(pristine, 3): ("swapped", 0),
        }

    def test_all_are_rebuilt_bit_by_bit(self, root: Path, pristine: Dataset) -> None:
        for name in pristine.manifest.files:
            change(root / name, 10)
        (root / index_of(pristine, 0)).unlink()
        (root / pristine.shards[0].index_path).unlink()  # that it is made from
        change(root / "_ringfeed/dataset.json", 500)
        plan = plan_repair(str(root))
        assert {remedy.action for remedy in plan.remedies} == {"rewrite"}
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_a_file_of_another_version_is_rewritten(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "features.json").unlink()
        monkeypatch.setattr(tfds, "_FEATURES", "elsewhere.features")
        assert repair(str(root)).lost == ()
        assert b"elsewhere" in (root / "features.json").read_bytes()
        checked = check_dataset(str(root))
        assert (checked.damages, checked.notes) == ((), ())


class TestLosses:
    def test_lost_records_are_in_none(self, root: Path, pristine: Dataset) -> None:
        first, second = pristine.shards[:2]
        for offset in range(1000, 1300):
            change(root / first.path, offset)
        for path in (second.path, second.index_path):
            (root / path).unlink()
        planned = {remedy.path: remedy.action for remedy in plan_repair(str(root)).remedies}
        assert [planned[index_of(pristine, number)] for number in (0, 1)] == ["salvage", "remove"]
        assert [planned[name] for name in tfds.TFDS_NAMES] == ["remove", "remove"]
        repair(str(root))
        dataset = open_dataset(str(root))
        assert list(dataset.manifest.files) == [index_of(dataset, number) for number in range(3)]
        assert dataset.shards[0].path == "train-00000-of-00004.salvaged.tfrecord"
        assert len((root / index_of(dataset, 0)).read_text().splitlines()) == dataset.shards[0].records
        checked = check_dataset(str(root), deep=True)
        assert (checked.damages, checked.notes) == ((), ())
        assert "a repair left records out" in tfds.tfds_obstacle(dataset.manifest, dataset.shards)

    def test_a_repair_killed_at_any_step_can_be_run_again(
        self, root: Path, pristine: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for offset in range(1000, 1300):
            change(root / pristine.shards[0].path, offset)
        change(root / index_of(pristine, 1), 0)
        expected = Path(shutil.copytree(root, tmp_path / "expected"))
        repair(str(expected))
        step = killed = 0
        while killed == step:
            step += 1
            copy = Path(shutil.copytree(root, tmp_path / f"step-{step}"))
            with monkeypatch.context() as patch:
                killed += kills(copy, step, patch)
            repair(str(copy))
            mark = {"_building.json"} & contents(copy).keys()  # of one killed with nothing left to do but remove it
            assert contents(copy) == contents(expected) | {name: contents(copy)[name] for name in mark}
        assert step > 6


def kills(root: Path, step: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether a repair that is killed at its n-th write or removal comes to that."""
    left = step

    def killing(name: str) -> None:
        original = getattr(Storage, name)

        def operation(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= not is_heartbeat()
            if not left:
                raise KeyboardInterrupt
            return original(*arguments, **more)

        patch.setattr(Storage, name, operation)

    for name in ("write", "remove"):
        killing(name)
    try:
        repair(str(root))
    except KeyboardInterrupt:
        return True
    return False
