"""The recipe of Horovod's wheel: target, headers, environment and required packages.

Pure: nothing here runs a program or writes a file; `horovod_build` does.
Tested in tests/tools/environment/test_horovod_build.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .nccl import Nccl

HOROVOD_VERSION = "0.28.1"
HOROVOD_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"  # PyPI's source distribution

# XLA header as Horovod includes it (TensorFlow <= 2.15) -> its path in TensorFlow 2.21.
XLA_BUILDER = "tensorflow/compiler/xla/client/xla_builder.h"
MOVED_HEADERS = {
    XLA_BUILDER: "xla/hlo/builder/xla_builder.h",
    **{
        f"tensorflow/compiler/xla/{header}": f"xla/{header}"
        for header in (
            "service/custom_call_target_registry.h",
            "service/hlo.pb.h",
            "shape.h",
            "xla_data.pb.h",
        )
    },
}

# Horovod's GPU operations use these two names, which TensorFlow has dropped. They are defined in the forwarding header
# that only one of Horovod's files includes (two definitions would not link); a CPU build leaves them out.
GPU_STREAM = """
#if HAVE_CUDA
#include <cuda_runtime.h>
#include "absl/status/statusor.h"
#include "xla/stream_executor/stream.h"
namespace xla {
template <typename T>
using StatusOr = absl::StatusOr<T>;
}  // namespace xla
namespace stream_executor::gpu {
cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}
}  // namespace stream_executor::gpu
#endif
"""

# Debian package -> its sign: a program on PATH, or a header.
SYSTEM_PACKAGES = {
    "cmake": "cmake",
    "make": "make",
    "g++": "g++",
    "libhighwayhash-dev": "highwayhash/arch_specific.h",
    "libfarmhash-dev": "farmhash.h",
}

# Module that Horovod's setup.py or runtime imports -> its distribution (all in the extra `cpu`).
PYTHON_PACKAGES = {
    "setuptools": "setuptools", "wheel": "wheel", "psutil": "psutil", "cloudpickle": "cloudpickle",
    "yaml": "pyyaml", "packaging": "packaging", "cffi": "cffi",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTarget:
    """What a wheel is built for; environments with equal targets can share a wheel.

    Attributes:
        tensorflow: version of TensorFlow.
        python: cache tag of the Python, such as ``cpython-311``.
        horovod: version of Horovod.
        collectives: ``cpu`` or ``nccl``.
        machine: system and architecture, such as ``linux-x86_64``.

    Raises:
        ValueError: `collectives` is neither ``cpu`` nor ``nccl``.
    """

    tensorflow: str
    python: str
    horovod: str
    collectives: str
    machine: str

    def __post_init__(self) -> None:
        if self.collectives not in ("cpu", "nccl"):
            raise ValueError(f"collectives must be 'cpu' or 'nccl', got {self.collectives!r}")

    @property
    def key(self) -> str:
        """Name of the wheel's folder in the cache.

        >>> BuildTarget(
        ...     tensorflow="2.21.0",
        ...     python="cpython-311",
        ...     horovod="0.28.1",
        ...     collectives="cpu",
        ...     machine="linux-x86_64",
        ... ).key
        'horovod-0.28.1_tensorflow-2.21.0_cpython-311_linux-x86_64_cpu'
        """
        platform = f"{self.python}_{self.machine}_{self.collectives}"
        return f"horovod-{self.horovod}_tensorflow-{self.tensorflow}_{platform}"


def cache_root(environment: Mapping[str, str], home: Path) -> Path:
    """Return the folder of wheels: `$RINGFEED_CACHE`, else `$XDG_CACHE_HOME/ringfeed`, else `~/.cache/ringfeed`.

    >>> cache_root({"XDG_CACHE_HOME": "/var/cache"}, Path("/root")).as_posix()
    '/var/cache/ringfeed'
    """
    if own := environment.get("RINGFEED_CACHE"):
        return Path(own)
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared) / "ringfeed"
    return home / ".cache" / "ringfeed"


def forwarding_headers(include: Path) -> dict[str, str]:
    """Return the headers to add to TensorFlow's, path -> text: those that are not where Horovod looks."""
    moved = {
        old: f'#include "{new}"\n'
        for old, new in MOVED_HEADERS.items()
        if not (include / old).exists() and (include / new).exists()
    }
    if XLA_BUILDER in moved:
        moved[XLA_BUILDER] += GPU_STREAM
    return moved


def build_environment(base: Mapping[str, str], *, scratch: Path, jobs: int, nccl: Nccl | None) -> dict[str, str]:
    """Return the environment of the build: `base`, overridden by what Horovod's setup.py and CMake files read.

    Variables of `base` that would change the wheel (`HOROVOD_*`) are dropped, because the cache's key does not show
    them.

    Args:
        base: environment of this process.
        scratch: folder of the build, with the forwarding headers in `include/` and NCCL's link in `nccl/`.
        jobs: number of parallel compilations.
        nccl: the NCCL to build with, or None.
    """
    kept = {name: value for name, value in base.items() if not name.startswith("HOROVOD_")}
    bin_folders = [str(Path(sys.executable).parent), *filter(None, [base.get("PATH")])]
    include = [str(scratch / "include"), *filter(None, [base.get("CPLUS_INCLUDE_PATH")])]
    return {
        **kept,
        "PATH": os.pathsep.join(bin_folders),
        "CPLUS_INCLUDE_PATH": os.pathsep.join(include),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{jobs}",
        **(nccl.environment(scratch / "nccl") if nccl else {}),
    }


def missing_system_packages(has: Callable[[str], bool]) -> list[str]:
    """Return the Debian packages whose sign (see `SYSTEM_PACKAGES`) `has` does not find.

    >>> missing_system_packages(lambda sign: sign != "cmake")
    ['cmake']
    """
    return [package for package, sign in SYSTEM_PACKAGES.items() if not has(sign)]
