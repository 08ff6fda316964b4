"""The step from inside: one rule for recordings of any device, and real steps on the cores.

That of PyTorch runs in tests/helpers/torch_checks.py.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from ringfeed.pipeline import Loader
from ringfeed.sharding import ConfigError
from ringfeed.tools.cli import main
from ringfeed.tools.measure.step_trace import StepInside, look_inside, read_events, read_space, trace_step
from ringfeed.tools.measure.workloads import function_workload

MILLISECOND = 10**9  # in picoseconds, the unit of a recording
SQUARE = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
Event = tuple[str, float, float]  # name, begin and length in milliseconds


def space_of(planes: dict[str, dict[str, Sequence[Event]]]) -> xplane_pb2.XSpace:
    """A recording of these planes, by the lines in each."""
    space = xplane_pb2.XSpace()
    for plane_name, lines in planes.items():
        plane = space.planes.add(name=plane_name)
        plane.stat_metadata[1].name = "hlo_op"
        for line_name, events in lines.items():
            line = plane.lines.add(name=line_name, timestamp_ns=5_000_000)
            for name, begin, length in events:
                number = len(plane.event_metadata) + 1
                plane.event_metadata[number].name = name
                event = line.events.add(
                    metadata_id=number, offset_ps=int(begin * MILLISECOND), duration_ps=int(length * MILLISECOND)
                )
                if name.startswith("fusion"):
                    event.stats.add(metadata_id=1)
    return space


def inside(planes: dict[str, dict[str, Sequence[Event]]]) -> StepInside:
    return look_inside(list(read_space(space_of(planes))), "TensorFlow")


def figures(found: StepInside) -> dict[str, tuple[float, float, float]]:
    """Calls, milliseconds and share of what is shown, by name."""
    return {
        each.name: (each.calls, round(each.seconds * 1000, 6), round(each.share, 6))
        for each in (*found.longest, found.copies, found.gaps)
    }


STEPS = [("ringfeed step", 0.0, 10.0), ("ringfeed step", 10.0, 10.0)]
HOST = {
    "python": [*STEPS, ("EagerLocalExecute: Sin", 1.0, 2.0), ("EagerLocalExecute: __inference_step_1", 3.0, 6.0)],
    "worker": [("FunctionRun", 3.0, 6.0), ("model/dense/MatMul:MatMul", 4.0, 4.0), ("fusion.1", 5.0, 1.0)],
}


def test_operations_on_the_host_are_counted_without_those_that_they_call() -> None:
    found = inside({"/host:CPU": HOST})
    assert (found.kind, found.seconds) == ("host", pytest.approx(0.01))
    assert figures(found) == {
        "model/dense/MatMul": (0.5, 1.5, 0.15),
        "Sin": (0.5, 1.0, 0.1),
        "fusion.1": (0.5, 0.5, 0.05),
        "copies to the device": (0.0, 0.0, 0.0),
        "no operation": (2.0, 7.0, 0.7),  # 0 to 1, 3 to 4, 8 to 10, and all of the second step
    }


GPU = {
    "Stream #13(Compute)": [("gemm", 1.0, 4.0), ("relu", 5.0, 1.0), ("gemm", 11.0, 8.0), ("cast", 19.0, 0.5)],
    "Stream #14(MemcpyH2D)": [("MemcpyH2D", 0.0, 2.0), ("MemcpyH2D", 10.5, 1.0)],
    "TensorFlow Ops": [("the same again", 1.0, 5.0)],
}
TPU = {"XLA Modules": [("jit_step", 1.0, 18.0)], "XLA Ops": [("dot.1", 1.0, 4.0), ("add.1", 5.0, 1.0)]}


@pytest.mark.parametrize(
    ("device", "lines", "expected"),
    [
        (
            "/device:GPU:0",
            GPU,
            {
                "gemm": (1.0, 6.0, 0.6),
                "relu": (0.5, 0.5, 0.05),
                "cast": (0.5, 0.25, 0.025),
                "copies to the device": (1.0, 1.5, 0.15),
                "no operation": (1.5, 2.5, 0.25),  # 6 to 10, 10 to 10.5, 19.5 to 20
            },
        ),
        (
            "/device:TPU:0",
            TPU,
            {
                "dot.1": (0.5, 2.0, 0.2),
                "add.1": (0.5, 0.5, 0.05),
                "copies to the device": (0.0, 0.0, 0.0),
                "no operation": (1.5, 7.5, 0.75),
            },
        ),
    ],
)
def test_where_a_device_was_recorded_its_kernels_count(
    device: str, lines: dict[str, Sequence[Event]], expected: dict[str, tuple[float, float, float]]
) -> None:
    found = inside({"/host:CPU": HOST, device: lines})
    assert found.kind == "device"
    assert figures(found) == expected


def test_a_recording_of_pytorch_on_a_gpu_is_read_by_the_same_rule() -> None:
    shown = [
        ("user_annotation", "ringfeed step", 0, 10), ("gpu_user_annotation", "ringfeed step", 1, 9),
        ("cpu_op", "aten::mm", 0, 9), ("cuda_runtime", "cudaLaunchKernel", 0, 1), ("kernel", "gemm", 3, 4),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1, 1),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 8, 1),
    ]  # fmt: skip
    events = [
        {"ph": "X", "cat": category, "name": name, "tid": category, "ts": 1e3 * begin, "dur": 1e3 * length}
        for category, name, begin, length in shown
    ]
    found = look_inside(list(read_events([{"ph": "M", "name": "process_name"}, *events])), "PyTorch")
    assert (found.kind, found.seconds) == ("device", pytest.approx(0.01))
    assert figures(found) == {
        "gemm": (1, 4.0, 0.4),
        "Memcpy DtoH (Device -> Pageable)": (1, 1.0, 0.1),
        "copies to the device": (1, 1.0, 0.1),
        "no operation": (4, 4.0, 0.4),  # 0 to 1, 2 to 3, 7 to 8, 9 to 10
    }


def test_only_the_five_longest_are_named() -> None:
    kernels = [(f"kernel {number}", float(number), 0.1 * number) for number in range(1, 9)]
    found = inside({"/host:CPU": HOST, "/device:GPU:0": {"Stream #1": kernels}})
    assert [each.name for each in found.longest] == [f"kernel {number}" for number in (8, 7, 6, 5, 4)]


def eager(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    rows = tf.tile(tf.cast(batch["hours"], tf.float32)[:, None], [128, SQUARE.shape[0]])
    return tf.reduce_sum(tf.nn.relu(rows) @ SQUARE)


@pytest.mark.parametrize(("step", "name"), [(eager, "MatMul"), (tf.function(eager), "matmul")])
def test_the_longest_operation_of_a_real_step_is_named(
    step: Callable[[dict[str, tf.Tensor]], tf.Tensor], name: str, dataset: Path
) -> None:
    loader = Loader(str(dataset), batch_size=16)
    found, spans = trace_step(function_workload(loader, step, None))
    assert (found.profiler, found.kind) == ("TensorFlow", "host")
    assert sum(span.kind == "step" for span in spans) == 5
    assert (found.longest[0].name, found.longest[0].calls) == (name, 1)
    assert 0 < found.longest[0].share < 1 - found.gaps.share
    assert {"Relu", "Sum"} <= {each.name for each in found.longest}


def test_the_trace_of_a_run_is_read_by_the_same_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = {**HOST, "loader": [("ringfeed:gather", 0.0, 10.0)]}
    for number, planes in enumerate(({}, {"/host:CPU": host})):
        path = tmp_path / "plugins" / "profile" / str(number) / "host.xplane.pb"
        path.parent.mkdir(parents=True)
        path.write_bytes(space_of(planes).SerializeToString())
    trace = tmp_path / "trace.json"
    assert main(["profile", str(tmp_path), "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["model/dense/MatMul", "1", "3.000", "15%"], ["Sin", "1", "2.000", "10%"], ["fusion.1", "1", "1.000", "5%"]
    ]  # fmt: skip
    assert lines[-1] == "the trace's longest operation: model/dense/MatMul, 15%; none runs for 70% of it"
    assert len(json.loads(trace.read_text())["traceEvents"]) > 5
    assert main(["profile", str(tmp_path), "--batch-size", "8"]) == 1
    assert "--batch-size is not for a run's trace" in capsys.readouterr().err
    path.write_bytes(b"forged")
    assert main(["profile", str(tmp_path)]) == 1
    assert f"{path} does not hold a trace by TensorFlow's profiler, or is damaged" in capsys.readouterr().err


def test_a_profiler_that_is_at_work_already_is_one_line(dataset: Path, tmp_path: Path) -> None:
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(ConfigError, match="a profiler is at work in this process already; stop it"):
            trace_step(function_workload(Loader(str(dataset), batch_size=16), lambda batch: batch, None))
    finally:
        tf.profiler.experimental.stop(save=False)
