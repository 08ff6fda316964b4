"""One builder at a destination, however the one before it ended."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringfeed.sharding import DestinationError
from ringfeed.sharding import lease as module
from ringfeed.sharding.lease import LEASE_NAME, hold, read_holder
from ringfeed.sharding.storage import Storage
from tests.servers.store import Store

HOLD = """
import sys, time
from ringfeed.sharding.lease import hold
from ringfeed.sharding.storage import Storage
with hold(Storage(sys.argv[1]), {}):
    print("held", flush=True)
    time.sleep(600)
"""


def edit(folder: Path, **changes: object) -> None:
    path = folder / LEASE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_living_holder_keeps_others_out_and_a_killed_one_does_not(store: Store) -> None:
    storage = Storage(store.url)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.url], env={**os.environ, **store.env}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        wanted = rf"another build is writing to .* \(process {holder.pid} on "
        with pytest.raises(DestinationError, match=wanted), hold(storage, {}):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with hold(storage, {}) as lease:
            assert lease.previous is not None
            assert lease.previous.pid == holder.pid
            lease.release(keep=False)
        assert store.list() == []
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_of_many_that_start_at_once_one_wins(tmp_path: Path) -> None:
    def start(_: int) -> bool:
        try:
            with hold(Storage(str(tmp_path)), {}):
                barrier.wait(10)
                return True
        except DestinationError:
            barrier.wait(10)
            return False

    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start, range(8))) == 1


@pytest.mark.parametrize("beating", [True, False])
def test_a_holder_elsewhere_is_judged_by_its_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beating: bool
) -> None:
    monkeypatch.setattr(module, "_SILENT_SECONDS", 1.0)
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.1 if beating else 60)
    storage = Storage(str(tmp_path))
    real = module.Holder.here
    with hold(storage, {}) as lease:
        monkeypatch.setattr(module.Holder, "here", property(lambda self: False))
        if beating:
            with pytest.raises(DestinationError, match="another build is writing"), hold(storage, {}):
                pass
            lease.check()
        else:
            with hold(storage, {}) as second:
                second.check()
                with pytest.raises(
                    DestinationError, match="was taken over by another process while this one stood still"
                ):
                    lease.check()
        monkeypatch.setattr(module.Holder, "here", real)


def test_one_whose_work_is_to_be_gone_on_with_is_followed_at_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with hold(storage, {"source": "x"}) as lease:
        lease.tell_plan("abc")
        lease.release(keep=True)
    holder = read_holder(storage)
    assert holder is not None
    assert (holder.released, holder.plan) == (True, "abc")
    with hold(storage, {}) as second:
        assert second.previous is not None
        assert second.previous.plan == "abc"


def test_a_process_with_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with hold(storage, {}):
        pass
    edit(tmp_path, started="12345")
    with hold(storage, {}) as second:
        assert second.previous is not None
