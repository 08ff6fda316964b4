"""Tests of `TorchDataset`; tests/pipeline/test_torch.py runs them in a process that has PyTorch."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.append(os.environ["RINGFEED_TEST_TORCH"])  # last, so that only what is missing is found there
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from ringfeed.pipeline import ImageTransform, Loader, Ragged, RandomCrop
from ringfeed.pipeline.torch import TorchDataset
from ringfeed.sharding import BuildOptions, ConfigError, build
from ringfeed.tools.measure.step_trace import trace_step
from ringfeed.tools.measure.workloads import function_workload
from tests.helpers.numbered_records import make_table
from tests.helpers.pictures import write_pictures

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of more workers than cores, and of torchdata
BATCH = 60  # of 1,000 records: 16 steps


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("torch")
    table = make_table(1000).append_column("words", pa.array([["a"] * (i % 3) for i in range(1000)]))
    pq.write_table(table.append_column("small", pa.array(np.arange(1000) % 7, pa.int8())), folder / "a.parquet")
    build(BuildOptions(source=str(folder / "a.parquet"), destination=str(folder / "out"), label="label"))
    return str(folder / "out")


def loader(url: str, **options: Any) -> Loader:
    return Loader(url, batch_size=BATCH, seed=3, **options)


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def expected(url: str, epoch: int) -> list[list[int]]:
    return ids(loader(url).numpy_epoch(epoch))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (3, True)])
def test_every_iteration_is_the_next_epoch_in_the_order_of_the_loader(url: str, workers: int, persistent: bool) -> None:
    dataset = TorchDataset(loader(url))
    batches = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=persistent)
    assert len(batches) == 16
    assert [ids(batches) for _ in range(2)] == [expected(url, epoch) for epoch in range(2)]
    next(iter(batches))  # given up in the middle
    assert ids(batches) == expected(url, 3)
    dataset.set_epoch(1)
    assert [ids(batches) for _ in range(2)] == [expected(url, epoch) for epoch in (1, 2)]
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_epoch_is_begun_ahead_in_the_process_that_reads_it(url: str, workers: int) -> None:
    dataset = TorchDataset(loader(url), epochs=3)
    batches = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    dataset.load_state_dict(loader(url).state(0, 5))
    assert ids(batches) == expected(url, 0)[5:]
    assert (dataset._ahead._reading is not None) == (workers == 0)
    assert [ids(batches) for _ in range(3)] == [expected(url, epoch) for epoch in (1, 2, 3)]
    assert dataset._ahead._reading is None  # ended with the epoch before the one to stop before
    next(iter(batches))  # given up in the middle
    assert ids(batches) == expected(url, 5)
    with pytest.raises(ConfigError, match="epochs must be at least 0"):
        TorchDataset(loader(url), epochs=-1)


def test_ranks_and_workers_share_each_global_batch(url: str) -> None:
    ranks = [
        DataLoader(TorchDataset(loader(url, rank=rank, world_size=2)), batch_size=None, num_workers=2)
        for rank in range(2)
    ]
    assert [a + b for a, b in zip(*map(ids, ranks), strict=True)] == expected(url, 0)


@pytest.mark.parametrize(("workers", "taken"), [(0, 16), (2, 7), (3, 15)])
def test_a_run_resumes_where_its_state_was_taken(url: str, workers: int, taken: int) -> None:
    whole = [batch for epoch in range(2) for batch in expected(url, epoch)]
    batches = StatefulDataLoader(TorchDataset(loader(url)), batch_size=None, num_workers=workers)
    running = iter(batches)
    assert ids(next(running) for _ in range(taken)) == whole[:taken]
    resumed = StatefulDataLoader(TorchDataset(loader(url)), batch_size=None, num_workers=workers)
    resumed.load_state_dict(batches.state_dict())
    rest = ids(resumed)
    while len(rest) < len(whole) - taken:
        rest += ids(resumed)
    assert rest == whole[taken:]
    counted = TorchDataset(loader(url))
    counted.load_state_dict(loader(url).state(0, taken))
    plain = DataLoader(counted, batch_size=None, num_workers=workers)
    assert ids(plain) == (whole[taken:16] or whole[16:])


def test_the_state_after_batches_of_a_plain_loaders_workers_is_refused(url: str) -> None:
    dataset = TorchDataset(loader(url))
    assert dataset.state_dict() == loader(url).state(0, 0)
    next(iter(dataset))
    assert dataset.state_dict() == loader(url).state(0, 1)
    dataset.set_epoch(2)
    assert dataset.state_dict() == loader(url).state(2, 0)
    ids(DataLoader(dataset, batch_size=None, num_workers=1))
    with pytest.raises(ConfigError, match=r"count its steps and save loader\.state\(epoch, step\), or use torchdata's"):
        dataset.state_dict()


def test_values_are_tensors_of_their_types(url: str) -> None:
    dataset = TorchDataset(loader(url), transform=lambda batch: {**batch, "twice": batch["vector"] * 2})
    batch = next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))
    array = next(iter(loader(url).numpy_epoch(0)))
    dtypes = {name: values.dtype for name, values in batch.items() if isinstance(values, torch.Tensor)}
    floats = dict.fromkeys(("vector", "twice"), torch.float32)
    assert dtypes == {"id": torch.int64, "small": torch.int8, "class_id": torch.int32, **floats}
    assert np.array_equal(batch["twice"], array["vector"] * 2)
    assert batch["label"] == array["label"].tolist()
    words: Ragged = batch["words"]
    assert words.values == [b"a"] * int(words.row_lengths.sum())
    assert words.row_lengths.tolist() == [i % 3 for i in batch["id"].tolist()]


def test_anything_but_a_loader_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes a Loader or a Mixture, got 5"):
        TorchDataset(5)  # type: ignore[arg-type]


def test_the_snippet_of_the_guide_runs(url: str) -> None:
    guide = Path(__file__).parents[2] / "docs" / "loader.md"
    (text,) = [
        text for text in re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL) if "import torch" in text
    ]
    names: dict[str, Any] = {"DST": url}
    exec(text, names)
    assert names["batch"]["vector"].shape == (64, 3)


def test_the_benchmark_for_gpus_runs_all_its_feeds_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import gpu
    from parts import gpu_feeds
    from parts.resnet import resnet

    tiny = gpu.Settings(
        device="cpu", model="tiny", size=32, images=128, batch=8, steps=20, warmup=2, rounds=1, workers=1
    )
    results = gpu.compare(tiny, tmp_path)
    (runs,) = results["rounds"]
    assert list(runs) == ["synthetic", "ringfeed", "DataLoader"]
    for name, run in runs.items():
        assert run["images_per_second"] == pytest.approx(8 / run["step_milliseconds"] * 1e3)
        (ratio,) = results["ratios_to_synthetic"][name]
        assert ratio * runs["synthetic"]["images_per_second"] == pytest.approx(run["images_per_second"])
        assert 0 <= run["wait_milliseconds"] <= min(run["longest_wait_milliseconds"], run["step_milliseconds"])
    assert runs["ringfeed"]["loss"] < 5 < np.log(gpu_feeds.CLASSES)  # learns which of 24 photos an image is cut from
    fed = gpu_feeds.ringfeed_batches(Loader(str(tmp_path / "128x32" / "shards"), batch_size=8))
    arrays = gpu_feeds.Arrays(tmp_path / "128x32" / "arrays")
    pairs = sorted((image.tobytes(), label) for image, label in zip(arrays.images, arrays.labels, strict=True))
    for _ in range(2):  # epochs
        batches = [next(fed) for _ in range(16)]
        images, labels = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
        assert sorted((image.tobytes(), label) for image, label in zip(images, labels, strict=True)) == pairs
    assert "128 images of 32 x 32" in gpu.report(results)
    assert sum(weights.numel() for weights in resnet((3, 4, 6, 3), classes=1000).parameters()) == 25_557_032
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_decoded_where_the_batch_is_made(tmp_path: Path, workers: int) -> None:
    source = str(write_pictures(tmp_path / "photos", 24, ("jpg", "png")))
    build(BuildOptions(source=source, destination=str(tmp_path / "d"), splits={"train": 1}, min_class_records=1))
    pictures = Loader(str(tmp_path / "d"), batch_size=12, sample_keys=True)
    images = ImageTransform.for_dataset(pictures.manifest, "image", size=(8, 10), crop=RandomCrop())
    batches = list(DataLoader(TorchDataset(pictures, images), batch_size=None, num_workers=workers))
    expected = [batch["image"] for batch in pictures.numpy_epoch(0, transform=images.on_numpy)]
    assert [batch["image"].shape for batch in batches] == [(12, 8, 10, 3)] * 2
    assert all(map(np.array_equal, [batch["image"].numpy() for batch in batches], expected))
    assert "tensorflow" not in sys.modules


def test_the_longest_operation_of_a_step_is_named(url: str) -> None:
    weights = torch.ones(700, 700)

    def step(batch: dict[str, Any]) -> torch.Tensor:
        rows = torch.from_numpy(batch["id"].numpy()).float()[:, None].tile(30, 700)
        return (torch.relu(rows) @ weights).sum()

    found, spans = trace_step(function_workload(loader(url), step, None))
    assert (found.profiler, found.kind) == ("PyTorch", "host")
    assert sum(span.kind == "step" for span in spans) == 5
    longest = found.longest[0]
    assert (longest.name, longest.calls) == ("aten::mm", 1)  # `aten::matmul` calls it, and does not count
    assert 0 < found.longest[0].share < 1 - found.gaps.share
