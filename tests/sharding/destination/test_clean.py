"""Unfinished S3 uploads of killed processes are aborted: they cost storage, and no listing of files shows them."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import fsspec
import pytest

from ringfeed.sharding import BuildOptions, ExportOptions, build, export
from ringfeed.sharding.destination.clean import clean
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built
from tests.helpers.files import contents

pytestmark = pytest.mark.usefixtures("temporary_folder")

KILLED = {
    "build": """
with draft_dataset(Storage(sys.argv[1]), "new", {}) as draft:
    die_uploading(draft.storage, "train-00000-of-00002.tfrecord")
""",
    "export": """
with open_atomic_folder(Storage(sys.argv[1])) as folder:
    die_uploading(folder, "train-00000-of-00002.tar")
""",
    "spill": """
with draft_dataset(Storage(sys.argv[1]), "new", {"spill": f"{sys.argv[1]}-spill"}) as draft:
    die_uploading(spill_root(f"{sys.argv[1]}-spill", sys.argv[1]), "plan/000000.arrow")
""",
}


def killed(task: str, url: str) -> None:
    """A process that is killed as it uploads."""
    script = """
import os, signal, sys
from ringfeed.sharding.destination.atomic_folder import open_atomic_folder
from ringfeed.sharding.destination.dataset_draft import draft_dataset
from ringfeed.sharding.destination.spill import spill_root
from ringfeed.sharding import Storage

def die_uploading(storage, path):
    with storage.open_output(path) as file:
        file.write(bytes(17 << 20))
        os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script + KILLED[task], url], capture_output=True, text=True)
    assert (ended.stderr, ended.returncode) == ("", -signal.SIGKILL)


@pytest.fixture
def folder(s3_bucket: str, s3_env: dict[str, str]) -> str:
    """The URL of an empty folder of S3, to which another program uploads, too."""
    assert s3_env
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    begin_upload(f"{url}/notes.bin")
    return url


def begin_upload(url: str) -> None:
    fs, path = fsspec.url_to_fs(url)
    bucket, key, _ = fs.split_path(path)
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)


def uploads(url: str) -> list[str]:
    """The paths of all uploads that begin with a URL."""
    fs, path = fsspec.url_to_fs(url)
    bucket, prefix, _ = fs.split_path(path)
    return sorted(
        upload["Key"].removeprefix(prefix)
        for upload in fs.list_multipart_uploads(bucket)
        if upload["Key"].startswith(prefix)
    )


@pytest.mark.parametrize("task", KILLED)
def test_clean_aborts_uploads_of_killed_processes_and_no_others(folder: str, task: str) -> None:
    killed(task, folder)
    left = {"build": "/train-00000-of-00002.tfrecord", "export": "/train-00000-of-00002.tar"}
    if task in left:
        assert uploads(folder) == ["/notes.bin", left[task]]
    else:
        (spilled,) = uploads(f"{folder}-spill")
        assert spilled.endswith("/plan/000000.arrow")
    told = clean(folder, dry_run=True)
    assert len(told) == 2
    assert sum("?uploadId=" in url for url in told) == 1
    assert clean(folder) == told
    assert uploads(folder) == ["/notes.bin"]
    assert clean(folder) == []


def test_the_next_build_aborts_the_uploads_of_a_killed_one(folder: str, parquet: str) -> None:
    killed("build", folder)
    build(BuildOptions(source=parquet, destination=folder, label="label", shards=2))
    assert uploads(folder) == ["/notes.bin"]
    begin_upload(f"{folder}/train-00000-of-00002.tfrecord")  # of a copy of a dataset, perhaps
    assert clean(folder) == []
    assert uploads(folder) == ["/notes.bin", "/train-00000-of-00002.tfrecord"]


def test_the_next_export_aborts_the_uploads_of_a_killed_one(folder: str, parquet: str, tmp_path: Path) -> None:
    built(parquet, tmp_path / "dataset", label="label", shards=2)
    export(ExportOptions(url=str(tmp_path / "dataset"), destination=str(tmp_path / "here"), to="webdataset"))
    killed("export", folder)
    export(ExportOptions(url=str(tmp_path / "dataset"), destination=folder, to="webdataset"))
    assert uploads(folder) == ["/notes.bin"]
    store = Storage(folder)
    assert {name: store.read(name) for name in store.list()} == contents(tmp_path / "here")


def test_a_folder_made_in_a_console_is_a_destination_and_stays(folder: str, parquet: str) -> None:
    storage = Storage(folder)
    for destination in (folder, f"{folder}-export"):
        fs, path = fsspec.url_to_fs(destination)
        bucket, key, _ = fs.split_path(path)
        fs.call_s3("put_object", Bucket=bucket, Key=f"{key}/", Body=b"")
    export_options = ExportOptions(url=folder, destination=f"{folder}-export", to="webdataset")
    build(BuildOptions(source=parquet, destination=folder, label="label", shards=2))
    assert export(export_options).records == 600
    assert clean(folder) == []
    fs.invalidate_cache()
    assert fs.find(path)[0] == f"{path}/"
    assert "_ringfeed/dataset.json" in storage.list()
