"""`shard-dataset` as a user runs it (tools/shard_dataset/commands.py): output, exit status, files."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import open_dataset, read_records
from ringfeed.tools.shard_dataset.common_arguments import cores, workers_for
from ringfeed.tools.shard_dataset.parser import build_parser
from ringfeed.tools.shard_dataset.program import main
from tests.helpers.commands import ROWS, Cli, assert_one_line
from tests.helpers.files import contents


class TestBuild:
    def test_reports_the_balance(self, installed: Cli, source: str, tmp_path: Path) -> None:
        done = installed(
            "shard-dataset",
            "build",
            source,
            f"{tmp_path}/out",
            "--label",
            "status",
            "--split",
            "train=0.9,test=0.1",
            "--shards",
            "3",
        )
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert lines[1][:4] == ["train", "360", "3", "120"]
        assert lines[2][:4] == ["test", "40", "1", "40"]
        assert ["late", "10.00%", "36", "12", "4", "4"] in lines
        assert "largest difference between two shards of a split: 0 in records, 0 in any class" in done.stdout
        assert "wrote 400 records" in done.stdout
        assert "write shards: 4 of 4" in done.stderr
        assert "\x1b" not in done.stderr + done.stdout

    def test_json_prints_one_document_and_one_event_per_line(self, cli: Cli, source: str, tmp_path: Path) -> None:
        done = cli("shard-dataset", "build", source, f"{tmp_path}/out", "--label", "status", "--shards", "7", "--json")
        document = json.loads(done.stdout)
        assert (document["records"], document["splits"]["train"]["records_per_shard"]) == (400, [57, 58])
        assert {c["class"]: c["per_shard"] for c in document["splits"]["train"]["classes"]} == {
            "late": [5, 6],
            "on time": [51, 52],
        }
        events = events_of(done)
        assert {event["event"] for event in events} == {"progress"}
        assert list(dict.fromkeys(event["stage"] for event in events)) == ["count", "partition", "write"]
        assert {**events[-1], "seconds": 0} == {
            "event": "progress", "stage": "write", "done": 7, "total": 7, "records": 400, "seconds": 0,
        }  # fmt: skip
        assert all(event["seconds"] >= 0 for event in events)

    def test_warns_once_in_a_line_or_an_event(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("y,s\na,NA\na,b\n")
        done = cli("shard-dataset", "build", f"{tmp_path}/a.csv", f"{tmp_path}/out", "--label", "y")
        warning = (
            f"file://{tmp_path}/a.csv: text that may mean a missing value stays text: 1 NA in 's'; to read it as "
            "missing, add --null-values NA"
        )
        assert done.stderr.splitlines()[0] == f"shard-dataset: warning: {warning}"
        assert done.stderr.count("warning") == 1
        done = cli("shard-dataset", "build", f"{tmp_path}/a.csv", f"{tmp_path}/new", "--label", "y", "--json")
        assert events_of(done)[0] == {"event": "warning", "message": warning}

    def test_null_values_hold_for_appends(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("y,s\na,NA\na,b\n,c\na,d\n")
        flags = ["--null-values", "NA,", "--drop-nulls", "--label", "y", "--shards", "1"]
        assert cli("shard-dataset", "build", f"{tmp_path}/a.csv", f"{tmp_path}/out", *flags).returncode == 0
        assert cli("shard-dataset", "append", f"{tmp_path}/a.csv", f"{tmp_path}/out", "--again").returncode == 0
        done = cli("shard-dataset", "cat", f"{tmp_path}/out")
        assert sorted(json.loads(line)["s"] for line in done.stdout.splitlines()) == ["b", "b", "d", "d"]

    def test_keeps_the_splits_of_files_and_folders(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        def shares(*flags: str) -> dict[str, int]:
            """The records of each split."""
            args = ["--label", "y", "--dry-run", "--workers", "1", "--json", *flags]
            assert main(["build", f"{tmp_path}/in", f"{tmp_path}/out", *args]) == 0
            return {name: split["records"] for name, split in json.loads(capsys.readouterr().out)["splits"].items()}

        (tmp_path / "in").mkdir()
        for name, rows in (("train", 20), ("t10k", 4)):
            (tmp_path / "in" / f"{name}-1.csv").write_text("y\n" + "a\n" * rows)
        assert shares() == {"train": 24}
        assert shares("--split-files", "train=train-*", "test=t10k-*") == {"train": 20, "test": 4}
        for name in ("train", "t10k"):
            (tmp_path / "in" / name).mkdir()
            (tmp_path / "in" / f"{name}-1.csv").rename(tmp_path / "in" / name / "1.csv")
        (tmp_path / "in" / "t10k").rename(tmp_path / "in" / "test")
        assert shares() == {"train": 20, "test": 4}
        assert shares("--split", "train=1") == {"train": 24}
        assert main(["build", f"{tmp_path}/in", f"{tmp_path}/out", "--label", "y"]) == 0
        assert capsys.readouterr().err.startswith(
            f"shard-dataset: the folders of {tmp_path}/in are kept as splits: train, test; else give --split"
        )
        assert main(["append", f"{tmp_path}/in", f"{tmp_path}/out", "--again", "--dry-run"]) == 0
        assert re.search("^test +4 ", capsys.readouterr().out, re.MULTILINE)

    @pytest.mark.parametrize(
        ("flags", "told"),
        [
            (["train"], "the files of a split are NAME=PATTERN, such as train='train-*', got 'train'"),
            (["a=b", "a=c"], "--split-files names the split 'a' twice; give each split one pattern"),
            (["a-b=c"], "the name of a split must consist of ASCII letters, digits and _, got 'a-b'"),
        ],
    )
    def test_refuses_unclear_files_of_splits(
        self, cli: Cli, source: str, tmp_path: Path, flags: list[str], told: str
    ) -> None:
        done = cli("shard-dataset", "build", source, f"{tmp_path}/out", "--split-files", *flags)
        assert (len(done.stderr.splitlines()), done.returncode in (1, 2)) == (1, True)
        assert told in done.stderr

    def test_an_error_is_an_event_too(self, cli: Cli, source: str, dataset: Path) -> None:
        done = cli("shard-dataset", "build", source, str(dataset), "--label", "status", "--json")
        assert (done.returncode, done.stdout) == (1, "")
        (event,) = events_of(done)
        assert (event["event"], event["status"]) == ("error", 1)
        assert event["message"].startswith(f"{dataset} already holds a dataset; ")

    @pytest.mark.parametrize("flags", [[], ["--json"]])
    def test_a_dry_run_writes_nothing(
        self, capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path, flags: list[str]
    ) -> None:
        args = [
            "build",
            source,
            f"{tmp_path}/new/out",
            "--label",
            "status",
            "--split",
            "a=0.5,b=0.5",
            "--dry-run",
            *flags,
        ]
        assert main(args) == 0
        out = capsys.readouterr().out
        if flags:
            document = json.loads(out)
            assert document["splits"]["b"]["records"] == 200
            assert document["features"][3] == {
                "name": "status",
                "dtype": "string",
                "shape": [],
                "example": "bytes",
                "role": "label",
            }
        else:
            assert "nothing was written" in out
            assert "hours    float64" in out
        assert not (tmp_path / "new").exists()

    def test_works_without_tensorflow(self, source: str, tmp_path: Path) -> None:
        code = f"""
