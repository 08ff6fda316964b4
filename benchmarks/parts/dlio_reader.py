"""One process of DLIO with one data loader, which `dlio.py` runs in DLIO's environment.

    dlio_reader.py OVERRIDE...

The arguments override DLIO's configuration. With `workflow.generate_data` it writes DLIO's files and ends. Otherwise,
it reads the seconds of a step from each line of its input, and makes an epoch of DLIO's own training loop. Then it
prints the accelerator utilisation in percent and the samples a second, as DLIO computes them, the processor time of the
epoch with its workers, and the epoch that the data loader reads next.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import psutil
from dlio_benchmark.common.enumerations import DatasetType
from dlio_benchmark.main import DLIOBenchmark
from dlio_benchmark.utils.utility import DLIOMPI
from hydra import compose, initialize_config_module


def processor_seconds() -> float:
    """Processor time that this process and those that it started have taken so far."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [own, *own.children(recursive=True)])


with os.fdopen(os.dup(1), "w") as replies:
    os.dup2(2, 1)  # whatever else is printed goes to the log
    DLIOMPI.get_instance().initialize()
    with initialize_config_module("dlio_benchmark.configs", version_base=None):
        benchmark = DLIOBenchmark(compose("config", overrides=sys.argv[1:])["workload"])
    benchmark.initialize()
    args, stats, framework = benchmark.args, benchmark.stats, benchmark.framework
    if not args.generate_only:
        # What DLIOBenchmark.run does, with another step in each epoch.
        args.reconfigure(1)
        framework.init_loader(args.format, epoch=1, data_loader=args.data_loader)
        framework.get_loader(DatasetType.TRAIN).read()
        print("{}", file=replies, flush=True)
        for epoch, line in enumerate(sys.stdin, 1):
            benchmark.computation_time = float(line)
            before = processor_seconds()
            stats.start_train(epoch)
            stats.end_train(epoch, benchmark._train(epoch))
            framework.get_loader(DatasetType.TRAIN).finalize()
            reply = {
                "utilisation": float(stats.train_au[-1]), "rate": float(stats.train_throughput[-1]),
                "processor_seconds": processor_seconds() - before,
                "next_epoch": framework.get_loader(DatasetType.TRAIN).epoch_number,
            }  # fmt: skip
            args.reconfigure(epoch + 1)
            gc.collect()
            print(json.dumps(reply), file=replies, flush=True)
