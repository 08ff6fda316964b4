"""What a folder was made from is known again by its digest and its files."""

from pathlib import Path

import pytest

from ringfeed.sharding.destination.provenance import Provenance, digest_of
from ringfeed.sharding.storage.storage import Storage


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, 2), (12,)), (("a", "b"), ("ab",)), ((["a"], "b"), (["a", "b"],)), ((1,), ("1",)), ((None,), ("null",))],
)
def test_other_inputs_have_another_digest(first: tuple[object, ...], second: tuple[object, ...]) -> None:
    assert digest_of(*first) != digest_of(*second)


def test_the_order_of_keys_does_not_count() -> None:
    assert digest_of({"a": 1, "b": [2, 3]}) == digest_of({"b": (2, 3), "a": 1})
    assert digest_of({"a": 1, "b": [2, 3]}) != digest_of({"a": 1, "b": [3, 2]})


def test_a_folder_was_made_from_what_its_record_says(tmp_path: Path) -> None:
    folder = Storage(str(tmp_path))
    made = Provenance(record="_made.json", digest=digest_of("x"), files=("part-0",))
    assert not made.made(folder)
    folder.write("_made.json", f'{{"made_from": "{made.digest}"}}'.encode())
    assert not made.made(folder)  # a file is missing
    folder.write("part-0", b"")
    assert made.made(folder)
    assert not Provenance(record="_made.json", digest=digest_of("y"), files=("part-0",)).made(folder)
