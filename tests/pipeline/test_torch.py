"""`TorchDataset`, in a process of its own that has PyTorch: its tests are in tests/helpers/torch_checks.py."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.torch import TorchDataset
from ringfeed.sharding import ConfigError
from tests.servers.pytorch import run_with_pytorch

ROOT = Path(__file__).parents[2]


def test_batches_are_the_loaders_under_all_workers() -> None:
    run_with_pytorch(ROOT / "tests" / "helpers" / "torch_checks.py", ROOT)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_it_says_how_to_install_it(make_dataset: object) -> None:
    loader = Loader(make_dataset(100), batch_size=10)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="needs PyTorch; install it with: pip install torch"):
        TorchDataset(loader)
