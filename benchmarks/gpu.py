"""ResNet-50 in PyTorch, fed by `Loader.numpy_epoch`, against the same steps on a batch that stays on the device.

python benchmarks/gpu.py                            on a CUDA device, bf16
python benchmarks/gpu.py --precision fp16 --json
python benchmarks/gpu.py --dry-run                  a tiny network on the CPU: whether all of it works

Needs PyTorch and ringfeed, no TensorFlow. The images are uint8 arrays [size, size, 3], generated and sharded here: no
step decodes or augments, on any side. Beside ringfeed runs a `DataLoader` with worker processes over the same arrays.
The three take turns, with the same network and optimizer, the same copy to the device, ahead of the step, and the same
normalisation on the device.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from parts.gpu_feeds import CLASSES, Batch, copied_ahead, prepared, repeated, ringfeed_batches, rival_batches
from parts.resnet import resnet

from ringfeed.pipeline import Loader

STAGES = {"resnet50": (3, 4, 6, 3), "tiny": (1, 1)}
DRY_RUN = {"device": "cpu", "model": "tiny", "size": 32, "images": 128, "batch": 8, "steps": 20, "warmup": 2,
           "rounds": 1, "workers": 1}  # fmt: skip
_COPY_THREADS = 4  # to pinned memory; in fp16 one is late for 12 steps in 100, and 16 spin on 4 cores (2026-11-26)
_STEPS_AHEAD = 2  # that are queued on the device while the host prepares the next
_MEAN, _STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)  # of ImageNet's pixels, by channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What some steps took.

    Attributes:
        images_per_second: rate of the counted steps.
        step_milliseconds: their mean.
        wait_milliseconds: mean time from the end of a step on the device to when it had the input of the next.
        longest_wait_milliseconds: the longest of these.
        waited_steps: counted steps that waited for over 1 ms.
        busy_cores: mean number of cores busy in this process and its workers, their start and the warm-up included.
        loss: of the last step.
    """

    images_per_second: float
    step_milliseconds: float
    wait_milliseconds: float
    longest_wait_milliseconds: float
    waited_steps: int
    busy_cores: float
    loss: float


