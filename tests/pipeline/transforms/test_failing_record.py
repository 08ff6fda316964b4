"""Errors of transforms name the record: dataset, shard, number and sample key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx  # there is no public name for it

from ringfeed.pipeline import CutMix, ImageTransform, Loader, Mixture, Mixup, TabularTransform
from ringfeed.pipeline.transforms.failing_record import explain_failures
from ringfeed.pipeline.transforms.tabular_plan import NumericColumn, TabularPlan
from ringfeed.sharding import BuildOptions, ConfigError, CorruptionError, DatasetError, RingfeedError, build
from ringfeed.tools.cli import main
from tests.helpers.numbered_records import rewrite
from tests.helpers.pictures import encode, pixels_of

RECORDS, BAD = 24, 17
Make = Callable[..., str]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Datasets of photos in a column of bytes, of which one may be something else."""

    def make(shard_format: str, bad: bytes | None) -> str:
        folder = tmp_path_factory.mktemp("photos")
        files = [encode(pixels_of(number), "png") for number in range(RECORDS)]
        files[BAD] = files[BAD] if bad is None else bad
        lists = pa.array([list(range(number % 3)) for number in range(RECORDS)])
        labels = [number % 2 for number in range(RECORDS)]
        table = pa.table({"n": range(RECORDS), "photo": files, "boxes": lists, "label": labels})
        pq.write_table(table, folder / "photos.parquet")
        options = {"shards": 3, "shard_format": shard_format, "min_class_records": 1, "splits": {"train": 1}}
        source, destination = str(folder / "photos.parquet"), str(folder / "shards")
        build(BuildOptions(source=source, destination=destination, label="label", **options))  # type: ignore[arg-type]
        return destination

    return make


@pytest.fixture(scope="module", params=["tfrecord", "parquet"])
def damaged(photos: Make, request: pytest.FixtureRequest) -> str:
    return photos(request.param, b"\xff\xd8\xff\xe0 no more than the beginning of a JPEG")


def place_of_bad(url: str) -> str:
    """Shard and row of the bad record, by a reader of its own."""
    for path in sorted(Path(url).glob("train-*-of-00003.*")):
        if path.suffix == ".parquet":
            numbers = pq.read_table(path).column("n").to_pylist()
        elif path.suffix == ".tfrecord":
            examples = map(tf.train.Example.FromString, tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
            numbers = [example.features.feature["n"].int64_list.value[0] for example in examples]
        else:
            continue
        if BAD in numbers:
            return f"{url}: record {numbers.index(BAD)} of {path.name}"
    raise AssertionError


def error_of(loader: Any, transform: Any, epoch: int = 0) -> tuple[str, int]:
    """Of an epoch that fails, in how many good batches."""
    taken: list[Any] = []
    with pytest.raises(DatasetError) as error:
        taken.extend(1 for _ in loader.batches(epoch, transform=transform))
    return str(error.value), len(taken)


def step_of_bad(loader: Any, epoch: int = 0) -> tuple[int, int]:
    for step, batch in enumerate(loader.numpy_epoch(epoch)):
        if BAD in batch["n"]:
            return step, int(np.flatnonzero(batch["n"] == BAD)[0])
    raise AssertionError


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epoch": 2, "window_shards": 3},
        {"balance": "uniform", "epoch_length": 48},
        {"where": "n > 9"},
        {"remainder": "pad", "rank": 2, "world_size": 3, "batch_size": 9, "streams": 1, "shuffle": False},
        {"bucket_by": "boxes", "bucket_steps": 2},
    ],
)
def test_the_record_of_a_damaged_image_is_named(damaged: str, options: dict[str, Any]) -> None:
    epoch = options.pop("epoch", 0)
    loader = Loader(damaged, **{"batch_size": 4, "sample_keys": True, **options})
    transform = ImageTransform.for_dataset(loader.manifest, "photo", size=(8, 8), flip_left_right=True)
    step, place = step_of_bad(loader, epoch)
    key = next(loader.numpy_epoch(epoch, step))["sample_key"][place].tolist()
    said, taken = error_of(loader, transform, epoch)
    assert taken == step
    assert said.startswith(
        f"{place_of_bad(damaged)} (sample_key {key}): the image in feature 'photo' cannot be decoded: "
    )
    assert f"shard-dataset reshard {damaged} DST --encode png --on-bad-record skip:1 --schema FILE" in said
    assert "Invalid JPEG data" in said
    assert "\n" not in said


