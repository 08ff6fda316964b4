"""The checkpoints of a run that is under way."""

from contextlib import suppress
from pathlib import Path

__all__ = ["saved_steps"]


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder."""
    with suppress(FileNotFoundError):  # the check whether the folder can be written makes and removes it
        return [int(path.name.split("-")[1]) for path in folder.glob("step-*")]
    return []
