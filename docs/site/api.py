"""The Python reference: a page for each package, from the docstrings of what it exports."""

import ast
import re
from collections.abc import Iterator

from names import PACKAGES, Name, public_names, tree_of

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_TITLES = {"Args": "Arguments"}
_ITEM = re.compile(r"^    (?! )(\*{0,2}[\w., *`]+?): +(.*)")
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_GROUPS = {"class": "Classes", "function": "Functions", "value": "Values", "exception": "Errors"}


def api_pages() -> dict[str, str]:
    """The pages by name."""
    names = {package: public_names(package) for package in PACKAGES}
    places: dict[str, str] = {}
    for package, entries in names.items():
        for entry in entries:
            places.setdefault(entry.name, f"{package}.md#ringfeed.{package}.{entry.name}")
    pages = {f"reference/api/{package}.md": package_page(package, names[package], places) for package in PACKAGES}
    rows = "\n".join(
        f"| [`ringfeed.{package}`](api/{package}.md) | {summary(ast.get_docstring(tree_of(package)) or '')} |"
        for package in PACKAGES
    )
    head = (
        "# Python\n\nWhat you may import. Every other module is internal, and may move. Examples run in a folder with "
        "a table `flights.parquet` and the dataset `flights`, built of it.\n\n| package | what it is |\n"
    )
    return {"reference/python.md": f"{head}| --- | --- |\n{rows}\n", **pages}


def package_page(package: str, entries: list[Name], places: dict[str, str]) -> str:
    """The page of a package."""
    parts = [f"# `ringfeed.{package}`", *body(ast.get_docstring(tree_of(package)) or "")]
    for kind, title in _GROUPS.items():
        group = [entry for entry in entries if entry.kind == kind]
        if not group:
            continue
        parts.append(f"## {title}")
        for entry in group:
            parts += described(f"ringfeed.{package}.{entry.name}", entry, 3)
    own = {
        name: place.replace(f"{package}.md#", "#") if place.startswith(f"{package}.md#") else place
        for name, place in places.items()
    }
    return linked("\n\n".join(parts), own) + "\n"


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


def summary(doc: str) -> str:
    return escaped(" ".join(doc.partition("\n\n")[0].split()))


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


def linked(page: str, places: dict[str, str]) -> str:
    """A page whose public names in code are links."""
    parts = re.split(r"(^```.*?^```|^#.*?$|^`.*?$)", page, flags=re.MULTILINE | re.DOTALL)

    def link(code: re.Match[str]) -> str:
        return f"[{code[0]}]({places[code[1]]})" if code[1] in places else code[0]

    return "".join(part if part[:1] in ("`", "#") else re.sub(r"(?<!`)`(\w+)`(?!`)", link, part) for part in parts)
