"""What `gpu.py` trains on: batches of ringfeed, of a `DataLoader` over the same arrays, and one on the device.

Images are uint8 [batch, size, size, 3], labels int64 [batch].
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import torch
from images import noise_photo
from torch.utils.data import DataLoader, Dataset

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build

Batch = tuple[torch.Tensor, torch.Tensor]

CLASSES = 1000
_SHARD_BYTES = 64 << 20
_ENDLESS = 1 << 40
_PHOTOS = 24  # made of noise of several scales; the images are crops of them, and the labels say of which


class Arrays(Dataset[tuple[torch.Tensor, int]]):
    """Images and labels, memory-mapped, for the workers of a `DataLoader`."""

    def __init__(self, folder: Path) -> None:
        self.images = np.load(folder / "image.npy", mmap_mode="r")
        self.labels = np.load(folder / "label.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.array(self.images[row])), int(self.labels[row])


def write_arrays(folder: Path, images: int, size: int) -> None:
    """Crops of generated photos as ``image.npy``, uint8 [images, size, size, 3], and ``label.npy``, int64 [images]."""
    random = np.random.default_rng(0)
    photos = [noise_photo(random, 420, 560) for _ in range(_PHOTOS)]
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.arange(images) % _PHOTOS
    corners = np.stack([random.integers(0, side - size + 1, images) for side in photos[0].shape[:2]], axis=1)
    pixels = np.lib.format.open_memmap(folder / "image.npy", "w+", np.uint8, (images, size, size, 3))
    for row, (label, (top, left)) in enumerate(zip(labels, corners, strict=True)):
        pixels[row] = photos[label][top : top + size, left : left + size]
    pixels.flush()
    np.save(folder / "label.npy", labels)


def prepared(root: Path, images: int, size: int) -> tuple[Path, str]:
    """The folder of the arrays and the dataset made of them, which are taken from `root` if they are there."""
    arrays, url = root / f"{images}x{size}" / "arrays", root / f"{images}x{size}" / "shards"
    if not (url / "_ringfeed" / "dataset.json").exists():
        write_arrays(arrays, images, size)
        options = {"label": "label", "shard_bytes": _SHARD_BYTES, "overwrite": True}
        build(BuildOptions(source=str(arrays), destination=str(url), **options))
    return arrays, str(url)


def ringfeed_batches(loader: Loader) -> Iterator[Batch]:
    """Batches of epoch after epoch, in pageable memory."""
    for batch in loader.numpy_epoch(0, epochs=_ENDLESS):
        yield torch.from_numpy(batch["image"]), torch.from_numpy(batch["label"])


def rival_batches(arrays: Path, batch_size: int, workers: int, *, pin_memory: bool) -> Iterator[Batch]:
    """The same of a `DataLoader`, shuffled; `pin_memory` to have a thread of its own pin them."""
    loader = DataLoader(
        Arrays(arrays),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """Batches on the device; while one is worked on, the next is copied on a stream of its own, from pinned memory."""
    if device.type != "cuda":
        yield from batches
        return
    side, waiting = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(side):
            parts = [(part if part.is_pinned() else part.pin_memory()).to(device, non_blocking=True) for part in batch]
            coming = parts, side.record_event()
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = coming


def _arrived(parts: list[torch.Tensor], copied: torch.cuda.Event) -> Batch:
    compute = torch.cuda.current_stream()
    compute.wait_event(copied)
    for part in parts:
        part.record_stream(compute)  # so that its memory is not used again before the step is done
    return parts[0], parts[1]


def repeated(batch_size: int, size: int, device: torch.device) -> Generator[Batch, None, None]:
    """One random batch, which stays on the device."""
    images = torch.randint(0, 256, (batch_size, size, size, 3), dtype=torch.uint8, device=device)
    labels = torch.randint(0, CLASSES, (batch_size,), device=device)
    while True:
        yield images, labels