def test_an_image_that_tensorflow_mistakes_is_named_with_one_remedy(photos: Make) -> None:
    bitmap = b"BM" + bytes(12) + (12).to_bytes(4, "little") + bytes(60)  # the header of OS/2, without a depth
    transform = ImageTransform(feature="photo", size=(8, 8))
    said, _ = error_of(Loader(photos("parquet", bitmap), batch_size=4), transform)
    assert "cannot be decoded: OSError: Unsupported BMP pixel depth (0); " in said  # by Pillow, in place of TensorFlow
    assert said.count("--encode png") == 1
    mistaken = "a BMP of 16 bits, of unusual masks or of OS/2, whose colours TensorFlow mistakes; .*--encode png"
    with pytest.raises(tf.errors.InvalidArgumentError, match=mistaken):
        transform({"photo": tf.constant([bitmap])})


def test_the_record_is_named_in_a_mixture(photos: Make, damaged: str) -> None:
    shard_format = place_of_bad(damaged).rpartition(".")[2]
    sources = {"good": {"url": photos(shard_format, None)}, "bad": {"url": damaged}}
    loader = Mixture(sources, batch_size=6)
    came = enumerate(loader.numpy_epoch(0))
    step = next(step for step, batch in came if ((batch["n"] == BAD) & (batch["source_id"] == 1)).any())
    transform = ImageTransform(feature="photo", size=(8, 8))
    said, taken = error_of(loader, transform)
    assert (said.partition(": the image")[0], taken) == (place_of_bad(damaged), step)


def test_the_record_is_named_for_a_user_function_in_mid_epoch(photos: Make) -> None:
    loader = Loader(photos("parquet", b"II*\0 as a TIFF begins"), batch_size=4, streams=1)
    step, _ = step_of_bad(loader)

    def decoded(batch: Any) -> Any:
        def one(file: Any) -> Any:
            return tf.io.decode_image(file, 3, expand_animations=False)[:8, :8]

        signature = tf.TensorSpec([8, 8, 3], tf.uint8)
        return tf.map_fn(one, batch["photo"], fn_output_signature=signature), batch["class_id"]

    for transform in (decoded, [decoded, lambda image, label: (image, label)]):
        said, taken = error_of(loader, transform)
        assert taken == step
        assert "the image in feature 'photo' cannot be decoded: Unknown image file format" in said
    rest = iter(loader.epoch(0, step + 1, transform=decoded))
    assert len(list(rest)) == loader.steps_per_epoch - step - 1


def test_a_record_that_a_function_fails_on_is_named(photos: Make) -> None:
    def checked(batch: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(batch["n"], tf.constant(BAD, tf.int64), "too large")]):
            return {**batch, "n": tf.identity(batch["n"])}

    loader = Loader(photos("parquet", None), batch_size=4, shuffle=False)
    first = next(loader.numpy_epoch(0))["n"]
    numbers = np.concatenate([first, *(batch["n"] for batch in loader.numpy_epoch(0, 1))])
    row = int(np.flatnonzero(numbers >= BAD)[0])
    said, taken = error_of(loader, checked)
    assert taken == row // 4
    assert f"record {row % 8} of train-0000{row // 8}-of-00003.parquet: transform checked fails: too large" in said


def test_errors_of_whole_batches_name_the_step(photos: Make) -> None:
    loader = Loader(photos("parquet", None), batch_size=4)

    def wrong(batch: Any) -> Any:
        return {**batch, "n": tf.io.decode_raw(tf.strings.substr(batch["photo"][:4], 0, 3), tf.int64)}

    for transform in (wrong, tf.function(wrong, autograph=False)):
        with pytest.raises(ConfigError, match=r"step 0 of epoch 0: transform wrong fails: .* multiple of 8"):
            list(loader.batches(0, transform=transform))


def test_the_error_of_keras_contains_the_line(damaged: str) -> None:
    import keras

    loader = Loader(damaged, batch_size=4, columns=["photo"])
    batches = loader.epoch(
        0, transform=ImageTransform.for_dataset(loader.manifest, "photo", size=(8, 8)), as_supervised=True
    )
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.fit(batches, shuffle=False, verbose=0)
    assert f"DatasetError: {place_of_bad(damaged)}: the image in feature 'photo' cannot be decoded" in str(error.value)


