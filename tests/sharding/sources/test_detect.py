"""URLs that no source can read, refused before anything is asked of a store."""

import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.sources import open_source


@pytest.mark.parametrize(
    "url", ["s3://bucket/a.csv?versionId=x", "zip://a.csv::s3://bucket/a.zip?versionId=x", "a?versionId=x"]
)
def test_a_version_of_an_object_is_called_that(url: str) -> None:
    with pytest.raises(
        SourceError, match=r"names a version of an object, and only the current .* or name it by an https"
    ):
        open_source(url, None)
