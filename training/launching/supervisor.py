"""Runs the ranks of an elastic run: starts them, here or on hosts, gives them their places, and replaces the dead.

`Group` decides; here are processes, pipes and clocks.
Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import printable
from ringfeed.training.run.stopping import TERMINATED

from .endings import Ending, LauncherSignals, cause_of_death
from .group import ElasticRank, Group, Phase
from .hosts import WantedHosts
from .process_group import ProcessGroup
from .restarts import Restarts

_FILE_SECONDS = 1.0  # between looks at --hosts-file
_STALL_SECONDS = 1.0  # the ranks of a ring that has stalled come back at once
_REST_SECONDS = 30.0  # between two tries of a host that cannot be reached
_JOIN_SECONDS = 5.0  # ranks join within seconds, unless one of them has died


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """The ranks of an elastic run."""

    processes: ProcessGroup[int]  # starts them
    # Serves a ring of ranks, by the host of each; yields their environments
    places: Callable[[Sequence[str]], AbstractContextManager[Sequence[Mapping[str, str]]]]
    wanted: WantedHosts  # the ranks that are wanted
    restarts: Restarts  # counts failures, and lowers the number of ranks
    signals: LauncherSignals  # the launcher's signals
    patience_seconds: float  # time that survivors have to rejoin; 0: no limit
    _group: Group = field(init=False)
    _started: int = 0  # processes so far
    _rendezvous: ExitStack = field(default_factory=ExitStack)
    _is_told: bool = False  # the ring is to end for another one
    _is_over: bool = False  # a rank has ended the run: no other is started
    _has_failed: bool = False  # this ring
    _lost: set[int] = field(default_factory=set)  # processes of this ring that did not answer
    _deadline: float = float("inf")  # ranks that do not come back or join are killed then
    _mistake: str = ""  # in --hosts-file, at the last look
    _named_mistake: str = ""
    _ending: Ending | None = None
    _blamed: tuple[str, int] | None = None  # the host whose rank reported an error last, and the newest commit's step
    _resting: dict[str, float] = field(default_factory=dict)  # hosts that were lost: the time from which to try again

    def run(self) -> Ending:
        self._group = Group(wanted=self.restarts.ranks, least=self.restarts.least, hosts=self.wanted.hosts)
        try:
            with self.processes:
                return self._supervise()
        finally:
            self._rendezvous.close()

    def _supervise(self) -> Ending:
        looked = time.monotonic()
        while True:
            while self._group.missing and not self._is_over:
                self._start()
            self.processes.listen()
            for number in [n for n, process in self.processes.processes.items() if process.code is not None]:
                self._bury(number)
            if self._ending and self._ending.status == 1:
                return self._ending
            if self._is_over and not self.processes.processes:
                return self._ending or Ending(status=TERMINATED, line="interrupted")
            if ending := self.signals.ending(self._terminate):
                return ending
            now = time.monotonic()
            self._group.resting = {host for host, end in self._resting.items() if now < end}
            if now - looked > _FILE_SECONDS and not self._is_over:
                looked = now
                self._look_for_changes()
            self._act(now)

    def _look_for_changes(self) -> None:
        """Resize the run if its file has changed; a file that cannot be read changes nothing, and is named once."""
        before, self._mistake = self._mistake, ""
        try:
            if self.wanted.has_changed():
                self._resize()
        except ConfigError as error:
            self._mistake = str(error)
            if self._mistake == before and before != self._named_mistake:  # else it is being written
                self._named_mistake = before
                sys.stderr.write(f"ringfeed launch: {printable(before)}; going on as before\n")

    def _terminate(self) -> None:
        self._is_over, self._group.least = True, 0
        self.processes.terminate()

    def _act(self, now: float) -> None:
        """Make a ring, ask for another one, or end ranks that hold it up, if it is time."""
        if self._ending:
            self._dismiss(self._group.of(Phase.WAITING, Phase.STARTING))
        elif ring := self._group.next_ring():
            self._form(ring)
        elif self._group.is_change_due() and not self._is_told and not self._is_over:
            self._is_told = True
            for number in self._group.of(Phase.TRAINING):
                self._send(number, {"regroup": True})
        if now > self._deadline:
            self._deadline = float("inf")
            for number in self._group.of(Phase.JOINING) or self._group.of(Phase.TRAINING):
                self.processes.processes[number].kill()

    # -- processes -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        number, host = self._started, self._group.free_host()
        slot, local_size = self._group.free_slot(host), min(self._group.hosts[host], self._group.wanted)
        self._started += 1
        environment = {"RINGFEED_SLOT": str(slot), "HOROVOD_RANK": str(slot), "HOROVOD_HOSTNAME": host}
        environment |= {"HOROVOD_SIZE": str(self._group.wanted), "HOROVOD_LOCAL_SIZE": str(local_size)}  # for now
        self._group.members[number] = member = ElasticRank(host=host, slot=slot)
        self.processes.start(number, environment, functools.partial(self._hear, member))

    def _bury(self, number: int) -> None:
        """Take a process that has ended out of the run, and draw the consequences."""
        process, member = self.processes.processes[number], self._group.members[number]
        self.processes.listen_until(lambda: not process.sources)
        self.processes.drop(number)
        del self._group.members[number]
        code, report = process.code, process.report
        if member.phase is Phase.LEAVING or self._ending:
            return
        if code == 0:
            self._is_over, self._ending = True, Ending(status=0)  # all ranks have agreed that the run is finished
        elif report and not report.is_echo and not report.is_stall:
            is_common = report.status != 1 or self._others_say(report.message)
            line = report.message if is_common else f"{process.named(member.name)}: {report.message}"
            if not is_common and self._blame(member):
                if not self._rest(member, line):
                    self._replace(member, line, None)
                return
            self._is_over, self._ending = True, Ending(status=report.status, line=line)
        elif not self._is_over:
            if process.loss and self._rest(member, f"host {process.host}: {process.loss}"):
                return
            name = process.named(member.name)
            line = f"{name}: {process.loss}" if process.loss else cause_of_death(name, code)
            if report and report.is_stall:
                line = report.message
            elif number in self._lost:
                line = f"{name} does not answer: stopped, or its machine is gone"
            self._replace(member, line, _STALL_SECONDS if report and report.is_stall else None)

    def _blame(self, member: ElasticRank) -> bool:
        """Return whether an error that one rank reports is its host's, such as a full disk, and the others can go on.

        It is not if a rank on another host has reported one since the newest commit: then it is in the data, say.
        """
        others = [other for other in self._group.members.values() if other.host != member.host]
        step = max((other.step for other in others), default=-1)
        blamed, self._blamed = self._blamed, (member.host, step)
        return step >= 0 and (blamed is None or blamed[0] == member.host or blamed[1] < step)

    def _rest(self, member: ElasticRank, loss: str) -> bool:
        """Let a host rest that is lost or fails; return whether that is all, since it had no rank in the ring."""
        is_news = member.host not in self._resting
        self._resting[member.host] = time.monotonic() + _REST_SECONDS
        self._group.resting = set(self._resting)
        if member.rank >= 0:
            return False
        if not self._group.members and not self._group.missing:
            self._is_over, self._ending = True, Ending(status=1, line=loss)
        elif is_news:
            sys.stderr.write(f"ringfeed launch: {printable(loss)}; trying again every {_REST_SECONDS:.0f} s\n")
        return True

    def _others_say(self, message: str) -> bool:
        """Whether another rank reports the same, as they do about a mistake in the configuration."""
        others = self.processes
        return bool(others.processes) and others.listen_until(
            lambda: any(report.message == message for report in others.reports().values())
        )

    def _replace(self, member: ElasticRank, line: str, seconds: float | None) -> None:
        is_of_ring = member.rank >= 0  # a newcomer that dies does not harm the ring
        is_news = not is_of_ring or not self._has_failed
        if is_of_ring:
            self._has_failed = True
            self._expect_back(seconds)
        if not is_news:  # ranks may abort when another one dies
            return
        step = max((m.step for m in self._group.members.values()), default=-1)
        lived = 0.0 if member.joined is None else time.monotonic() - member.joined
        before = self.restarts.ranks
        reason = self.restarts.after_failure(line, step, (member.host, member.slot), lived)
        if reason is not None:
            self._is_over, self._ending = True, Ending(status=1, line=reason)
            return
        self._group.wanted = self.restarts.ranks
        then = f"starting {'another' if self._group.missing else 'none'} instead"
        if self.restarts.ranks < before:
            ranks = f"{self.restarts.ranks} rank{'s' if self.restarts.ranks > 1 else ''}"
            then += f", after three failures in a row: --elastic goes on with {ranks}"
        sys.stderr.write(f"ringfeed launch: {printable(line)}; {then}\n")

    def _expect_back(self, seconds: float | None = None) -> None:
        """Give the ranks of a ring that has ended some time to come back; to join it, if some still try."""
        if seconds is None:
            seconds = _JOIN_SECONDS if self._group.of(Phase.JOINING) else self.patience_seconds or float("inf")
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _resize(self) -> None:
        self._group.hosts, ranks = self.wanted.hosts, self.wanted.number
        self._group.wanted = self.restarts.ranks = ranks
        self._resting = {}
        homeless = [n for n, member in self._group.members.items() if not self._group.has_place(member)]
        surplus = len(self._group.members) - len(homeless) - ranks
        starting = [number for number in self._group.of(Phase.STARTING) if number not in homeless]
        waiting = set(self._group.of(Phase.STARTING, Phase.WAITING))
        self._dismiss([*starting[: max(0, surplus)], *waiting.intersection(homeless)])

    def _dismiss(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if self._group.members[number].phase is Phase.STARTING:
                self.processes.processes[number].kill()
            self._group.members[number].phase = Phase.LEAVING
            self._send(number, {"environment": None})

    # -- messages --------------------------------------------------------------------------------------------------

    def _form(self, ring: Sequence[int]) -> None:
        """Give processes their places in a ring; those that are left over go."""
        self._dismiss([number for number in self._group.of(Phase.WAITING) if number not in ring])
        is_first = all(self._group.members[number].rank < 0 for number in ring)
        self._rendezvous.close()
        self._rendezvous = ExitStack()
        hosts = [self._group.members[number].host for number in ring]
        for rank, environment in enumerate(self._rendezvous.enter_context(self.places(hosts))):
            member = self._group.members[ring[rank]]
            member.phase, member.rank = Phase.JOINING, rank
            self._send(ring[rank], {"environment": environment})
        self._is_told = self._has_failed = False
        self._lost.clear()
        self._deadline = float("inf")
        if not is_first:
            step = self._group.members[ring[0]].step
            sys.stderr.write(f"ringfeed launch: going on with {len(ring)} ranks from step {step}\n")

    def _send(self, number: int, message: object) -> None:
        self.processes.processes[number].send(message)

    def _lose(self, ranks: Sequence[int]) -> None:
        """End ranks that do not answer, as the first of the others says; those would say it of the others."""
        if not self._lost:
            in_ring = self._group.of(Phase.JOINING, Phase.TRAINING)
            self._lost |= {number for number in in_ring if self._group.members[number].rank in ranks}
            for number in self._lost:
                self.processes.processes[number].kill()

    def _hear(self, member: ElasticRank, message: dict[str, Any]) -> None:
        if member.phase is Phase.LEAVING:
            return
        if "lost" in message:
            self._lose(message["lost"])
        elif "step" in message:
            member.phase, member.step = Phase.WAITING, message["step"]
            if member.rank >= 0:
                self._expect_back()
        else:
            member.phase = Phase.TRAINING
            self._resting.pop(member.host, None)
            member.joined = member.joined or time.monotonic()
            if not self._group.of(Phase.JOINING):
                self._deadline = float("inf")
                if self._has_failed:
                    self._expect_back()
