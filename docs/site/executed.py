"""The notebooks as pages: with the outputs of `make notebooks` or, where it has not run, their texts and code alone."""

from pathlib import Path

from nbconvert import MarkdownExporter

_ROOT = Path(__file__).resolve().parents[2]


def notebook_names() -> dict[str, str]:
    """The name of the page of each notebook, by the notebook's path in the repository."""
    return {f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in (_ROOT / "notebooks").glob("*.ipynb")}


def notebook_pages() -> dict[str, str | bytes]:
    """The pages and their plots, by their names."""
    files: dict[str, str | bytes] = {}
    for source, name in sorted(notebook_names().items()):
        executed = _ROOT / "build" / source
        resources = {"output_files_dir": Path(source).stem}
        text, results = MarkdownExporter().from_filename(
            str(executed if executed.exists() else _ROOT / source), resources
        )
        files[name] = text
        files |= {f"notebooks/{plot}": content for plot, content in results["outputs"].items()}
    return files
