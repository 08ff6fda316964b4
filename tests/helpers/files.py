"""Files of a folder."""

from pathlib import Path


def all_files(folder: Path | str) -> list[Path]:
    """The files of a folder and below, in the order of their paths."""
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def contents(folder: Path | str) -> dict[str, bytes]:
    """The contents of the files of a folder and below, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in all_files(folder)}
