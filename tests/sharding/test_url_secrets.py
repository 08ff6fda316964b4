"""URLs as they are shown: every form that a secret takes is left out, and nothing else."""

import pickle

import pytest

from ringfeed.sharding import BuildOptions, ConfigError, SourceError, Storage
from ringfeed.sharding.messages import brief, one_line
from ringfeed.sharding.storage.urls import SecretUrl, normalize_url, validate_url
from ringfeed.sharding.url_secrets import public_url, without_secrets

SHOWN = {
    "https://me:PW@example.org/x.csv": "https://example.org/x.csv",
    "https://PW@example.org/x.csv": "https://example.org/x.csv",
    "https://PW:x-oauth-basic@example.org/x.csv": "https://example.org/x.csv",
    "http://me:a@PW@host:80/x": "http://host:80/x",
    "http://me:PW/PW@host:80/x": "http://host:80/x",
    "http://me:PW?PW@host/x": "http://host/x",
    "http://me:PW#PW@host/x": "http://host/x",
    "http://me:a@PW/PW@host/x": "http://host/x",
    "HTTP://me:PW@host/x": "HTTP://host/x",
    "http:/me:PW@host/x": "http:/host/x",
    "http://me:PW@[::1]:80/x": "http://[::1]:80/x",
    "https://host/x.csv?PW": "https://host/x.csv",
    "https://host/x.csv#access_token=PW": "https://host/x.csv",
    "https://host/x.csv%3Fsig%3DPW": "https://host/x.csv",
    "ftp://me:PW@host:21/x:y@z": "ftp://me@host:21/x:y@z",
    "ftp://me:PW/PW@host/x": "ftp://me@host/x",
    "ftp://host/x?token=PW": "ftp://host/x",
    "s3://AKIA:PW/PW+@bucket/x": "s3://bucket/x",
    "s3://PW@bucket/x": "s3://bucket/x",
    "s3://bucket/x?X-Amz-Signature=PW": "s3://bucket/x",
    "az://container/x?sv=1&sig=PW": "az://container/x",
    "abfs://container@account.dfs.core.windows.net/x?sig=PW": "abfs://container@account.dfs.core.windows.net/x",
    "hdfs://me:PW@host:8020/x": "hdfs://me@host:8020/x",
    "zip://a.csv::https://me:PW@host/x.zip?sig=PW": "zip://a.csv::https://host/x.zip",
    "simplecache::ftp://me:PW@host/x": "simplecache::ftp://me@host/x",
}
UNCHANGED = [
    "/data/a:b@c",
    "data/?.csv",
    "file:///a:b@c",
    "http://host:8080/a@b.csv",
    "https://host/a@2x/*.png",
    "hdfs://hadoop@namenode:8020/a@b",
    "hdfs:///a@b",
    "hdfs://namenode:8020/year=?/x=1",
    "s3://bucket/a@b?b.csv",
    "s3://bucket/x?versionId=3",
    "s3://arn:aws:s3:us-west-2:1:accesspoint/a/b@c",
    "gs://bucket/x#1712",
    "zip://a:b@c.csv::/data/x.zip",
    "memory://a:b@c",
    "dask://HOST:PORT",
    "ray://auto",
]


@pytest.mark.parametrize("url", SHOWN)
def test_a_url_is_shown_without_its_secrets(url: str) -> None:
    shown = SHOWN[url]
    assert public_url(url) == shown
    assert public_url(shown) == shown
    for before, after in [("", ""), ("no '", "'; check it"), ("(at ", ")"), ("URL('", "'), x@y"), ("", ": e@f.org\n")]:
        assert without_secrets(f"{before}{url}{after}") == f"{before}{shown}{after}"
    assert str(SourceError(f"cannot read {url}: no")) == f"cannot read {shown}: no"
    assert one_line(f"at {url}") == f"at {shown}"
    assert "PW" not in brief(ValueError(f"at {url}"), 5 + url.index("PW"))


@pytest.mark.parametrize("url", UNCHANGED)
def test_a_url_without_secrets_is_shown_whole(url: str) -> None:
    assert public_url(url) == without_secrets(url) == url
    assert without_secrets(f"no '{url}', or {url}: it") == f"no '{url}', or {url}: it"
    assert type(normalize_url(url, "a URL")) is str


def test_several_urls_in_a_text_are_told_apart() -> None:
    text = '{"a":"https://me:PW@h/x?sig=PW","b":"https://PW@k/y"} s3://b/x, http://h/y?PW,http://me:PW@k/z'
    assert "PW" not in without_secrets(text)
    assert "https://h/x" in without_secrets(text)
    assert "s3://b/x, http://h/y" in without_secrets(text)


def test_a_storage_shows_no_secrets_and_opens_the_whole_url() -> None:
    url = "http://me:PW@host/x"
    storage = Storage(url, {"password": "PW"})
    for shown in (str(storage), repr(storage), f"{storage}", storage.locate("a"), repr(storage.folder("y"))):
        assert "PW" not in shown
    assert storage.locate("a") == "http://host/x/a"
    assert storage.folder("y").address("a") == "http://me:PW@host/x/y/a"
    assert pickle.loads(pickle.dumps(storage)).address() == url


def test_options_show_no_secrets_and_keep_the_whole_url() -> None:
    options = BuildOptions(source="https://host/x.csv?sig=PW", destination="s3://b/x", spill="ftp://me:PW@h/x")
    assert "PW" not in repr(options)
    assert options.source == "https://host/x.csv?sig=PW"
    assert isinstance(options.source, SecretUrl)
    assert str(pickle.loads(pickle.dumps(options)).source) == "https://host/x.csv?sig=PW"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("http://me:PW/PW@host/x", "write a /, ?, # or @ in its password as %2F, %3F, %23 or %40"),
        ("ftp://me:PW#PW@host/x", "write a /, ?, # or @ in its password as %2F, %3F, %23 or %40"),
        ("s3://AKIA:PW/PW@bucket/x", "the URL of a bucket holds no credentials; set AWS_ACCESS_KEY_ID and"),
        ("http:/me:PW@host/x", "which lacks a slash"),
        ("http://me:PW@host/\udcff", "must be a name in UTF-8"),
    ],
)
def test_a_url_whose_password_no_client_would_find_is_refused(url: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_url(url, "the source")
    assert remedy in str(refused.value)
    assert "PW" not in str(refused.value)
