"""`llms.txt`, the map of the site for language models (llmstxt.org), and the pages as one text, `llms-full.txt`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mkdocs.structure.pages import Page

_LEFT_OUT = ("changelog.md", "contributing.md")  # of the full text


def llms_files(name: str, summary: str, nav: list[Any], pages: Mapping[str, Page]) -> dict[str, str]:
    """The two files, and the Markdown of each page, which the first leads to."""
    lines = [f"# {name}", f"> {summary}"]
    order = [*entries(nav, "")]
    for section in dict.fromkeys(section for section, _, _ in order):
        rows = [
            f"- [{title}]({path}): {first_sentence(text_of(pages[path]))}" for at, title, path in order if at == section
        ]
        lines += [f"## {section}", "\n".join(rows)]
    texts = [text_of(pages[path]) for _, _, path in order if path not in _LEFT_OUT]
    markdown = {path: text_of(page) for path, page in pages.items()}
    return {"llms.txt": "\n\n".join(lines) + "\n", "llms-full.txt": "\n\n".join(texts) + "\n", **markdown}


def entries(nav: list[Any], section: str) -> Iterator[tuple[str, str, str]]:
    """Section, title and path of each page in the navigation."""
    for item in nav:
        if isinstance(item, str):
            yield section, section, item
            continue
        for title, below in item.items():
            if isinstance(below, str):
                yield section or title, title, below
            else:
                yield from entries(below, section or title)


def text_of(page: Page) -> str:
    return (page.markdown or "").strip()


def first_sentence(text: str) -> str:
    """The first sentence of a page that is no heading, picture, list or code."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = [part for part in re.split(r"\n\s*\n", plain) if re.match(r"[\w`*\[\"]", part)]
    words = " ".join(paragraphs[0].split()) if paragraphs else ""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=[.:?]) (?=[A-Z`])", words)[0]).rstrip(":")
