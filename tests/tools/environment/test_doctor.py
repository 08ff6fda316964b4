"""`ringfeed doctor`, the probes of the environment (tools/probe.py), and the command `ringfeed` (tools/cli.py)."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.tools import cli
from ringfeed.tools.environment.doctor import Facts, Finding, diagnose
from ringfeed.tools.probe import HorovodProbe, Runtime, TensorflowProbe, parse_probe
from tests.helpers.lean import lean_environment

HEALTHY = Facts(
    versions={
        "python": "3.11.7",
        "ringfeed": "0.1.0",
        "pyarrow": "26.0.1",
        "numpy": "2.4.6",
        "fsspec": "2026.9.0",
        "s3fs": "2026.9.0",
        "tensorflow": "2.21.0",
        "keras": "3.15.1",
        "horovod": "0.28.1",
        "hdfs-native": "0.14.7",
    },
    kernels=True,
    runtime=Runtime(tensorflow=TensorflowProbe(), horovod=HorovodProbe(collectives=("gloo",))),
    horovod_built_for="2.21.0",
    gpus=(),
    interfaces=("eth0",),
    cpu_cores=2,
    memory_bytes=2**34,
)


def without(facts: Facts, *names: str) -> Facts:
    return replace(facts, versions={**facts.versions, **dict.fromkeys(names)})


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_a_complete_environment_has_no_findings() -> None:
    assert diagnose(HEALTHY) == ()


def test_a_host_without_tensorflow_is_not_broken_and_learns_how_to_install_the_rest() -> None:
    bare = replace(
        without(HEALTHY, "tensorflow", "keras", "horovod", "hdfs-native"),
        runtime=Runtime(tensorflow=None, horovod=None),
        horovod_built_for=None,
    )
    findings = diagnose(bare)
    assert not any(finding.broken for finding in findings)
    assert {finding.command for finding in findings} == {
        "pip install 'ringfeed[cpu]'",
        "pip install 'ringfeed[hdfs]'",
    }


def test_uncompiled_kernels_are_missing_but_not_broken() -> None:
    finding = only(diagnose(replace(HEALTHY, kernels=False)))
    assert not finding.broken
    assert "kernels" in finding.what
    assert "gcc" in finding.command


def test_horovod_for_another_tensorflow_is_broken() -> None:
    finding = only(diagnose(replace(HEALTHY, horovod_built_for="2.20.0")))
    assert finding.broken
    assert "2.20.0" in finding.what
    assert "2.21.0" in finding.what
    assert finding.command == "ringfeed install-horovod --force"


def test_horovod_that_does_not_load_is_broken() -> None:
    runtime = Runtime(tensorflow=TensorflowProbe(), horovod=HorovodProbe(error="undefined symbol: f"))
    finding = only(diagnose(replace(HEALTHY, runtime=runtime)))
    assert finding.broken
    assert "undefined symbol: f" in finding.what


def test_a_gpu_that_tensorflow_does_not_use_is_reported() -> None:
    finding = only(diagnose(replace(HEALTHY, gpus=("NVIDIA H200",))))
    assert (finding.broken, finding.command) == (False, "pip install 'ringfeed[gpu]'")


def test_gpus_without_nccl_are_reported() -> None:
    runtime = replace(HEALTHY.runtime, tensorflow=TensorflowProbe(gpus=("/physical_device:GPU:0",)))
    finding = only(diagnose(replace(HEALTHY, gpus=("NVIDIA H200",), runtime=runtime)))
    assert (finding.broken, finding.command) == (False, "ringfeed install-horovod --nccl yes")


@pytest.mark.parametrize("name", ["pyarrow", "numpy", "fsspec", "s3fs"])
def test_sharding_without_a_base_dependency_is_broken(name: str) -> None:
    finding = only(diagnose(without(HEALTHY, name)))
    assert finding.broken
    assert name in finding.what


def test_a_probe_that_dies_in_horovod_keeps_the_facts_of_tensorflow() -> None:
    said = 'noise\n{"tensorflow": {"version": "2.21.0", "gpus": ["GPU:0"]}}\n'
    runtime = parse_probe(said, "Fatal: aborted\n", -6, tensorflow=True, horovod=True)
    assert runtime.tensorflow == TensorflowProbe(gpus=("GPU:0",))
    assert runtime.horovod == HorovodProbe(error="the process ended with status -6: Fatal: aborted")


def test_a_broken_tensorflow_is_named_and_not_blamed_on_horovod() -> None:
    said = '{"tensorflow": {"error": "No module named numpy"}}\n'
    runtime = parse_probe(said, "", 0, tensorflow=True, horovod=True)
    assert runtime.tensorflow == TensorflowProbe(error="No module named numpy")
    assert runtime.horovod == HorovodProbe(error="TensorFlow does not load")


def ringfeed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringfeed.tools.cli", *arguments]
    return subprocess.run(command, env=lean_environment(), capture_output=True, text=True, check=False, timeout=180)


def test_doctor_reports_this_environment_as_json() -> None:
    done = ringfeed("doctor", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 1), done.stderr
    assert document["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert document["kernels"] is True
    assert document["clients"]["s3"] is True
    assert document["horovod"] is None or "gloo" in document["horovod"]["collectives"]


def test_help_lists_every_subcommand_and_imports_no_tensorflow() -> None:
    check = (
        "import sys; from ringfeed.tools.cli import build_parser; print(build_parser(None).format_help());"
        "sys.exit('tensorflow' in sys.modules or 'horovod' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert all(f"\n    {command}" in done.stdout for command in cli.COMMANDS)


@pytest.mark.parametrize("arguments", [(), ("no-such-command",), ("doctor", "--no-such-option")])
def test_wrong_usage_exits_2_without_a_stack_trace(arguments: tuple[str, ...]) -> None:
    done = ringfeed(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("ringfeed")
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("batch_size must be at least 1, got 0"), 1, "batch_size must be at least 1, got 0"),
        (ModuleNotFoundError("no", name="tensorflow.io"), 1, "pip install 'ringfeed[cpu]'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_expected_error_is_one_line(
    error: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(command: str) -> cli.Subcommand:
        raise error

    monkeypatch.setattr(cli, "load", fail)
    assert cli.main(["doctor"]) == status
    shown = capsys.readouterr().err
    assert shown.startswith("ringfeed: ")
    assert line in shown
    assert shown.count("\n") == 1


def test_a_missing_module_of_no_extra_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(command: str) -> cli.Subcommand:
        raise ModuleNotFoundError("no", name="ringfeed.tools.missing")

    monkeypatch.setattr(cli, "load", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["doctor"])
