"""Listings name changed files, and ignore new and removed ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import SourceError
from ringfeed.sharding.sources.files.find import check_unchanged, list_files
from ringfeed.sharding.sources.files.snapshot import Listing, SourceFile, record_listings
from tests.servers.store import Store

FILES = st.dictionaries(st.text(max_size=5), st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b"])))


@given(before=FILES, now=FILES)
def test_a_file_is_named_if_and_only_if_it_changed(
    before: dict[str, tuple[int, str]], now: dict[str, tuple[int, str]]
) -> None:
    listed = [SourceFile(url, *about) for url, about in before.items()]
    changed = [url for url, about in now.items() if url in before and before[url] != about]
    if listed:
        found = Listing.of("x", (), listed).first_changed([SourceFile(url, *about) for url, about in now.items()])
        assert found == (changed[0] if changed else None)


def test_any_store_shows_a_changed_file_of_the_same_size_and_ignores_new_and_removed_ones(store: Store) -> None:
    for name in "abc":
        store.write_bytes(f"{name}.csv", b"x\n1\n")
    with record_listings() as listed:
        list_files(store.url, (".csv",))
    store.delete("a.csv")
    store.write_bytes("d.csv", b"x\n2\n")
    check_unchanged(listed.values())
    store.write_bytes("b.csv", b"x\n2\n")
    with pytest.raises(SourceError, match=r"/b\.csv: the file changed while the source was read; build again"):
        check_unchanged(listed.values())
    for name in "bcd":
        store.delete(f"{name}.csv")
    check_unchanged(listed.values())