class Trainer:
    """A network with its optimizer, and one step of training in mixed precision."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device = torch.device(args.device)
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
        model = resnet(STAGES[args.model], classes=CLASSES)
        self.model = model.to(self.device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-5, fused=True)
        self.scaler = torch.amp.GradScaler(args.device, enabled=args.precision == "fp16")
        self.mean, self.std = (
            torch.tensor(values, dtype=self.dtype, device=self.device).view(1, 3, 1, 1) for values in (_MEAN, _STD)
        )

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on a batch on the device; return the loss, there."""
        pixels = (images.permute(0, 3, 1, 2).to(self.dtype) - self.mean) / self.std  # channels_last already
        with torch.autocast(self.device.type, self.dtype):
            loss = functional.cross_entropy(self.model(pixels), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def measure(trainer: Trainer, batches: Generator[Batch, None, None], args: argparse.Namespace) -> Run:
    """Train on batches; the first steps are not counted. On a CUDA device, its own clock counts."""
    begin, begin_cpu = time.perf_counter(), _cpu_seconds()
    ready, ended = [], [_mark(trainer.device)]
    with closing(batches):
        for images, labels in islice(batches, args.warmup + args.steps):
            ready.append(_mark(trainer.device))
            loss = trainer.step(images, labels)
            ended.append(_mark(trainer.device))
            if trainer.device.type == "cuda" and len(ended) > _STEPS_AHEAD:
                ended[-1 - _STEPS_AHEAD].synchronize()
        last_loss = float(loss)
        seconds = time.perf_counter() - begin
    waits = [_milliseconds(*pair) for pair in zip(ended, ready, strict=False)][args.warmup :]
    milliseconds = _milliseconds(ended[args.warmup], ended[-1]) / args.steps
    return Run(
        images_per_second=args.batch / milliseconds * 1e3,
        step_milliseconds=milliseconds,
        wait_milliseconds=statistics.mean(waits),
        longest_wait_milliseconds=max(waits),
        waited_steps=sum(wait > 1 for wait in waits),
        busy_cores=(_cpu_seconds() - begin_cpu) / seconds,
        loss=last_loss,
    )


def _mark(device: torch.device) -> Any:
    """This moment: on a CUDA device, when all that is queued there is done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # the host sleeps in `synchronize`
    event.record()
    return event


def _milliseconds(begin: Any, end: Any) -> float:
    return float(1e3 * (end - begin) if isinstance(begin, float) else begin.elapsed_time(end))


def _cpu_seconds() -> float:
    """Of this process and of its worker processes that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def alone(loader: Loader) -> float:
    """Images per second of an epoch that nobody trains on."""
    start = time.perf_counter()
    images = sum(len(batch["image"]) for batch in loader.numpy_epoch(0))
    return images / (time.perf_counter() - start)


def compare(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Rounds of all three feeds, and the ratios of their rates to that on the batch that stays on the device."""
    start = time.perf_counter()
    arrays, url = prepared(root, args.images, args.size)
    prepare_seconds = time.perf_counter() - start
    loader, trainer = Loader(url, batch_size=args.batch, seed=1), Trainer(args)
    feeds: dict[str, Callable[[], Generator[Batch, None, None]]] = {
        "synthetic": lambda: repeated(args.batch, args.size, trainer.device),
        "ringfeed": lambda: copied_ahead(ringfeed_batches(loader), trainer.device),
        "DataLoader": lambda: copied_ahead(
            rival_batches(arrays, args.batch, args.workers, pin_memory=args.device == "cuda"), trainer.device
        ),
    }
    rounds = [{name: measure(trainer, feed(), args) for name, feed in feeds.items()} for _ in range(args.rounds)]
    ratios = {
        name: [runs[name].images_per_second / runs["synthetic"].images_per_second for runs in rounds] for name in feeds
    }
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d}",
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "parameters": sum(weights.numel() for weights in trainer.model.parameters()),
        **{
            name: value
            for name, value in vars(args).items()
            if name not in ("device", "rounds", "data", "json", "dry_run")
        },
        "prepare_seconds": prepare_seconds,
        "loader_alone_images_per_second": alone(loader),
        "ratios_to_synthetic": ratios,
        "rounds": [{name: asdict(run) for name, run in runs.items()} for runs in rounds],
    }


def report(results: dict[str, Any]) -> str:
    """The results as text: medians over the rounds, the longest wait of all."""
    lines = [
        "{date}, {device}, {cores} cores, PyTorch {torch}: {model} ({parameters:,} parameters), {precision}, batches "
        "of {batch}, {images:,} images of {size} x {size}; rounds of {steps} steps".format(**results),
        f"numpy_epoch alone: {results['loader_alone_images_per_second']:,.0f} images/s",
        f"{'input':<11}{'images/s':>10}{'of synthetic':>24}{'ms a step':>11}{'input wait, ms':>16}{'longest':>9}"
        f"{'steps that waited':>19}{'cores busy':>12}",
    ]
    for name, ratios in results["ratios_to_synthetic"].items():
        runs = [runs[name] for runs in results["rounds"]]
        rate, step, wait, waited, cores = (
            statistics.median(run[key] for run in runs)
            for key in ("images_per_second", "step_milliseconds", "wait_milliseconds", "waited_steps", "busy_cores")
        )
        ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        longest = max(run["longest_wait_milliseconds"] for run in runs)
        lines.append(
            f"{name:<11}{rate:>10,.0f}{ratio:>24}{step:>11.2f}{wait:>16.3f}{longest:>9.2f}{waited:>19}{cores:>12.1f}"
        )
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; --dry-run changes their defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", choices=tuple(STAGES), default="resnet50")
    parser.add_argument("--precision", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--size", type=int, default=224, help="height and width, at most 420 (default: 224)")
    parser.add_argument("--images", type=int, default=20_000, metavar="N", help="images to generate (default: 20,000)")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="images in a batch (default: 256)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="counted steps a round (default: 100)")
    parser.add_argument("--warmup", type=int, default=20, metavar="N", help="steps before them (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1), metavar="N",
                        help="worker processes of DataLoader (default: as many as cores, at most 12)")  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the images there, and take them from there")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--dry-run", action="store_true", help="a tiny network on the CPU, a few steps")
    if parser.parse_args(argv).dry_run:
        parser.set_defaults(**DRY_RUN)
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here; --dry-run tries the rest on the CPU")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(_COPY_THREADS if args.device == "cuda" else 1)
    with tempfile.TemporaryDirectory(prefix="ringfeed-gpu-") as scratch:
        results = compare(args, args.data or Path(scratch))
    print(json.dumps(results, indent=1) if args.json else report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
