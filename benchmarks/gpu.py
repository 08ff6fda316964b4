"""ResNet-50 in PyTorch, fed by `Loader.numpy_epoch`, against the same steps on a batch that stays on the device.

Needs PyTorch and a CUDA device, no TensorFlow. The images are uint8 arrays [size, size, 3], generated and sharded here:
no step decodes or augments, on any side. A `DataLoader` with worker processes reads the same arrays. The three take
turns, with the same network and optimizer, the same copy to the device, ahead of the step, and the same normalisation
on the device.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from parts.gpu_feeds import CLASSES, Batch, copied_ahead, prepared, repeated, ringfeed_batches, rival_batches
from parts.resnet import resnet
from torch.nn import functional

from ringfeed.pipeline import Loader

STAGES = {"resnet50": (3, 4, 6, 3), "tiny": (1, 1)}
_COPY_THREADS = 4  # to pinned memory; in fp16 one is late for 12 steps in 100, and 16 spin on 4 cores (2026-11-26)
_STEPS_AHEAD = 2  # that are queued on the device while the host prepares the next
_MEAN, _STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)  # of ImageNet's pixels, by channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is trained, and how.

    Attributes:
        device: `cuda` or `cpu`.
        model: a key of `STAGES`.
        precision: `bf16` or `fp16`.
        size: height and width of the images, at most 420.
        images: number of images to generate.
        batch: images in a batch.
        steps: counted steps a round.
        warmup: steps before them.
        rounds: number of rounds.
        workers: worker processes of the `DataLoader`.
    """

    device: str = "cuda"
    model: str = "resnet50"
    precision: str = "bf16"
    size: int = 224
    images: int = 20_000
    batch: int = 256
    steps: int = 100
    warmup: int = 20
    rounds: int = 3
    workers: int = min(12, os.cpu_count() or 1)


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

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(0)
        self.device = torch.device(settings.device)
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]
        model = resnet(STAGES[settings.model], classes=CLASSES)
        self.model = model.to(self.device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-5, fused=True)
        self.scaler = torch.amp.GradScaler(settings.device, enabled=settings.precision == "fp16")
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


def measure(trainer: Trainer, batches: Generator[Batch, None, None], settings: Settings) -> Run:
    """Train on batches; the first steps are not counted. On a CUDA device, its own clock counts."""
    begin, begin_cpu = time.perf_counter(), _cpu_seconds()
    ready, ended = [], [_mark(trainer.device)]
    with closing(batches):
        for images, labels in islice(batches, settings.warmup + settings.steps):
            ready.append(_mark(trainer.device))
            loss = trainer.step(images, labels)
            ended.append(_mark(trainer.device))
            if trainer.device.type == "cuda" and len(ended) > _STEPS_AHEAD:
                ended[-1 - _STEPS_AHEAD].synchronize()
        last_loss = float(loss)
        seconds = time.perf_counter() - begin
    waits = [_milliseconds(*pair) for pair in zip(ended, ready, strict=False)][settings.warmup :]
    milliseconds = _milliseconds(ended[settings.warmup], ended[-1]) / settings.steps
    return Run(
        images_per_second=settings.batch / milliseconds * 1e3,
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


def compare(settings: Settings, root: Path) -> dict[str, Any]:
    """Rounds of all three feeds, and the ratios of their rates to that on the batch that stays on the device."""
    start = time.perf_counter()
    arrays, url = prepared(root, settings.images, settings.size)
    prepare_seconds = time.perf_counter() - start
    loader, trainer = Loader(url, batch_size=settings.batch, seed=1), Trainer(settings)
    feeds: dict[str, Callable[[], Generator[Batch, None, None]]] = {
        "synthetic": lambda: repeated(settings.batch, settings.size, trainer.device),
        "ringfeed": lambda: copied_ahead(ringfeed_batches(loader), trainer.device),
        "DataLoader": lambda: copied_ahead(
            rival_batches(arrays, settings.batch, settings.workers, pin_memory=settings.device == "cuda"),
            trainer.device,
        ),
    }
    rounds = [
        {name: measure(trainer, feed(), settings) for name, feed in feeds.items()} for _ in range(settings.rounds)
    ]
    ratios = {
        name: [runs[name].images_per_second / runs["synthetic"].images_per_second for runs in rounds] for name in feeds
    }
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d}",
        "device": torch.cuda.get_device_name() if settings.device == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "parameters": sum(weights.numel() for weights in trainer.model.parameters()),
        **{name: value for name, value in asdict(settings).items() if name not in ("device", "rounds")},
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


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Rates of ringfeed and of a `DataLoader` / the rate of a batch on the device, in both precisions."""
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device here")
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(_COPY_THREADS)
    lines = []
    for precision in ("bf16", "fp16"):
        results = compare(Settings(precision=precision, rounds=rounds), folder)
        print(report(results))
        ratios = results["ratios_to_synthetic"]
        lines += [(f"{name} / synthetic, {precision}", ratios[name], 0.0) for name in ("ringfeed", "DataLoader")]
    return lines
