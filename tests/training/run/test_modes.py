"""Every way of keeping ranks in step, on two and three ranks: as computed in NumPy, and the same bits after stops.

Shares of a batch are uneven; clients have 9, 90 and 33 records and padded last batches; the network has batch
normalisation; epochs have evaluations; weights have a moving average.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism  # there is no public name for it

from .modes import COMPRESSED, STOPS, SYNC, Simulation, batches_of, make_dataset, run

SHORT = [(2, mode) for mode in ("batch_norm", "averaged state", "diloco", "fedavg", "clients")]
SHORT += [(3, mode) for mode in ("every_step", "gossip", "clients")]
ALL = [(ranks, mode) for ranks in (2, 3) for mode in [*SYNC, *COMPRESSED]]
CASES = [pytest.param(*case, marks=[] if case in SHORT else pytest.mark.campaign) for case in ALL]


@pytest.fixture(scope="module", autouse=True)
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("modes")
    make_dataset(folder)
    tf.config.experimental.enable_op_determinism()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    disable_op_determinism()


@pytest.mark.parametrize(("ranks", "mode"), CASES)
def test_a_run_does_what_its_method_says_and_a_stop_leaves_no_trace(ranks: int, mode: str) -> None:
    found = run(mode, ranks, "")
    if mode in SYNC:
        expected = Simulation(mode, ranks).train(batches_of(mode, ranks))
        assert found.keys() - {"digest", "step"} == expected.keys()
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], atol=2e-6, err_msg=name)
    resumed = run(mode, ranks, f"{mode}-{ranks}".replace(" ", "-"), STOPS)
    assert resumed["step"] == found["step"]
    assert resumed["digest"] == found["digest"]
