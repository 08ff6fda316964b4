"""A long elastic run whose hosts are lost one after another, in every way; data and checkpoints are on S3.

After each loss the run goes on, or ends in one line and is resumed by the same command. In the end each sample counts
once an epoch up to the last commit, and the weights equal an undisturbed run's.
"""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from ringfeed.training.checkpoint.store import CheckpointStore
from tests.helpers.host_runs import CLI, SHARD_DATASET, HostRun, Seen, run_on, store_on, training_lab
from tests.servers.lab import CLOCKED, Host, Lab, missing

pytest.importorskip("horovod", reason="Horovod is built by: make setup")
pytestmark = [pytest.mark.campaign, pytest.mark.skipif(bool(missing()), reason=missing() or "")]

HOSTS = int(os.environ.get("RINGFEED_HOSTS", "6"))
EVERY = 5  # steps between checkpoints
GO_ON_SECONDS = 30.0  # after a silent loss, on an idle machine
ENDED_SECONDS = 50.0  # after the launcher's host is lost
PATIENCE_SECONDS = 150.0
SAME = {"data.url": "s3://bucket/data", "epochs": "1000"}
SAVE = """
import re, sys
import numpy as np
from ringfeed.training.checkpoint.store import CheckpointStore
store, every = CheckpointStore(sys.argv[1]), int(sys.argv[2])
step = max(step for step in (int(name[5:15]) for name in store.names()) if step % every == 0)
found = store.of_step(step, store.newest().run)
np.savez("weights.npz", **{name: array for name, array in found.arrays.items() if name.startswith("weights")})
print(step)
"""


def _set(keys: dict[str, str]) -> list[str]:
    return [word for item in keys.items() for word in ("--set", "=".join(item))]


def _kill_rank(host: Host) -> None:
    for pid, line in host.processes().items():
        if "tools.cli train" in line:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _pull_for_a_moment(host: Host) -> None:
    host.cut()
    time.sleep(3)
    host.heal()


class Loss(NamedTuple):
    """A way to lose a host: what happens, for how many seconds at least and at most, and what undoes it."""

    strike: Callable[[Host], None]
    seconds: tuple[float, float] = (0, 0)
    undo: Callable[[Host], None] = lambda host: None


LOSSES = {
    "process killed": Loss(_kill_rank),
    "host off": Loss(Host.power_off, (5, 15), Host.power_on),
    "cable pulled": Loss(Host.cut, (8, 25), Host.heal),
    "cable pulled for 3 s": Loss(_pull_for_a_moment),
    "slow link": Loss(lambda host: host.limit("1mbit"), (20, 20), Host.unlimit),
    "nothing sent arrives": Loss(Host.drop_sent, (8, 20), Host.unlimit),
    "host stopped": Loss(Host.pause, (8, 20), Host.proceed),
    "clock an hour ahead": Loss(lambda host: host.set_clock(3600), (5, 15), lambda host: host.set_clock(0)),
    "disk full": Loss(Host.fill_disk, (5, 15), Host.free_disk),
}


