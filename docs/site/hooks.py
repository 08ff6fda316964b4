"""Hooks of MkDocs: pages from the repository's root join those of docs/, and links out of docs/ work on the site."""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from api import api_pages
from commands import command_pages
from configuration import configuration_pages
from executed import notebook_names, notebook_pages
from jinja2 import Environment
from llms import llms_files
from messages import error_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages of the root, and their names on the site.
AT_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
PAGES = AT_ROOT | notebook_names()
# How much sooner a search finds a page: an option before a method of its name.
BOOSTS = {"reference/api/": 0.1, "reference/errors": 0.5, "changelog": 0.2, "reference/": 3}
LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?://|mailto:|#)([^)\s#]+)")
ATTRIBUTE = re.compile(r"""(<[^>]*?\b(?:src|srcset|href)=["'])(?!https?://|mailto:|#)([^"'#]+)""")
PAGE_NAME = re.compile(r"[\w/.-]+\.md")
CODE = re.compile(r"<code>[^<]*</code>")
FLAG = re.compile(r"(?<![^\s>])--\w[\w-]*")
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, the references, and the files that pages link to."""
    for source, name in AT_ROOT.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for name, text in {
        **command_pages(),
        **configuration_pages(),
        **api_pages(),
        **error_pages(),
        **notebook_pages(),
    }.items():
        files.append(File.generated(config, name, content=text))
    texts = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    linked = {target for name, text in texts for target in targets(name, text) if is_copied(target)}
    for target in sorted(linked):
        files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    config.nav = written(config.nav or [], {file.src_uri for file in files})
    return files


def written(nav: list[Any], pages: set[str]) -> list[Any]:
    """The navigation without pages that are still to be written, and with the classes below their package.

    MkDocs warns of a page that the navigation lacks.
    """
    kept = []
    for item in nav:
        ((name, below),) = item.items()
        if isinstance(below, list):
            below = written(below, pages)
        elif below not in pages:
            below = None
        elif below.startswith("reference/api/"):
            start = below.removesuffix("md")
            classes = sorted(page for page in pages if re.fullmatch(re.escape(start) + r"[A-Z]\w*\.md", page))
            below = [{"Overview": below}, *({page[len(start) : -len(".md")]: page} for page in classes)]
        kept += [{name: below}] if below else []
    return kept


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the repository into links between files of the site."""
    name = page.file.src_uri
    if name == "index.md":
        markdown = first_screen(markdown)
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if name.startswith(start)), 1)}
    titles = {file.src_uri: title(file) for file in files.documentation_pages()}
    here = PurePosixPath(name).parent.as_posix()

    def on_site(link: re.Match[str]) -> str:
        leads_to = place(target(name, link[2]))
        text = titles.get(leads_to, link[1]) if PAGE_NAME.fullmatch(link[1]) else link[1]
        return f"[{text}]({posixpath.relpath(leads_to, here)}"

    def in_html(link: re.Match[str]) -> str:
        leads_to = posixpath.relpath(place(target(name, link[2])), here)
        return link[1] + re.sub(r"\.md$", ".html", leads_to)

    parts = FENCED.split(markdown)
    for number, part in enumerate(parts):
        if not part.startswith("```"):
            parts[number] = ATTRIBUTE.sub(in_html, LINK.sub(on_site, part))
    return "".join(parts)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keeps flags whole at the ends of lines, where browsers would break `--` off."""
    if page.file.src_uri == "reference/errors.md":  # whose texts are no code
        return FLAG.sub(r'<span class="flag">\g<0></span>', html)
    return CODE.sub(lambda code: FLAG.sub(r'<span class="flag">\g<0></span>', code[0]), html)


def on_env(env: Environment, *, config: MkDocsConfig, files: Files) -> None:
    """Adds the site as Markdown, and the files that lead language models through it."""
    pages = {file.src_uri: file.page for file in files.documentation_pages() if file.page}
    texts = llms_files(config.site_name, config.site_description or "", config.nav or [], pages)
    for name, text in texts.items():
        path = Path(config.site_dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@event_priority(-100)  # after the search has written its index
def on_post_build(*, config: MkDocsConfig) -> None:
    """Writes the index of the search as a script, too: a page on a disk may load no other file."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")


def title(page: File) -> str:
    """The heading of a page."""
    return re.search(r"^# (.*)", page.content_string, re.MULTILINE)[1]


def first_screen(readme: str) -> str:
    """The README without its list of pages, which the navigation of the site replaces."""
    return readme.partition("\n## More\n")[0] + "\n"


def source(name: str) -> str:
    """Where the page ``name`` of the site is in the repository."""
    root = {page: file for file, page in PAGES.items()}
    return root.get(name, f"docs/{name}")


def target(name: str, link: str) -> str:
    """What a link on the page ``name`` leads to, as a path in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source(name)), link))


def targets(name: str, text: str) -> set[str]:
    """All files that a page links to, as paths in the repository."""
    plain = FENCED.sub("", text)
    return {target(name, link) for _, link in LINK.findall(plain) + ATTRIBUTE.findall(plain)}


def is_copied(path: str) -> bool:
    """Whether a file that a page links to is copied to the site: one of the repository, outside docs/, and no page."""
    return not path.startswith(("docs/", "../")) and not path.endswith((".md", ".ipynb")) and (ROOT / path).is_file()


def place(path: str) -> str:
    """Where a file of the repository is on the site."""
    return PAGES.get(path, path.removeprefix("docs/"))
