"""Writes the Python reference from the docstrings of public names: a page for each package, and one for each class."""

import ast
import re
from collections.abc import Iterable, Iterator

from names import PACKAGES, Name, public_names, tree_of

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_TITLES = {"Args": "Arguments"}
_ITEM = re.compile(r"^    (?! )(\*{0,2}[\w., *`]+?): +(.*)")
_ALONE = re.compile(r"(?<![`\[])`(\w+)`(?![`\]])")  # a name in code that is no link yet
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_GROUPS = {"class": "Classes", "function": "Functions", "value": "Values", "exception": "Errors"}


def api_pages() -> dict[str, str]:
    """The pages by name: for each package one with its functions and errors, and one for each of its classes."""
    names = {package: public_names(package) for package in PACKAGES}
    places: dict[str, str] = {}
    for package, entries in names.items():
        for entry in entries:
            places.setdefault(entry.name, f"{page_of(package, entry)}#ringfeed.{package}.{entry.name}")
    pages = {}
    for package, entries in names.items():
        classes = [entry for entry in entries if entry.kind == "class"]
        pages[f"{package}.md"] = package_page(package, entries)
        pages |= {page_of(package, entry): class_page(package, entry) for entry in classes}
    rows = table(
        (f"[`ringfeed.{package}`](api/{package}.md)", ast.get_docstring(tree_of(package)) or "") for package in PACKAGES
    )
    head = (
        "# Python\n\nWhat you may import. Every other module is internal, and may move. Examples run in a folder with "
        "a table `flights.parquet` and the dataset `flights`, built of it.\n\n"
    )
    linked_pages = {f"reference/api/{name}": linked(page, name, places) for name, page in pages.items()}
    return {"reference/python.md": f"{head}{rows}\n", **linked_pages}


def page_of(package: str, entry: Name) -> str:
    """The file of the page that describes a name."""
    return f"{package}.{entry.name}.md" if entry.kind == "class" else f"{package}.md"


def package_page(package: str, entries: list[Name]) -> str:
    """The page of a package: an index of its classes, and all else that it exports."""
    parts = [f"# `ringfeed.{package}`", *body(ast.get_docstring(tree_of(package)) or "")]
    for kind, title in _GROUPS.items():
        group = [entry for entry in entries if entry.kind == kind]
        if group:
            parts.append(f"## {title}")
        if group and kind == "class":
            parts.append(table((f"[`{entry.name}`]({page_of(package, entry)})", entry.doc) for entry in group))
            continue
        for entry in group:
            parts += described(f"ringfeed.{package}.{entry.name}", entry, 3)
    return "\n\n".join(parts) + "\n"


def class_page(package: str, entry: Name) -> str:
    """The page of a class."""
    parts = described(f"ringfeed.{package}.{entry.name}", entry, 1)
    return "\n\n".join([next(parts), f"A class of [`ringfeed.{package}`]({package}.md).", *parts]) + "\n"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names, each with the first paragraph of its docstring."""
    lines = [f"| {name} | {escaped(' '.join(doc.partition(chr(10) * 2)[0].split()))} |" for name, doc in rows]
    return "\n".join(["| name | what it is |", "| --- | --- |", *lines])


def described(path: str, entry: Name, level: int) -> Iterator[str]:
    """A name with its signature and docstring, and its members below it."""
    yield f"{'#' * level} `{entry.name}` {{ #{path} }}"
    if entry.kind != "property" or ":" in entry.signature:
        yield f"```python\n{entry.signature}\n```"
    yield from body(entry.doc)
    for member in entry.members:
        if member.name == "__init__":
            yield from body(member.doc)
    for member in entry.members:
        if member.name != "__init__":
            yield from described(f"{path}.{member.name}", member, level + 1)


def body(doc: str) -> Iterator[str]:
    """A docstring as Markdown: its sections as lists, its examples as blocks of code."""
    lines = doc.split("\n")
    while lines:
        section = _SECTION.match(lines[0])
        if section:
            count = next((i for i, line in enumerate(lines[1:], 1) if line and line[0] != " "), len(lines))
            yield f"**{_TITLES.get(section[1], section[1])}**"
            yield from items(lines[1:count])
        else:
            count = next(
                (i for i, line in enumerate(lines[1:], 1) if not line.strip() or _SECTION.match(line)), len(lines)
            )
            yield from paragraph(lines[:count])
        lines = lines[count:]


def paragraph(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).strip("\n")
    if text.lstrip().startswith(">>>"):
        yield f"```pycon\n{text}\n```"
    elif text.startswith("    "):
        yield f"```text\n{text}\n```"
    elif text:
        yield escaped(text)


def items(lines: list[str]) -> Iterator[str]:
    """The items of a section as a list of definitions; a section without items as text."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        item = _ITEM.match(line)
        if item:
            found.append((item[1], [item[2]]))
        elif found:
            found[-1][1].append(line.strip())
        elif line.strip():
            yield escaped(line.strip())
    for name, text in found:
        yield f"`{name.replace('`', '')}`\n:   {escaped(' '.join(' '.join(text).split()))}"


def escaped(text: str) -> str:
    """Text in which only code is marked up."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else re.sub(r"[*<\[\]]", r"\\\g<0>", part) for part in parts)


def linked(page: str, name: str, places: dict[str, str]) -> str:
    """The page ``name`` with links from the public names in its code to the places that describe them."""
    parts = re.split(r"(^```.*?^```|^#.*?$|^`.*?$)", page, flags=re.MULTILINE | re.DOTALL)

    def link(code: re.Match[str]) -> str:
        return f"[{code[0]}]({places[code[1]].removeprefix(name)})" if code[1] in places else code[0]

    return "".join(
        part if part[:1] in ("`", "#") else re.sub(r"(?<![`\[])`(\w+)`(?![`\]])", link, part) for part in parts
    )