@dataclass(kw_only=True)
class Campaign:
    """Losses of hosts of one run, which is resumed where it ends."""

    lab: Lab
    store: Host
    environ: dict[str, str]
    random: random.Random
    launcher: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    endings: list[str] = field(default_factory=list)
    losses: list[tuple[float, str, Host]] = field(default_factory=list)
    strikes: Counter[str] = field(default_factory=Counter)
    run: HostRun = field(init=False)

    @property
    def others(self) -> list[Host]:
        """The hosts of the run but the launcher's."""
        return [host for number, host in enumerate(self.lab.hosts[:HOSTS]) if number != self.launcher]

    def write_hosts(self, hosts: list[Host]) -> None:
        first = self.lab.hosts[self.launcher]
        (self.lab.shared / "hosts").write_text("".join(f"{host.name}:1\n" for host in [*hosts, first]))

    def start(self, *, resumes: bool = True) -> None:
        words = ["launch", "--hosts-file", "hosts", "--elastic", "train", "--config", "run.yaml"]
        command = [*CLOCKED, *CLI, *words, *_set({"data.cache": "/tmp/cache", "checkpoint.keep": "5", **SAME})]
        self.run = HostRun(
            self.lab,
            "s3://bucket/run",
            command=command,
            launcher=self.launcher,
            resumes=resumes,
            pause_seconds=0.4,
            **self.environ,
        )

    def newest(self) -> Seen:
        return max(self.run.seen(), key=lambda seen: (seen.step, seen.when))

    def ring_hosts(self) -> set[str]:
        """The hosts of the newest ring."""
        seen = self.run.seen()
        return {each.host for each in seen if seen and each.ring == seen[-1].ring}

    def go_on(self, what: str, since: float, patience: float = PATIENCE_SECONDS) -> None:
        """Wait for further steps after a loss; resume the run if it has ended in one line."""
        begun = max((seen.step for seen in self.run.seen() if seen.when < since), default=-1)
        deadline = since + patience
        while not any(seen.step > begun + 1 for seen in self.run.seen()):
            if self.run.process.poll() is not None:
                self.end_in_one_line(what)
                self.undo()
                self.start()
                deadline = time.monotonic() + patience
            assert time.monotonic() < deadline, f"{what}: stands still; {self.stop()}"
            time.sleep(0.1)
        self.seconds.setdefault(what, []).append(time.monotonic() - since)
        print(f"{what}: on after {self.seconds[what][-1]:.1f} s, {self.newest()[1:6]}", flush=True)

    def end_in_one_line(self, what: str) -> None:
        """Check how the run has ended, and that nothing of it remains."""
        status, stderr = self.run.end()
        print(stderr, flush=True)
        line = stderr.splitlines()[-1]
        self.endings.append(f"{what}: {status}: {line}")
        assert status in (1, 75), stderr
        assert re.match("ringfeed launch: ", line), stderr
        self.wait_until_no_rank_runs()

    def wait_until_no_rank_runs(self) -> None:
        deadline = time.monotonic() + 120
        while any("ringfeed" in line for host in self.lab.hosts[:HOSTS] for line in host.processes().values()):
            assert time.monotonic() < deadline, "a rank outlives its launcher"
            time.sleep(0.2)

    def stop(self) -> str:
        self.run.launcher().terminate()
        return self.run.end()[1]

    def strike(self, names: list[str]) -> None:
        """Lose hosts, one in each way, at nearly the same time; those that train, if enough do within a minute."""
        deadline = time.monotonic() + 60
        while len(in_ring := [host for host in self.others if host.name in self.ring_hosts()]) < len(names):
            if time.monotonic() > deadline or self.run.process.poll() is not None:
                break
            time.sleep(0.1)
        victims = self.random.sample(in_ring if len(in_ring) >= len(names) else self.others, len(names))
        self.strikes.update("training" if host in in_ring else "not training" for host in victims)
        what, since = " and ".join(names), time.monotonic()
        for name, host in zip(names, victims, strict=True):
            LOSSES[name].strike(host)
            self.losses.append((time.monotonic() + self.random.uniform(*LOSSES[name].seconds), name, host))
        print(f"{what}: {', '.join(host.name for host in victims)} of {sorted(self.ring_hosts())}", flush=True)
        self.go_on(what, since)
        self.undo()
        self.go_on("all undone", time.monotonic())

    def undo(self) -> None:
        """Undo what still lasts, each at its time."""
        for end, name, host in sorted(self.losses, key=lambda entry: entry[0]):
            time.sleep(max(0.0, end - time.monotonic()))
            LOSSES[name].undo(host)
        self.losses.clear()

    def lose_store(self) -> None:
        since = time.monotonic()
        self.store.cut()
        time.sleep(30)
        self.store.heal()
        self.go_on("S3 host gone for 30 s", since)

    def change_hosts(self) -> None:
        since = time.monotonic()
        self.write_hosts(self.random.sample(self.others, self.random.randint(2, len(self.others))))
        self.go_on("hosts file changed", since)

    def lose_launcher(self) -> None:
        """Power the launcher's host off, and resume on another one, once the ranks have ended."""
        host = self.lab.hosts[self.launcher]
        host.power_off()
        since = time.monotonic()
        print(self.run.process.communicate(timeout=60)[1])
        self.wait_until_no_rank_runs()
        self.seconds.setdefault("ranks without the launcher's host ended", []).append(time.monotonic() - since)
        assert self.seconds["ranks without the launcher's host ended"][-1] < ENDED_SECONDS
        host.power_on()
        self.launcher = (self.launcher + 1) % HOSTS
        self.write_hosts(self.others)
        self.start()
        self.go_on("the launcher's host off", since, patience=300.0)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with (
        training_lab(tmp_path_factory.mktemp("lab"), HOSTS + 1) as lab,
        store_on(store := lab.hosts[HOSTS]) as environ,
    ):
        lab.make_clocks()
        run_on(store, SHARD_DATASET, "build", "source.parquet", "s3://bucket/data", "--label", "label", **environ)
        seed = int(os.environ.get("RINGFEED_SEED", "1"))
        yield Campaign(lab=lab, store=store, environ=environ, random=random.Random(seed))


