"""The compiled kernels: present, switched off, with wrong arguments, and with bytes that are no messages.

That they do what they stand for is tested where they are called, with and without them: see `implementation`.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.formats.example_decode import decode_examples
from ringfeed.sharding.formats.tfrecord import frames_are_intact
from tests.helpers.commands import Cli
from tests.helpers.examples import GOLDEN, golden_case
from tests.helpers.without_kernels import without_kernels

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "sharding" / "compute" / "kernels.c"


def test_kernels_are_compiled() -> None:
    assert kernels.are_compiled()


@pytest.mark.parametrize("rows", ["{i},{text},{label}", "{i}.5,{label},{label}"], ids=["of many layouts", "of one"])
def test_a_build_without_kernels_writes_the_same_bytes(installed: Cli, tmp_path: Path, rows: str) -> None:
    lines = [rows.format(i=i, text="n" * (i % 7), label=i % 3) for i in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,y,label", *lines, ""]))
    written = []
    for switch in ("0", "1"):
        target = tmp_path / switch
        options = [str(target), "--label", "label", "--shards", "3"]
        installed(
            "shard-dataset", "build", str(tmp_path / "rows.csv"), *options, env={"RINGFEED_KERNELS": switch}, check=True
        )
        written.append({path.name: path.read_bytes() for path in target.rglob("train-*")})
    assert len(written[0]) == 6  # shards and their indexes
    assert written[0] == written[1]


@given(data=st.data())
def test_damaged_messages_are_read_as_without_kernels(data: st.DataObject) -> None:
    """Above all, no byte beyond the message is read as a part of it."""
    schema, _ = golden_case()
    message = bytearray(GOLDEN)
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    content, end = np.frombuffer(bytes(message), np.uint8), data.draw(st.integers(0, len(message)))

    def read(content: npt.NDArray[np.uint8]) -> str:
        try:
            return repr(decode_examples(content, np.zeros(1, np.int64), np.array([end]), schema).to_pydict())
        except (ValueError, KeyError) as error:
            return repr(type(error))

    ours = read(content)
    with without_kernels():
        assert read(content[:end].copy()) == ours


@given(
    payloads=st.lists(st.binary(max_size=9), min_size=1, max_size=4), at=st.integers(0, 100), flip=st.integers(0, 255)
)
def test_damaged_frames_are_found_as_without_kernels(payloads: list[bytes], at: int, flip: int) -> None:
    offsets = np.cumsum([0, *map(len, payloads)])
    lengths = np.diff(offsets) + 16
    bounds = np.array([0, len(payloads) // 2, len(payloads)])
    runs = kernels.frame_columns([(np.frombuffer(b"".join(payloads), np.uint8), offsets)], bounds)
    frames = np.concatenate([run.copy() for run in runs])
    frames[at % len(frames)] ^= flip
    data = pa.py_buffer(frames.tobytes())
    assert frames_are_intact(data, lengths) == (flip == 0)
    with without_kernels():
        assert frames_are_intact(data, lengths) == (flip == 0)


def test_arguments_that_would_overrun_memory_are_refused() -> None:
    offsets, data = np.array([0, 4]), np.zeros(4, np.uint8)
    with pytest.raises(ValueError, match="expected runs of 1 records, got 2"):
        kernels.frame_columns([(data, offsets)], np.array([0, 2]))
    with pytest.raises(ValueError, match="expected 4 contiguous uint8, got 3 uint8"):
        kernels.frame_columns([(data[:3], offsets)], np.array([0, 1]))
    with pytest.raises(ValueError, match="expected 4 contiguous uint8, got 3 uint8"):
        kernels.read_files([b"/dev/null"], offsets, data[:3])
    with pytest.raises(ValueError, match="expected 2 contiguous int64, got 2 int32"):
        kernels.read_files([b"/dev/null"], offsets.astype(np.int32), data)
    with pytest.raises(ValueError, match="null byte"):
        kernels.read_files([b"/dev/\0null"], offsets, data)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.frame_rows(np.empty((4, 40), np.uint8)[:, :20])
    with pytest.raises(ValueError, match="a frame has at least 16 bytes, got 15"):
        kernels.frame_rows(np.empty((4, 15), np.uint8))
    with pytest.raises(ValueError, match="a frame has at least 16 bytes, got -1"):
        kernels.first_bad_frame(np.empty(40, np.uint8), np.array([20, 19]))
    with pytest.raises(ValueError, match="expected ends of 0 or more, got -9223372036854775808"):
        kernels.first_bad_frame(np.empty(40, np.uint8), np.array([40, -(2**63)]))
    with pytest.raises(ValueError, match="expected positions in the data, got -1 and 4"):
        kernels.view_bytes(data, offsets[:1] - 1, offsets[1:], 4)
    with pytest.raises(ValueError, match="expected 5 contiguous uint8, got 4 uint8"):
        kernels.view_bytes(data, offsets[:1], offsets[1:] + 1, 4)
    with pytest.raises(ValueError, match="expected 5 contiguous uint8, got 4 uint8"):
        kernels.gather(data, np.array([0, 2]), 3)
    with pytest.raises(ValueError, match="expected lengths of at least 0, got -1"):
        kernels.copy_values(np.zeros(2, np.int64), np.array([0, -1]))
    with pytest.raises(ValueError, match="expected 2 contiguous int64, got 1 int64"):
        kernels.copy_values(np.zeros(1, np.int64), np.zeros(2, np.int64))
    for start, width in ((-1, 2), (0, -1)):
        with pytest.raises(
            ValueError, match=f"expected slices of 0 bytes or more in the data, got {width} from {start}"
        ):
            kernels.gather(data, np.array([0, start]), width)
    with pytest.raises(ValueError, match="expected 6 contiguous uint8, got 4 uint8"):
        kernels.gather_fields(np.zeros(3, np.int64), [0], [data.reshape(2, 2)])
    with pytest.raises(ValueError, match="expected a field to begin at byte 0 or later, got -1"):
        kernels.gather_fields(np.zeros(2, np.int64), [-1], [data.reshape(2, 2)])
    with pytest.raises(ValueError, match="expected 41 contiguous uint8, got 40 uint8"):
        kernels.first_bad_frame(np.empty(40, np.uint8), np.array([16, 41]))
    for wrong in (np.array([0, 100, 4]), np.array([-4, 0, 4])):
        with pytest.raises(ValueError, match="expected ascending offsets from 0 or more"):
            kernels.read_files([b"/dev/null"] * 2, wrong, data)
        with pytest.raises(ValueError, match="expected ascending offsets from 0 or more"):
            kernels.frame_columns([(np.zeros(100, np.uint8), wrong)], np.array([0, 2]))
        with pytest.raises(ValueError, match="expected ascending offsets from 0 or more"):
            kernels.frame_columns([(data, np.array([0, 4, 4]))], wrong)
    frozen = np.zeros((1, 20), np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="expected a writeable array"):
        kernels.frame_rows(frozen)
    for free, low, groups in [
        (0, 1, None),
        (-1, 4, None),
        (60, 4, None),
        (1, 4, [0, 0, 2]),
        (1, 4, [0, 1]),
        (0, 4, [-1] * 3),
    ]:
        with pytest.raises(ValueError, match=r"expected .*3 (numbers|groups)"):
            kernels.noise(1, 3, free, low, None if groups is None else np.array(groups))
    for following in (-1, 1):
        with pytest.raises(ValueError, match="members within their classes to come next"):
            kernels.draw(np.array([0]), np.array([7]), np.array([0, 1]), np.array([following]))
    with pytest.raises(ValueError, match=r"expected classes in \[0, 1\), got 4294967296 to 4294967296"):
        kernels.draw(np.array([1 << 32]), np.array([7]), np.array([0, 1]), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="class 1 has no members"):
        kernels.draw(np.array([0, 1]), np.array([7]), np.array([0, 1, 1]), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"expected classes in \[0, 2\), got 0 to 2"):
        kernels.draw(np.array([0, 2]), np.array([7]), np.array([0, 1, 1]), np.zeros(2, np.int64))


@pytest.mark.parametrize("lengths", [[], [0], [1], [0, 1, 13, 70_000, 2, 0]])
def test_values_are_copied_from_anywhere(lengths: list[int]) -> None:
    source = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    starts = np.arange(len(lengths), dtype=np.int64)[::-1] * 7
    copies = kernels.copy_values(starts + source.ctypes.data, np.array(lengths, np.int64))
    assert copies == [source[at : at + length].tobytes() for at, length in zip(starts, lengths, strict=True)]


def test_groups_of_no_bits_change_nothing() -> None:
    assert (kernels.noise(1, 3, 0, 4, np.zeros(3)) == kernels.noise(1, 3, 0, 4)).all()


def test_kernels_stay_within_their_memory(tmp_path: Path) -> None:
    """Run this file, and tests that call kernels, with kernels that the compiler has given checks of every access."""
    flags = ["-shared", "-fPIC", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    library = tmp_path / "kernels.so"
    include = ["-I", sysconfig.get_path("include")]
    subprocess.run(["gcc", *flags, *include, str(SOURCE), "-o", str(library)], check=True)
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    tests = ["tests/sharding/compute/test_kernels.py", "tests/sharding/compute/test_keyed_random.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.helpers.sanitized_kernels", *tests]
    leave_out = "not stay_within_their_memory and not build_without and not python"  # which calls no kernel
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own allocations
        "SANITIZED_KERNELS": str(library),
    }
    done = subprocess.run([*command, "-k", leave_out], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_failing_file_is_reported_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "four").write_bytes(b"four")
    (tmp_path / "folder").mkdir()
    target = np.zeros(8, np.uint8)
    paths = [str(tmp_path / name).encode() for name in ("four", "folder", "missing")]
    assert kernels.read_files([paths[0]] * 2, np.array([0, 4, 8]), target)[0] == 0
    assert target.tobytes() == b"fourfour"
    for other, size, error in [(paths[0], 3, -1), (paths[0], 2, -1), (paths[1], 4, 21), (paths[2], 4, 2)]:
        assert kernels.read_files([paths[0], other], np.array([0, 4, 4 + size]), target) == (error, 1)
    longer = np.zeros(9, np.uint8)
    assert kernels.read_files([paths[0]] * 2, np.array([0, 4, 9]), longer) == (-1, 1)
