"""A process that lost its lease writes nothing more, whatever it had begun."""

import json
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding import BuildOptions, DestinationError, clean, plan_repair
from ringfeed.sharding.building.build import build_at
from ringfeed.sharding.destination import clean as cleaning_module
from ringfeed.sharding.destination.leftovers import remove_files
from ringfeed.sharding.repairing.repair import apply_repair
from ringfeed.sharding.storage.fenced_storage import fence_for_workers, fence_storage
from ringfeed.sharding.storage.lease import LEASE_NAME, hold_lease
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from tests.helpers.builds import built, interrupted
from tests.helpers.files import contents
from tests.servers.store import Store

TAKEN = "was taken over by another process"


# As after standing still for long: the mark is looked at each time. A heartbeat may be the first to look, and its draft
# may be seen.
NEVER_SURE = StoreTimings(check_seconds=0, silent_seconds=0, beat_seconds=600)


def take_over(storage: Storage) -> None:
    mark = json.loads(storage.read(LEASE_NAME)) | {"token": "of another"}
    storage.write(LEASE_NAME, json.dumps(mark).encode())


def changes(storage: Storage) -> dict[str, Callable[[], Any]]:
    def stream() -> None:
        with storage.open_output("new") as file:
            file.write(b"x")

    return {
        "write": lambda: storage.write("new", b"x"),
        "write_all": lambda: storage.write_all({"new": b"x", "newer": b"y"}),
        "create": lambda: storage.create("new", b"x"),
        "stream": stream,
        "move": lambda: storage.move("old", "new"),
        "remove": lambda: storage.remove("old"),
    }


@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("how", ["write", "write_all", "create", "stream", "move", "remove"])
def test_nothing_is_written_once_another_process_holds_the_lease(store: Store, how: str, worker: bool) -> None:
    plain = Storage(store.url, timings=NEVER_SURE)
    with hold_lease(plain, {}) as held:
        own: Storage = (
            pickle.loads(pickle.dumps(fence_for_workers(plain, plain, held))) if worker else fence_storage(plain, held)
        )
        own.write("old", b"mine")
        changes(own)[how]()
        for name in store.list():
            if name != LEASE_NAME:
                plain.remove(name)
        plain.write("old", b"theirs")
        take_over(plain)
        with pytest.raises(DestinationError, match=TAKEN):
            changes(own)[how]()
        assert own.read("old") == b"theirs"
        assert store.list() == [LEASE_NAME, "old"]
        held.release(keep=False)
    assert store.list() == [LEASE_NAME, "old"]


def test_a_build_s_workers_write_no_shard_once_another_process_holds_the_lease(parquet: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    there: list[set[str]] = []
    options = BuildOptions(source=parquet, destination=str(out), label="label", shards=12, workers=1)

    def report(progress: Any) -> None:
        if (progress.stage, progress.done) == ("partition", 1):
            take_over(Storage(str(out)))
            there.append({path.name for path in out.iterdir()})

    with pytest.raises(DestinationError, match=TAKEN):
        build_at(Storage(str(out), timings=NEVER_SURE), options, None, report)
    assert {path.name for path in out.iterdir()} == there[0] == {LEASE_NAME}


def test_clean_stops_removing_once_another_process_holds_the_lease(
    parquet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    interrupted(BuildOptions(source=parquet, destination=str(out), label="label", shards=12), 5)

    def meanwhile(storage: Storage, names: Iterable[str]) -> None:
        take_over(Storage(str(out)))
        remove_files(storage, names)

    monkeypatch.setattr(cleaning_module, "remove_files", meanwhile)
    before = contents(out).keys()
    with pytest.raises(DestinationError, match=TAKEN):
        clean(Storage(str(out), timings=NEVER_SURE))
    assert contents(out).keys() == before


def test_a_repair_leaves_a_dataset_that_was_replaced_since_its_plan(parquet: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built(parquet, out, label="label", shards=3)
    damaged = bytearray((out / "_ringfeed/dataset.json").read_bytes())
    damaged[200] ^= 4
    damaged[300] ^= 8
    (out / "_ringfeed/dataset.json").write_bytes(damaged)
    plan = plan_repair(Storage(str(out), timings=NEVER_SURE))
    assert plan.remedies
    built(parquet, out, label="label", shards=3, seed=5, overwrite=True)
    before = contents(out)
    with pytest.raises(DestinationError, match="was changed while the repair was planned; run the repair again"):
        apply_repair(plan)
    assert contents(out) == before