def test_campaign_of_losses(campaign: Campaign) -> None:
    """As many losses as `RINGFEED_LOSSES` says, within `RINGFEED_MINUTES`; the launcher's host is lost last."""
    losses, count = int(os.environ.get("RINGFEED_LOSSES", "100")), 0
    end = time.monotonic() + 60 * float(os.environ.get("RINGFEED_MINUTES", "inf"))
    draw = campaign.random
    campaign.write_hosts(campaign.others)
    campaign.start(resumes=False)
    campaign.go_on("start", time.monotonic())
    while count < losses and time.monotonic() < end:
        count += 1
        kind = draw.choices(["one", "two", "store", "hosts", "launcher"], [12, 3, 1, 2, 0.3])[0]
        print(f"-- {count}", flush=True)
        if kind == "one":
            campaign.strike([draw.choice(sorted(LOSSES))])
        elif kind == "two":
            count += 1
            campaign.strike(draw.choices(sorted(LOSSES), k=2))
        elif kind == "store":
            campaign.lose_store()
        elif kind == "hosts":
            campaign.change_hosts()
        else:
            campaign.lose_launcher()
        time.sleep(draw.choice([0, 0, 1, 5]))
    campaign.lose_launcher()
    stderr = campaign.stop()
    print(stderr)
    stopped = int(re.findall(r"the checkpoint of step (\d+) is in", stderr)[-1])
    for what, seconds in sorted(campaign.seconds.items()):
        print(f"{what}: {len(seconds)} times, on after {statistics.median(seconds):.1f} s, at most {max(seconds):.1f}")
    print(*campaign.endings, f"{count} losses, hosts hit: {dict(campaign.strikes)}, {stopped} steps", sep="\n")
    campaign.run.assert_whole(stopped)
    first = campaign.lab.hosts[campaign.launcher]
    step = int(run_on(first, sys.executable, "-c", SAVE, "s3://bucket/run", str(EVERY), **campaign.environ))
    assert step > stopped - EVERY
    with np.load(campaign.lab.shared / "weights.npz") as weights:
        for name, array in _undisturbed(campaign, step).items():
            np.testing.assert_allclose(weights[name], array, rtol=1e-4, atol=1e-6)


def _undisturbed(campaign: Campaign, step: int) -> dict[str, Any]:
    """The weights of one rank after a step."""
    host = f"h{campaign.launcher + 1}:1"
    command = [*CLI, "launch", "-H", host, "train", "--config", "run.yaml", *_set(SAME)]
    run = HostRun(campaign.lab, "undisturbed", command=command, launcher=campaign.launcher, **campaign.environ)
    store = CheckpointStore(str(campaign.lab.shared / "undisturbed"))
    run.wait_for(lambda: any(int(name[5:15]) == step for name in store.names()))
    run.launcher().kill()
    run.process.communicate(timeout=60)
    newest = store.newest()
    assert newest is not None
    found = store.of_step(step, newest.run)
    return {name: np.asarray(array) for name, array in found.arrays.items() if name.startswith("weights")}