import sys
sys.modules["tensorflow"] = sys.modules["horovod"] = None
from ringfeed.tools.shard_dataset import main
assert main(["build", {source!r}, {str(tmp_path / "o")!r}, "--label", "status", "--workers", "1"]) == 0
assert main(["verify", {str(tmp_path / "o")!r}]) == main(["inspect", {str(tmp_path / "o")!r}]) == 0
"""
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    @pytest.mark.parametrize("length", [8, 100])
    def test_leaves_nothing_among_temporary_files(
        self, installed: Cli, source: str, tmp_path: Path, length: int
    ) -> None:
        """Also where the folder's path is too long for a socket."""
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder, "t" * length)
            temporary.mkdir()
            command = ["build", source, str(tmp_path / "o"), "--label", "status", "--workers", "2"]
            installed("shard-dataset", *command, env={"TMPDIR": str(temporary)}, check=True)
            assert list(temporary.iterdir()) == []


class TestAppend:
    def test_names_new_classes(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        def told(command: str, label: str, *flags: str) -> str:
            rows = "".join(f"{number},{label if number % 2 else 'a'}\n" for number in range(20))
            (tmp_path / f"{label}.csv").write_text("number,kind\n" + rows)
            arguments = [command, f"{tmp_path}/{label}.csv", f"{tmp_path}/out", *flags]
            assert main([*arguments, "--workers", "1"]) == 0
            return capsys.readouterr().out

        assert " new " not in told("build", "b", "--label", "kind", "--shards", "1")
        line = "1 class is new to the dataset: c"
        assert line in told("append", "c", "--dry-run").splitlines()
        assert json.loads(told("append", "c", "--dry-run", "--json"))["new_classes"] == ["c"]
        assert line in told("append", "c").splitlines()
        assert json.loads(told("append", "d", "--json"))["new_classes"] == ["d"]
        assert json.loads(told("append", "b", "--json", "--again"))["new_classes"] == []
        assert " new " not in told("append", "b", "--again", "--dry-run")


class TestRepeated:
    @pytest.mark.parametrize(
        ("command", "flags", "other"),
        [
            ("build", "--label status", "--seed 1"),
            ("build", "--label status --split a=0.5,b=0.5 --group-by carrier --balance bytes", "--format parquet"),
            ("build", "--label status --dedup", "--shards 2"),
            ("reshard", "--shards 2", "--shards 3"),
            ("append", "", "--seed 1"),
            ("append", "--shards 2 --dedup", "--shards 3"),
        ],
    )
    def test_says_that_all_is_there(
        self, cli: Cli, source: str, dataset: Path, tmp_path: Path, command: str, flags: str, other: str
    ) -> None:
        out = dataset if command == "append" else tmp_path / "out"
        if command == "append":
            Path(source).write_text("id,carrier,hours,status\n" + "".join(f"{n},AA,1.5,late\n" for n in range(9)))
        words = [command, str(dataset) if command == "reshard" else source, str(out), *flags.split()]
        assert cli("shard-dataset", *words).returncode == 0
        before = contents(out)
        for more in ([], ["--json"]):
            done = cli("shard-dataset", *words, *more)
            assert (done.returncode, contents(out)) == (0, before), done.stderr
            (said,) = [event["message"] for event in events_of(done)[-1:]] if more else done.stdout.splitlines()
            assert "already" in said
        assert_one_line(cli("shard-dataset", *words, *other.split(), "-q"))
        max(out.glob("**/*.tfrecord")).unlink()
        assert_one_line(cli("shard-dataset", *words, "-q"))


class TestReshard:
    def test_writes_one_split_as_other_shards(
        self, capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path
    ) -> None:
        capsys.readouterr()
        assert main(["reshard", f"{dataset}#test", f"{tmp_path}/out", "--format", "parquet", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["format"], document["records"]) == ("parquet", 40)
        assert [c["class"] for c in document["splits"]["test"]["classes"]] == ["late", "on time"]

    def test_mixes_splits_only_on_request(
        self, capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path
    ) -> None:
        def splits(url: str) -> dict[str, list[str]]:
            found = open_dataset(url)
            return {name: sorted(map(str, read_records(found, name, ROWS))) for name in sorted(found.manifest.splits)}

        assert main(["reshard", str(dataset), f"{tmp_path}/kept", "--shards", "5"]) == 0
        assert splits(f"{tmp_path}/kept") == splits(str(dataset))
        assert main(["reshard", str(dataset), f"{tmp_path}/out", "--group-by", "status"]) == 1
        assert f"name one as {dataset}#train, or split all its records anew" in capsys.readouterr().err
        assert main(["reshard", str(dataset), f"{tmp_path}/out", "--split", "a=0.5,b=0.5", "--json"]) == 0
        told = capsys.readouterr()
        assert json.loads(told.out)["records"] == ROWS
        assert json.loads(told.err.splitlines()[0]) == {
            "event": "warning",
            "message": f"the splits train, test of {dataset} are mixed and split anew; to keep them, leave --split out",
        }

    @pytest.mark.parametrize(
        ("shard_format", "codec", "flags", "written"),
        [
            ("parquet", "zstd", "", ("parquet", "zstd")),
            ("parquet", "zstd", "--format parquet", ("parquet", "zstd")),
            ("parquet", "zstd", "--compression gzip", ("parquet", "gzip")),
            ("parquet", "zstd", "--format tfrecord", ("tfrecord", "none")),
            ("tfrecord", "gzip", "--split a=0.5,b=0.5", ("tfrecord", "gzip")),
            ("tfrecord", "gzip", "--format parquet --split-column split", ("parquet", "snappy")),
            ("tfrecord", "gzip", "--dali-index --compression none", ("tfrecord", "none")),
        ],
    )
    def test_keeps_format_and_compression_by_default(
        self,
        capsys: pytest.CaptureFixture[str],
        source: str,
        tmp_path: Path,
        shard_format: str,
        codec: str,
        flags: str,
        written: tuple[str, str],
    ) -> None:
        first, second = f"{tmp_path}/first", f"{tmp_path}/second"
        built = ["--format", shard_format, "--compression", codec, "--workers", "1"]
        assert main(["build", source, first, *built]) == 0
        assert main(["reshard", first, second, *flags.split(), "--workers", "1"]) == 0
        capsys.readouterr()
        assert main(["inspect", second, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["format"], found["compression"]) == written

    @pytest.mark.parametrize(
        ("flags", "told"),
        [
            ("--compression zlib", "compression of parquet must be one of none, snappy, zstd, lz4, gzip, got 'zlib'"),
            (
                "--dali-index",
                "a DALI index needs uncompressed TFRecord shards, and these are parquet (snappy); write them with "
                "--format tfrecord --compression none",
            ),
        ],
    )
    def test_refuses_options_that_the_kept_format_lacks(
        self, capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path, flags: str, told: str
    ) -> None:
        assert main(["build", source, f"{tmp_path}/first", "--format", "parquet", "--workers", "1"]) == 0
        capsys.readouterr()
        assert main(["reshard", f"{tmp_path}/first", f"{tmp_path}/second", *flags.split()]) == 1
        assert told in capsys.readouterr().err

    def test_names_a_folder_that_holds_no_dataset(
        self, capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path
    ) -> None:
        assert main(["reshard", source, f"{tmp_path}/out"]) == 1
        assert f"there is no dataset at {source}" in capsys.readouterr().err


class TestInspect:
    def test_shows_contents_and_how_to_read_them(self, capsys: pytest.CaptureFixture[str], dataset: Path) -> None:
        capsys.readouterr()
        assert main(["inspect", str(dataset)]) == 0
        out = capsys.readouterr().out
        for words in ("400 records in 4 shards of tfrecord", "flights.csv", "seed 0", "2 values: AA, ü", "late"):
            assert words in out
        assert "'carrier': tf.io.FixedLenFeature([], tf.string)," in out

    def test_says_whether_tensorflow_datasets_opens_it(
        self, capsys: pytest.CaptureFixture[str], source: str, dataset: Path, tmp_path: Path
    ) -> None:
        capsys.readouterr()
        main(["inspect", str(dataset)])
        assert "opens it: tfds.builder_from_directory" in capsys.readouterr().out
        main(["build", source, f"{tmp_path}/gzip", "--label", "status", "--compression", "gzip", "--json"])
        capsys.readouterr()
        main(["inspect", f"{tmp_path}/gzip"])
        assert "cannot open it: it reads no compressed shards" in capsys.readouterr().out

    def test_json_holds_the_same(self, capsys: pytest.CaptureFixture[str], dataset: Path) -> None:
        capsys.readouterr()
        assert main(["inspect", str(dataset), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["classes"] == ["late", "on time"]
        assert document["features"][0]["statistics"]["train"]["count"] == 360
        assert document["source"]["url"].endswith("flights.csv")

    @pytest.mark.parametrize("name", ["plain", "a[1]", "what?*"])
    def test_the_code_it_shows_runs_and_reads_the_values(
        self, capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path, name: str
    ) -> None:
        pytest.importorskip("tensorflow")
        capsys.readouterr()
        main(["inspect", shutil.copytree(dataset, tmp_path / "copies" / name).as_posix(), "--json"])
        names: dict[str, Any] = {}
        exec(json.loads(capsys.readouterr().out)["reading"], names)
        batches = list(names["dataset"].as_numpy_iterator())
        ids = [int(i) for batch in batches for i in batch["id"]]
        assert len(ids) == 360
        assert [hours for batch in batches for hours in batch["hours"].tolist()] == [i / 8 for i in ids]

    def test_a_build_names_the_columns_that_are_raw_bytes(
        self, capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path
    ) -> None:
        def told(*flags: str) -> list[str]:
            main(["build", source, str(tmp_path / "out"), "--label", "status", "--overwrite", *flags])
            return [line for line in capsys.readouterr().out.splitlines() if "--float32" in line]

        (line,) = told()
        assert line == (
            "columns of float64 are raw bytes, since tf.train.Example holds only float32: hours; shard-dataset "
            f"inspect {tmp_path}/out prints code that decodes them, and --float32 stores float32 instead"
        )
        assert told("--float32") == told("--format", "parquet") == []

    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_the_code_it_shows_decodes_every_type(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, shard_format: str
    ) -> None:
        pytest.importorskip("tensorflow")
        pixels = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4)
        table = pa.table(
            {
                "id": pa.array(range(6), pa.uint16()),
                "ratio": [i / 7 for i in range(6)],
                "half": pa.array(np.arange(6, dtype=np.float16) / 2),
                "on": [i % 2 == 0 for i in range(6)],
                "pixels": pa.FixedSizeListArray.from_arrays(
                    pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 2), 2
                ),
                "sometimes": pa.array([None, 1.5, None, 2.5, 3.5, 4.5], pa.float32()),
            }
        )
        pq.write_table(table, tmp_path / "x.parquet")
        out = str(tmp_path / "out")
        main(["build", str(tmp_path / "x.parquet"), out, "--shards", "2", "--format", shard_format, "--json"])
        main(["append", str(tmp_path / "x.parquet"), out, "--again", "--json"])
        capsys.readouterr()
        main(["inspect", out, "--json"])
        names: dict[str, Any] = {}
        exec(json.loads(capsys.readouterr().out)["reading"], names)
        if shard_format == "parquet":
            found = {name: names["table"][name].to_pylist() for name in table.column_names}
            found["pixels"] = names["table"]["pixels"].combine_chunks().to_numpy_ndarray().reshape(-1, 4).tolist()
        else:
            (batch,) = names["dataset"].as_numpy_iterator()
            assert {n: batch[n].dtype.name for n in ("id", "half", "on")} == {
                "id": "uint16",
                "half": "float16",
                "on": "bool",
            }
            assert batch["pixels"].shape == (12, 2, 2)
            found = {name: batch[name].tolist() for name in ("id", "ratio", "half", "on")}
            found["pixels"] = batch["pixels"].reshape(-1, 4).tolist()
        order = np.argsort(found["id"], kind="stable")
        for name in ("ratio", "half", "on"):
            assert [found[name][i] for i in order] == np.repeat(table[name].to_pylist(), 2).tolist()
        assert [found["pixels"][i] for i in order] == np.repeat(pixels, 2, axis=0).tolist()


class TestVerify:
    def test_exit_status_is_zero_only_without_damage(self, cli: Cli, dataset: Path) -> None:
        done = cli("shard-dataset", "verify", str(dataset))
        assert (done.returncode, done.stdout) == (0, f"all 10 files of {dataset} are as they were written\n")
        shard = dataset / "train-00001-of-00003.tfrecord"
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data)
        (dataset / "_ringfeed/test-00000-of-00001.index").unlink()
        done = cli("shard-dataset", "verify", str(dataset))
        assert done.returncode == 1
        assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
            "train-00001-of-00003.tfrecord",
            "_ringfeed/test-00000-of-00001.index",
        ]
        assert done.stderr.splitlines()[-1] == (
            "shard-dataset: error: 2 files are damaged or missing; "
            f"see what can be saved with: shard-dataset repair {dataset} --dry-run"
        )
        done = cli("shard-dataset", "verify", str(dataset), "--json")
        assert done.returncode == 1
        document = json.loads(done.stdout)
        assert (document["ok"], document["files"], len(document["damages"])) == (False, 10, 2)
        *_, progress, error = events_of(done)
        assert (progress["event"], error["event"]) == ("progress", "error")
        assert progress["bytes"] > sum(path.stat().st_size for path in dataset.glob("*.tfrecord"))

    def test_the_rate_is_of_bytes(self, cli: Cli, dataset: Path) -> None:
        done = cli("shard-dataset", "verify", str(dataset))
        assert re.fullmatch(r"check files: 10 of 10, [\d.,]+ [KMG]iB/s", done.stderr.splitlines()[-1])

    def test_the_table_counts_among_the_damaged_files(self, cli: Cli, dataset: Path) -> None:
        for path in [*dataset.glob("*.tfrecord"), *dataset.glob("*.arrow"), dataset / "_ringfeed/shards.table"]:
            path.write_bytes(b"")
        done = cli("shard-dataset", "verify", str(dataset))
        assert done.returncode == 1
        named = {line.partition(":")[0] for line in done.stdout.splitlines()} - {"note"}
        assert "_ringfeed/shards.table" in named
        assert f"error: {len(named)} files are damaged or missing; " in done.stderr

    def test_a_damaged_manifest_is_named(self, cli: Cli, dataset: Path) -> None:
        manifest = dataset / "_ringfeed/dataset.json"
        manifest.write_bytes(manifest.read_bytes().replace(b"late", b"lame"))
        done = cli("shard-dataset", "verify", str(dataset), "--json")
        assert done.returncode == 1
        document = json.loads(done.stdout)
        assert (document["ok"], document["damages"][0]["path"]) == (False, "_ringfeed/dataset.json")
        (dataset / "_ringfeed/shards.table").unlink()
        done = cli("shard-dataset", "verify", str(dataset), "--json")
        assert json.loads(done.stdout)["ok"] is False
        assert "dataset.json is damaged" in events_of(done)[-1]["message"]


class TestRepair:
    def test_a_dry_run_reports_what_a_repair_does(self, cli: Cli, source: str, dataset: Path) -> None:
        before = contents(dataset)
        (dataset / "train-00002-of-00003.tfrecord").rename(dataset / "train-00001-of-00003.tfrecord")
        (dataset / "_ringfeed/dataset.json").unlink()
        wounded = contents(dataset)
        done = cli("shard-dataset", "repair", str(dataset), "--dry-run")
        assert done.returncode == 0, done.stderr
        assert contents(dataset) == wounded
        lines = done.stdout.splitlines()
        assert lines[0] == "_ringfeed/dataset.json: rewrite: rebuilt from the other files of the dataset"
        assert "train-00002-of-00003.tfrecord: move: its bytes are in train-00001-of-00003.tfrecord" in lines
        assert lines[-2] == "lost: train: 120 records (on time 108, late 12)"
        assert lines[-1] == (
            f"3 files are damaged; 120 records would be lost, and none with --source {source} if it is still there; "
            "nothing was written (--dry-run)"
        )
        done = cli("shard-dataset", "repair", str(dataset), "--json")
        document = json.loads(done.stdout)
        assert document["lost_records"] == 120
        assert document["lost_by_class"]["train"][0] == {"class": "late", "records": 12}
        assert (dataset / "train-00002-of-00003.tfrecord").read_bytes() == before["train-00002-of-00003.tfrecord"]
        done = cli("shard-dataset", "inspect", str(dataset))
        assert "lost     records that were damaged" in done.stdout
        assert "train: 120 records (on time 108, late 12)" in done.stdout
        done = cli("shard-dataset", "inspect", str(dataset), "--json")
        assert json.loads(done.stdout)["lost"][0]["path"] == "train-00001-of-00003.tfrecord"
        done = cli("shard-dataset", "verify", str(dataset), "--deep", "--workers", "2")
        assert done.returncode == 0, done.stdout

    def test_restores_everything_from_the_source(self, cli: Cli, source: str, dataset: Path) -> None:
        before = contents(dataset)
        (dataset / "train-00001-of-00003.tfrecord").unlink()
        (dataset / "test-00000-of-00001.tfrecord").write_bytes(b"")
        done = cli("shard-dataset", "repair", str(dataset), "--source", source, "--dry-run", "--json")
        document = json.loads(done.stdout)
        assert [r["action"] for r in document["remedies"]] == ["rebuild", "rebuild"]
        assert document["lost_records"] == 0
        assert {event["event"] for event in events_of(done)} == {"progress"}
        done = cli("shard-dataset", "repair", str(dataset), "--source", source, "--workers", "1")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-2:] == [
            f"test-00000-of-00001.tfrecord: rebuild: rebuilt from {source}",
            "repaired 2 damaged files; no record is lost",
        ]
        assert "write shards: 2 of 2" in done.stderr
        assert contents(dataset) == before

    def test_another_source_is_one_line(self, cli: Cli, source: str, dataset: Path) -> None:
        (dataset / "train-00001-of-00003.tfrecord").unlink()
        before = contents(dataset)
        Path(source).write_text(Path(source).read_text().replace("AA", "BB"))
        done = cli("shard-dataset", "repair", str(dataset), "--source", source, "--workers", "1")
        errors = [line for line in done.stderr.splitlines() if line.startswith("shard-dataset: error: ")]
        assert (done.returncode, len(errors)) == (1, 1)
        assert "differs from what was written: it is another source, or was changed since" in errors[0]
        assert "Traceback" not in done.stderr
        assert contents(dataset) == before

    def test_reports_that_nothing_is_damaged(self, capsys: pytest.CaptureFixture[str], dataset: Path) -> None:
        capsys.readouterr()
        assert main(["repair", str(dataset)]) == 0
        assert capsys.readouterr().out == "nothing is damaged; nothing was written\n"


