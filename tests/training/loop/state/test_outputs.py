"""The files of a run, by path and URL."""

from pathlib import Path

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.loop.state.outputs import check_writable, write_file


def test_a_bare_name_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, url in enumerate(("a.json", "./b.json", "new/c.json", f"file://{tmp_path}/d.json")):
        check_writable(url)
        write_file(url, b"%d" % number)
        assert (tmp_path / url.removeprefix(f"file://{tmp_path}/")).read_bytes() == b"%d" % number


@pytest.mark.parametrize("attempt", [check_writable, lambda url: write_file(url, b"")])
def test_a_bucket_without_a_file_name_is_not_a_local_file(
    attempt: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(attempt)
    with pytest.raises(ConfigError, match="s3:// names no bucket"):
        attempt("s3://bucket")
    assert list(tmp_path.iterdir()) == []
