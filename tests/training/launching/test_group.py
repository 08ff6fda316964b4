"""Which ranks make up the next ring, and which slots new processes get."""

from __future__ import annotations

from ringfeed.training.launching.group import ElasticRank, Group, Phase


def _group(wanted: int, *members: ElasticRank, least: int = 1) -> Group:
    return Group(wanted=wanted, least=least, hosts={"": 9}, members=dict(enumerate(members)))


def test_a_process_that_leaves_gives_up_its_slot() -> None:
    group = _group(
        2, ElasticRank(slot=0, phase=Phase.TRAINING, rank=0), ElasticRank(slot=1, phase=Phase.LEAVING, rank=1)
    )
    assert (group.missing, group.free_slot("")) == (1, 1)


def test_rank_0_of_the_next_ring_has_the_newest_commit_and_newcomers_come_last() -> None:
    group = _group(
        4,
        ElasticRank(slot=3, phase=Phase.WAITING),
        ElasticRank(slot=0, phase=Phase.WAITING, step=5, rank=0),
        ElasticRank(slot=1, phase=Phase.WAITING, step=10, rank=2),
        ElasticRank(slot=2, phase=Phase.STARTING),
    )
    assert group.next_ring() == [2, 1, 0]


def test_survivors_wait_for_the_rest_of_their_ring_and_for_the_least_number_of_ranks() -> None:
    survivor = ElasticRank(slot=0, phase=Phase.WAITING, step=5, rank=0)
    assert _group(2, survivor, ElasticRank(slot=1, phase=Phase.TRAINING, rank=1)).next_ring() == []
    assert _group(2, survivor, ElasticRank(slot=1), least=2).next_ring() == []
    assert _group(2, survivor, ElasticRank(slot=1), least=1).next_ring() == [0]


def test_a_run_without_survivors_waits_for_all_ranks() -> None:
    assert _group(2, ElasticRank(slot=0, phase=Phase.WAITING), ElasticRank(slot=1)).next_ring() == []


def test_a_ring_changes_for_a_newcomer_that_is_ready_and_for_ranks_that_are_not_wanted() -> None:
    ring = [ElasticRank(slot=slot, phase=Phase.TRAINING, rank=slot) for slot in range(2)]
    assert not _group(3, *ring, ElasticRank(slot=2)).is_change_due()
    assert _group(3, *ring, ElasticRank(slot=2, phase=Phase.WAITING)).is_change_due()
    assert _group(1, *ring).is_change_due()
    assert not _group(2, *ring, ElasticRank(slot=2, phase=Phase.WAITING)).is_change_due()