class TestCat:
    def test_prints_records_as_lines_of_json(self, capsys: pytest.CaptureFixture[str], dataset: Path) -> None:
        capsys.readouterr()
        assert main(["cat", str(dataset), "--split", "test", "--limit", "40"]) == 0
        told = capsys.readouterr()
        rows = [json.loads(line) for line in told.out.splitlines()]
        assert len(rows) == 40
        assert all(row["hours"] == row["id"] / 8 for row in rows)
        assert not told.err
        assert main(["cat", str(dataset), "--split", "test"]) == 0
        told = capsys.readouterr()
        records = open_dataset(str(dataset)).manifest.split("test").records
        assert len(told.out.splitlines()) == 5
        assert told.err == f"the first 5 of the {records} records of 'test'; see --limit and --split\n"

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
    def test_lines_are_json_in_any_encoding(self, installed: Cli, tmp_path: Path, encoding: str) -> None:
        pq.write_table(pa.table({"x": ["é", "\U0001f600"]}), tmp_path / "x.parquet")
        assert main(["build", str(tmp_path / "x.parquet"), str(tmp_path / "o"), "--shards", "1"]) == 0
        done = installed("shard-dataset", "cat", str(tmp_path / "o"), env={"PYTHONIOENCODING": encoding}, check=True)
        assert sorted(json.loads(line)["x"] for line in done.stdout.splitlines()) == ["é", "\U0001f600"]

    def test_bytes_are_shortened_and_odd_floats_are_json(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        columns = {"b": [b"\x89PNG" * 50, None], "f": [float("nan"), float("-inf")]}
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        main(["build", str(tmp_path / "x.parquet"), str(tmp_path / "o"), "--shards", "1", "--json"])
        capsys.readouterr()
        main(["cat", str(tmp_path / "o")])
        rows = sorted((json.loads(line) for line in capsys.readouterr().out.splitlines()), key=lambda row: row["f"])
        assert rows == [
            {"b": None, "f": "-inf"},
            {"b": {"bytes": 200, "head": "iVBOR4lQTkeJUE5HiVBOR4lQTkeJUE5H..."}, "f": "nan"},
        ]

    def test_a_reader_that_leaves_is_not_an_error(self, dataset: Path) -> None:
        program = Path(sys.executable).with_name("shard-dataset")
        done = subprocess.run(
            f"{program} cat {dataset} --limit 360 | head -1", shell=True, capture_output=True, text=True
        )
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 1


class TestExport:
    @pytest.mark.parametrize(("to", "suffix"), [("webdataset", "tar"), ("hf", "parquet")])
    def test_writes_the_splits_and_says_how_much(
        self, capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path, to: str, suffix: str
    ) -> None:
        capsys.readouterr()
        command = ["export", str(dataset), f"{tmp_path}/out", "--to", to, "--workers", "1"]
        assert main([*command, "--split", "train"]) == 0
        assert "exported 360 records" in (said := capsys.readouterr()).out
        assert "write files: 3 of 3" in said.err
        assert sorted(os.listdir(tmp_path / "out")) == [
            "README.md",
            *(f"train-0000{i}-of-00003.{suffix}" for i in range(3)),
        ]
        command[2] += "-json"
        assert main([*command, "--json"]) == 0
        said = capsys.readouterr()
        assert {**json.loads(said.out), "seconds": 0, "bytes": 0} == {
            "destination": f"{tmp_path}/out-json",
            "records": 400,
            "files": 4,
            "bytes": 0,
            "seconds": 0,
        }
        *_, last = map(json.loads, said.err.splitlines())
        assert (last["event"], last["stage"], last["done"], last["total"]) == ("progress", "export", 4, 4)

    def test_an_impossible_export_is_one_line(self, cli: Cli, dataset: Path, tmp_path: Path) -> None:
        command = ["shard-dataset", "export", str(dataset), f"{tmp_path}/out", "--to", "hf"]
        assert_one_line(cli(*command, "--split", "train,nope"), "there is no split 'nope'", "'train', 'test'")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
        assert_one_line(cli(*command), "is not empty (there is 'thesis.txt')")
        assert os.listdir(tmp_path / "out") == ["thesis.txt"]


def test_every_installed_command_does_what_it_does_in_this_process(
    cli: Cli, installed: Cli, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is how most tests run them."""
    commands = [
        f"build {source} out --label status --shards 2", f"append {source} out --again", "inspect out", "cat out",
        "verify out", "reshard out other --shards 3", "export out hf --to hf", "clean out", "repair out --dry-run",
        f"build {source} out", "verify missing", "build out",
    ]  # fmt: skip
    told: list[list[tuple[int, str, list[str]]]] = [[], []]
    for results, run in zip(told, (cli, installed), strict=True):
        (tmp_path / "folder").mkdir()
        monkeypatch.chdir(tmp_path / "folder")
        for done in (run("shard-dataset", *command.split()) for command in commands):
            errors = [line for line in done.stderr.splitlines() if line.startswith("shard-dataset")]  # not progress
            rates = r"in [\d.]+ s\b|[\d.,]+ ([kKMG]?i?B|records)/s"
            results.append((done.returncode, re.sub(rates, "", done.stdout), errors))
        shutil.rmtree(tmp_path / "folder")
    assert told[0] == told[1]
    assert [status for status, *_ in told[0]] == [0] * 9 + [1, 1, 2]


def events_of(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stderr.splitlines()]


class TestUsage:
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ([], "required: COMMAND"),
            (["build", "a"], "required: DST"),
            (["build", "a", "b", "--split", "a=0.5"], "add up to 1, got a=0.5, which add up to 0.5"),
            (
                ["build", "a", "b", "--shard-size", "many"],
                "a size is a number with a unit, such as 256MiB or 1GB, got 'many'",
            ),
            (["build", "a", "b", "--shards", "0"], "must be an integer of at least 1, got '0'"),
            (["build", "a", "b", "--shards", "1", "--shard-size", "1MB"], "not allowed with argument --shards"),
            (["build", "a", "b", "--format", "csv"], "invalid choice: 'csv'"),
            (["repair", "a", "--source-kind", "csv"], "name it with --source"),
            (["repair", "a", "--memory", "1GiB"], "name it with --source"),
            (["append", "--source", "csv", "a", "b"], "unrecognized arguments: --source"),
            (["build", "a", "b", "--shard", "3"], "unrecognized arguments: --shard 3"),
        ],
    )
    def test_wrong_usage_is_exit_status_two(
        self, capsys: pytest.CaptureFixture[str], args: list[str], message: str
    ) -> None:
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("args", [["build", "a"], ["build", "a", "b", "c"], ["inspect", "a", "--workers", "2"]])
    def test_wrong_usage_is_an_event_too(self, cli: Cli, args: list[str]) -> None:
        done = cli("shard-dataset", *args, "--json")
        (event,) = events_of(done)
        assert (done.returncode, event["event"], event["status"], done.stdout) == (2, "error", 2, "")
        assert event["message"].endswith(f"; see: shard-dataset {args[0]} --help")

    @pytest.mark.parametrize(
        "words",
        [
            ["--split", "a/b=1"],
            ["--compression", "zstd"],
            ["--format", "parquet", "--dali-index"],
            ["--split-column", "x", "--group-by", "y"],
        ],
    )
    def test_an_invalid_combination_of_flags_is_exit_status_one(self, tmp_path: Path, words: list[str]) -> None:
        assert main(["build", "x.csv", str(tmp_path / "out"), *words]) == 1

    @pytest.mark.parametrize(
        "command", [[], ["build"], ["reshard"], ["inspect"], ["verify"], ["repair"], ["cat"], ["clean"], ["export"]]
    )
    def test_help_shows_examples_and_exit_statuses(
        self, capsys: pytest.CaptureFixture[str], command: list[str]
    ) -> None:
        with pytest.raises(SystemExit) as stop:
            main([*command, "--help"])
        out = capsys.readouterr().out
        assert stop.value.code == 0
        assert "examples:\n" in out
        assert "  1  an error, in one line on standard error" in out
        assert "  2  invalid arguments\n" in out
        assert "130  interrupted (143 by SIGTERM" in out
        assert f"shard-dataset {command[0] if command else 'build'} " in out

    def test_a_flag_is_stored_as_the_field_of_the_options(self) -> None:
        words = ["build", "a", "b", "--label", "c", "--shard-size", "256MiB", "--split", "train=0.9,test=0.1"]
        args = build_parser().parse_args(words)
        assert vars(args) == vars(args) | {
            "src": "a", "destination": "b", "label": "c", "shard_format": "tfrecord", "shards": None,
            "shard_bytes": 256 << 20, "splits": {"train": Fraction(9, 10), "test": Fraction(1, 10)}, "seed": 0,
            "compression": None, "overwrite": False, "dry_run": False, "json": False, "source_kind": "auto",
            "min_class_records": 2,
        }  # fmt: skip

    def test_a_small_local_file_is_built_by_one_process(self, tmp_path: Path) -> None:
        small, large = tmp_path / "small.csv", tmp_path / "large.csv"
        small.write_text("x")
        large.touch()
        os.truncate(large, 1 << 30)
        sources = [*map(str, (small, large, tmp_path, tmp_path / "missing", "s3://bucket/small.csv", "")), None]
        assert [workers_for(source, str(tmp_path)) for source in sources] == [1, *[cores()] * 6]
        assert [workers_for(source, "s3://bucket/out") for source in sources] == [1, *[2 * cores()] * 6]

    def test_debug_shows_the_traceback(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="there is nothing at"):
            main(["build", str(tmp_path / "x"), str(tmp_path / "y"), "--debug"])

    def test_an_error_is_an_event_under_debug_too(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ValueError, match="there is nothing at"):
            main(["build", str(tmp_path / "x"), str(tmp_path / "y"), "--debug", "--json"])
        (event,) = map(json.loads, capsys.readouterr().err.splitlines())
        assert (event["event"], event["status"]) == ("error", 1)