def test_training_ends_with_the_line(damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(
        f"data: {{url: {damaged}, batch_size: 4, include: [photo], eval_split: null}}\n"
        "model: {name: convnet, image_shape: [8, 8, 3], filters: [2], hidden: []}\nepochs: 1\ndeterministic: false\n"
    )
    assert main(["train", "--config", str(config)]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(f"ringfeed train: error: {place_of_bad(damaged)}: the image in feature 'photo' cannot")


def test_a_damaged_shard_is_reported_as_without_transforms(photos: Make) -> None:
    url = photos("parquet", None)
    shard = Path(url) / "train-00001-of-00003.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 255
    rewrite(shard, bytes(data))
    loader = Loader(url, batch_size=4, streams=1)
    transform = ImageTransform.for_dataset(loader.manifest, "photo", size=(8, 8))
    with pytest.raises(CorruptionError, match=r"of-00003\.parquet is damaged"):
        list(loader.batches(0, transform=transform))
    with pytest.raises(tf.errors.UnknownError, match=r"CorruptionError: .*is damaged"):
        list(loader.epoch(0, transform=transform))


@pytest.mark.parametrize("bad", [{0}, {5}, {2, 3}, set(range(6)), set()])
def test_the_first_batch_that_fails_is_explained_and_those_before_come(bad: set[int]) -> None:
    def of(step: Any) -> Any:
        safe = tf.debugging.Assert(~tf.reduce_any([step == each for each in (*bad, -1)]), ["bad"])
        with tf.control_dependencies([safe]):
            ragged = tf.RaggedTensor.from_row_lengths(tf.range(step), [step])
            return {"step": tf.reshape(step, [1]), "ragged": ragged, "text": tf.strings.as_string([step])}

    asked: list[int] = []

    def explain(step: int) -> RingfeedError:
        asked.append(step)
        return DatasetError(f"step {step} is bad")

    plain = tf.data.Dataset.range(6).map(of, 3, deterministic=True)
    batches = explain_failures(plain, 0, 6, explain)
    assert batches.element_spec == plain.element_spec
    assert batches.cardinality() == 6
    came: list[int] = []

    def take() -> None:
        came.extend(int(batch["step"][0]) for batch in batches)

    if bad:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"DatasetError: step {min(bad)} is bad"):
            take()
        assert asked[0] == min(bad)
    else:
        take()
    assert came == list(range(min(bad, default=6)))


def test_other_errors_of_the_loader_are_not_blamed_on_a_transform(
    photos: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(photos("parquet", None), batch_size=4, streams=1)

    def fail(*args: Any, **options: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(loader, "_gather_chunks", fail)
    with pytest.raises(MemoryError, match="no room"):
        list(loader.batches(0, transform=lambda batch: batch))


def test_each_of_two_readings_raises_its_own_error(damaged: str) -> None:
    loader = Loader(damaged, batch_size=4)

    def refuse(batch: Any) -> Any:
        return {**batch, "n": tf.io.decode_raw(tf.strings.substr(batch["photo"][:4], 0, 3), tf.int64)}

    images = loader.batches(0, transform=ImageTransform.for_dataset(loader.manifest, "photo", size=(8, 8)))
    refused = loader.batches(1, transform=refuse)
    next(images)
    with pytest.raises(ConfigError, match=r"step 0 of epoch 1: transform refuse fails"):
        next(refused)
    with pytest.raises(DatasetError, match="the image in feature 'photo' cannot be decoded"):
        list(images)
    third = loader.batches(2)
    next(third)
    with pytest.raises(ZeroDivisionError):
        third.throw(ZeroDivisionError)  # no error of the loader's


NUMBER = NumericColumn(name="n", mean=0.0, std=1.0, has_missing=False)


@pytest.mark.parametrize(
    "transform",
    [
        ImageTransform(feature="photo", size=(8, 8)),
        Mixup(features=("x",), classes=2),
        CutMix(feature="image", classes=2),
        TabularTransform(plan=TabularPlan(numeric=(NUMBER,), categories=())),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_autograph_does_not_look_through_a_transform_that_a_users_function_calls(transform: Any) -> None:
    seen = set()

    class Watched(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            seen.add(control_status_ctx().status.name)
            return super().__getitem__(name)

    element = {"photo": tf.constant([encode(pixels_of(0), "png")] * 8), "n": tf.ones([8]), "x": tf.ones([8, 3])}
    element |= {"image": tf.ones([8, 4, 4, 1]), "class_id": tf.zeros([8], tf.int32)}
    element["sample_key"] = tf.zeros([8, 2], tf.int64)
    tf.function(lambda: transform(Watched(element))).get_concrete_function()
    assert seen == {"DISABLED"}
