"""The hosts of a run: what is a list of them, and a file of them that changes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training import launch
from ringfeed.training.launching.group import ElasticRank, Group, Phase
from ringfeed.training.launching.hosts import WantedHosts, address_towards, is_this_machine, parse_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1:2,h2:1", {"h1": 2, "h2": 1}),
        ("h1, me@h2.example.com:16", {"h1": 1, "me@h2.example.com": 16}),
        ("# ours\nh1 slots=4\n\n10.0.0.2:2 # spare\n", {"h1": 4, "10.0.0.2": 2}),
    ],
)
def test_hosts_are_named_as_horovodrun_and_mpi_name_them(text: str, hosts: dict[str, int]) -> None:
    assert parse_hosts(text, "-H") == hosts


@pytest.mark.parametrize("text", ["h1:0", "h1:two", "h1,h1:2", "-oProxyCommand=x", "h1;h2", "h1:2:3", "h 1"])
def test_what_is_no_host_or_one_twice_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match="needs each host once, as HOST or HOST:RANKS, got"):
        parse_hosts(text, "-H")


def test_a_file_of_hosts_may_change_and_an_empty_one_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("h1:2\nh2:2\n")
    wanted = WantedHosts(str(path), "", 3)
    assert (wanted.number, wanted.by_rank()) == (3, ["h1", "h1", "h2"])
    path.write_text("")
    assert not wanted.has_changed()
    path.write_text("h2:2\n")
    assert wanted.has_changed()
    assert (wanted.number, wanted.hosts) == (2, {"h2": 2})
    with pytest.raises(ConfigError, match="--hosts-file"):
        WantedHosts(str(tmp_path / "none"), "", None)
    with pytest.raises(ConfigError, match="-H names no host"):
        WantedHosts(None, " , ", None)


@pytest.mark.parametrize(("flags", "ranks"), [((), 4), (("-n", "1"), 1)])
def test_a_file_that_grows_asks_for_more_ranks_unless_their_number_is_given(
    tmp_path: Path, flags: tuple[str, ...], ranks: int
) -> None:
    path = tmp_path / "hosts"
    path.write_text("h1:2\n")
    parser = argparse.ArgumentParser()
    launch.add_arguments(parser)
    args = parser.parse_args(["--hosts-file", str(path), *flags, "bench-ring"])
    launch._checked(args, None)
    wanted = launch._wanted_hosts(args)
    path.write_text("h1:2\nh2:2\n")
    assert wanted.has_changed()
    assert wanted.number == ranks


def test_this_machine_is_told_from_others() -> None:
    assert [is_this_machine(host) for host in ("localhost", "me@127.0.0.1", "192.0.2.1")] == [True, True, False]
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_new_processes_go_to_the_first_host_with_room_that_does_not_rest() -> None:
    members = {0: ElasticRank(host="h1", slot=0, phase=Phase.TRAINING, rank=0)}
    group = Group(wanted=4, least=1, hosts={"h1": 2, "h2": 2}, members=members)
    assert (group.missing, group.free_host(), group.free_slot("h1")) == (3, "h1", 1)
    group.resting = {"h1"}
    assert (group.missing, group.free_host(), group.free_slot("h2")) == (2, "h2", 0)
    group.resting = {"h1", "h2"}
    assert group.missing == 0


def test_a_host_that_is_not_wanted_any_more_leaves_the_ring_and_ranks_of_a_host_are_side_by_side() -> None:
    hosts = ("h1", "h2", "h1", "h2")
    members = {
        number: ElasticRank(host=host, slot=number // 2, phase=Phase.TRAINING, rank=number, step=9 + (number == 3))
        for number, host in enumerate(hosts)
    }
    group = Group(wanted=4, least=1, hosts={"h1": 2, "h2": 2}, members=members)
    assert not group.is_change_due()
    group.hosts = {"h2": 2}
    assert group.is_change_due()
    for member in members.values():
        member.phase = Phase.WAITING
    assert group.next_ring() == [3, 1]
    group.hosts = {"h1": 2, "h2": 2}
    assert group.next_ring() == [3, 1, 0, 2]
