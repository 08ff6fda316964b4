"""The CUDA toolkit and NCCL of this machine, and the settings with which Horovod's build uses them.

Tested in tests/tools/environment/test_horovod_build.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NCCL_HINT = (
    "a CUDA build of TensorFlow (pip install 'ringfeed[gpu]'), a CUDA toolkit (nvcc on PATH, or CUDA_HOME) "
    "and NCCL with its headers (Debian: libnccl-dev; PyPI: nvidia-nccl-cu12; or NCCL_HOME)"
)

PYPI_RUN_PATH = "$ORIGIN/../../nvidia/nccl/lib"  # from horovod/tensorflow/mpi_lib.*.so
LIBRARIES = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """A CUDA toolkit and an NCCL to build with.

    Attributes:
        cuda_home: folder of the toolkit.
        include: folder of `nccl.h`.
        library: NCCL's shared object.
        run_path: folder in which the dynamic loader finds the library; relative to Horovod's own library for PyPI's
            NCCL, because the wheel serves other environments too.
    """

    cuda_home: Path
    include: Path
    library: Path
    run_path: str

    def environment(self, link_folder: Path) -> dict[str, str]:
        """Return the variables of Horovod's build; `prepare` must have filled `link_folder`."""
        return {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_HOME": str(self.cuda_home),
            "HOROVOD_NCCL_INCLUDE": str(self.include),
            "HOROVOD_NCCL_LIB": str(link_folder),
            "HOROVOD_NCCL_LINK": "SHARED",
            "LDFLAGS": f"-Wl,-rpath,{self.run_path}",
        }

    def prepare(self, link_folder: Path) -> None:
        """Link `libnccl.so` into `link_folder`: the linker looks for that name, while PyPI's is `libnccl.so.2`."""
        link_folder.mkdir(parents=True, exist_ok=True)
        (link_folder / "libnccl.so").symlink_to(self.library)


def find_nccl(environment: Mapping[str, str], site_packages: Path, system: Path = Path("/usr")) -> Nccl | None:
    """Find the CUDA toolkit and NCCL of this machine; None if either is missing.

    `CUDA_HOME` and `NCCL_HOME` come first, then `nvcc` on the PATH, `/usr/local/cuda`, Debian's and PyPI's.
    """
    nvcc = shutil.which("nvcc", path=environment.get("PATH", ""))
    cuda_homes = [
        *(Path(environment[name]) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME") if environment.get(name)),
        *([Path(nvcc).resolve().parent.parent] if nvcc else []),
        system / "local/cuda",
    ]
    parts = ("bin/nvcc", "include/cuda_runtime.h")
    cuda_home = next((home for home in cuda_homes if all((home / part).exists() for part in parts)), None)
    if cuda_home is None:
        return None
    own = [Path(environment["NCCL_HOME"])] if environment.get("NCCL_HOME") else []
    for home in (*own, cuda_home, system, system / "local", site_packages / "nvidia/nccl"):
        libraries = sorted(path for folder in LIBRARIES for path in (home / folder).glob("libnccl.so*"))
        if libraries and (home / "include/nccl.h").exists():
            library = libraries[0].resolve()
            run_path = PYPI_RUN_PATH if site_packages in home.parents else str(library.parent)
            return Nccl(cuda_home=cuda_home, include=home / "include", library=library, run_path=run_path)
    return None
