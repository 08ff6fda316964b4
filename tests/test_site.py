"""The documentation site, as `make docs` builds it: no warning, each page in the navigation, no other host asked."""

import ast
import colorsys
import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from ringfeed.tools.cli import COMMANDS
from ringfeed.training.config.keys import all_keys
from tests.test_documents import SUBCOMMANDS
from tests.test_packaging import public_names

ROOT = Path(__file__).resolve().parent.parent
LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'> ]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


def test_every_page_of_the_docs_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    notebooks = {f"notebooks/{path.stem}.html" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert pages | notebooks | {"index.html", "changelog.html", "contributing.html"} <= built


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.glob("assets/stylesheets/*.css")]:
        text = path.read_text()
        assert LOADED.findall(text) + re.findall(r"url\([\"']?((?:https?:)?//[^)]+)", text) == [], path.name


def test_every_page_has_a_navigation_beside_it(site: Path) -> None:
    for path in set(site.rglob("*.html")) - {site / "404.html"} - {*site.glob("examples/**/*")}:
        side = path.read_text().partition('<div class="md-sidebar md-sidebar--primary"')[2].partition("md-content")[0]
        assert not side.partition(">")[0].rstrip().endswith("hidden"), path.name
        assert "md-nav__link--active" in side, path.name
        assert side.count("md-nav__item--active") >= 2, f"{path.name}: no section in the navigation of mkdocs.yml"


def test_lists_and_flags_stay_whole(site: Path) -> None:
    """Code below an item of a list would start the numbers anew, and browsers break lines behind hyphens."""
    for path in (ROOT / "docs").rglob("*.md"):
        assert re.findall(r"^ {1,3}```", path.read_text(), re.MULTILINE) == [], path.name
    page = (site / "preparing.html").read_text()
    assert '<code><span class="flag">--schema</span> FILE</code>' in page
    assert "<code>--" not in page
    assert '<td><span class="flag">--drop-columns</span>: this drops' in (site / "reference/errors.html").read_text()
    assert ".flag { white-space: nowrap; }" in (site / "site" / "style.css").read_text()


def test_tables_scroll_in_themselves(site: Path) -> None:
    """As the theme makes all tables without a class do."""
    (theme,) = site.glob("assets/stylesheets/main.*.css")
    assert ".md-typeset table:not([class]){display:inline-block;max-width:100%;overflow:auto" in theme.read_text()
    assert [path.name for path in site.rglob("*.html") if "<table class" in path.read_text()] == []


INKS = {  # by what they are written on
    "default-bg": ("default-fg-color", "default-fg-color--light", "typeset-a-color"),
    "code-bg": (
        *("code-fg-color", "typeset-a-color", "default-fg-color--light"),
        *(f"code-hl-{kind}-color" for kind in ("number", "special", "function", "constant", "keyword", "string")),
    ),
    "primary-fg": ("primary-bg-color",),
}


@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_text_stands_out_from_its_background(site: Path, scheme: str) -> None:
    """By the contrast of WCAG 2.2, section 1.4.3, at least 4.5 to 1."""
    values = custom_properties(site, {("data-md-color-scheme", scheme), ("data-md-color-primary", "indigo")})
    for ground, inks in INKS.items():
        for ink in inks:
            behind = colour(values[f"--md-{ground}-color"], values)[:3]
            *text, opacity = colour(values[f"--md-{ink}"], values)
            mixed = [opacity * one + (1 - opacity) * other for one, other in zip(text, behind, strict=True)]
            darker, lighter = sorted((luminance(mixed), luminance(behind)))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{ink} on {ground}"


def custom_properties(site: Path, wanted: set[tuple[str, str]]) -> dict[str, str]:
    """The values of CSS variables on an element with these attributes: of several, the last of the most specific."""
    found: dict[str, tuple[int, str]] = {}
    sheets = [*site.glob("assets/stylesheets/main.*.css"), *site.glob("assets/stylesheets/palette.*.css")]
    for sheet in [*sheets, site / "site/style.css"]:
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(), flags=re.DOTALL)
        for selectors, rules in re.findall(r"([^{}]+)\{([^{}]*--md-[^{}]*)\}", text):
            for selector in selectors.split(","):
                attributes = re.findall(r"\[([\w-]+)=\"?([\w-]+)\"?\]", selector)
                if re.sub(r"\[[^]]*\]|:root|\s", "", selector) or not {*attributes} <= wanted:
                    continue
                for name, value in re.findall(r"(--md-[\w-]+):\s*([^;]+)", rules):
                    if len(attributes) >= found.get(name, (0, ""))[0]:
                        found[name] = (len(attributes), value)
    return {name: value for name, (_, value) in found.items()}


def colour(value: str, values: dict[str, str]) -> list[float]:
    """Red, green, blue and opacity of a colour of CSS, each from 0 to 1."""
    value = re.sub(r"var\((--[\w-]+)\)", lambda name: values[name[1]], value.strip())
    if value.startswith("var"):
        return colour(value, values)
    if value.startswith("hsla"):
        hue, saturation, lightness, opacity = map(float, re.findall(r"[\d.]+", value))
        return [*colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100), opacity]
    digits = value.strip("#")
    digits = digits if len(digits) > 3 else "".join(2 * digit for digit in digits)
    return [int(digits.ljust(8, "f")[place : place + 2], 16) / 255 for place in range(0, 8, 2)]


def luminance(rgb: Sequence[float]) -> float:
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in rgb]
    return sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_links_out_of_the_docs_lead_to_files_of_the_site(site: Path) -> None:
    links = re.findall(r'href="([^"#:]*examples/[^"#]+)"', (site / "demo.html").read_text())
    assert links
    assert all((site / link).is_file() for link in links)


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    programs = {"shard-dataset": SUBCOMMANDS.split("|"), "ringfeed": COMMANDS}
    for program, commands in programs.items():
        page = (site / f"reference/{program}.html").read_text()
        assert [command for command in commands if f'id="{command}"' not in page] == []
    assert '<code><span class="flag">--print-schema</span></code>' in page


def test_the_reference_has_every_key_of_the_configuration(site: Path) -> None:
    page = (site / "reference/configuration.html").read_text()
    assert [key for key, _ in all_keys() if f"<code>{key}</code>" not in page] == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    """On the page of its package or on its own, to which the package's page leads."""
    pages = {path.stem: path.read_text() for path in site.glob("reference/api/*.html")}
    packages = [page for page in pages if page.rpartition(".")[2].islower()]
    assert {"sharding", "pipeline", "training", "training.keras", "tools.tune"} < set(packages)
    for package in packages:
        names = exported(package)
        assert names, package
        for name in names:
            page = package if f'href="{package}.{name}.html"' not in pages[package] else f"{package}.{name}"
            assert f'id="ringfeed.{package}.{name}"' in pages[page]


def test_the_index_of_messages_has_those_that_commands_print(site: Path) -> None:
    """With the remedy beside each; the messages were printed by commands, with … for what differs."""
    page = re.sub(r'<span class="flag">([^<]*)</span>', r"\1", (site / "reference/errors.html").read_text())
    text = html.unescape(re.sub(r"</td>\s*<td>", "; ", page))
    for message in (
        "the source changed while it was read: a record appeared that the first pass did not see; build again",
        "give --split or --split-column, not both: the column names the splits",
        "data.…: there is no split …; … has ……",
        "there is no run; give --config FILE.yaml, or its keys, such as --set data.url=shards",
    ):
        assert message in text
    assert text.count("<tr>") > 700


SEARCH = """
const [worker, script, index] = process.argv.slice(1).map((path) => require("fs").readFileSync(path, "utf8"));
const { config, docs } = JSON.parse(index);
globalThis.self = globalThis;
globalThis.addEventListener = (_, handler) => { globalThis.handler = handler; };
globalThis.postMessage = ({ type, data }) => {
  if (type === 3) answers.push(data.items.flat().map((one) => one.location));
};
globalThis.Worker = class { postMessage(message) { return globalThis.handler({ data: message }); } };
const answers = [];
eval(script);
eval(worker);
const asks = async () => {
  const sender = new Worker();
  await sender.postMessage({ type: 0, data: { config, docs, options: {} } });
  for (const data of QUERIES) await sender.postMessage({ type: 2, data });
  console.log(JSON.stringify(answers));
};
asks();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="the search of the site is JavaScript, and needs node here")
def test_a_search_for_a_name_finds_its_page(site: Path) -> None:
    wanted = {
        "--resize": "reference/shard-dataset.html#build",
        "--split-by-time": "reference/shard-dataset.html#build",
        "eval_split": "reference/configuration.html#data",
        "ringfeed.pipeline": "reference/api/pipeline.html",
        "CheckpointStore": "reference/api/training.CheckpointStore.html",
        "RandomCrop": "reference/api/pipeline.RandomCrop.html",
        "learning rate": "reference/configuration.html#schedule",
        "a record appeared that the first pass did not see": "reference/errors.html",
    }
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    program = SEARCH.replace("QUERIES", json.dumps(list(wanted)))
    files = [worker, site / "site/search.js", site / "search/search_index.json"]
    done = subprocess.run(["node", "-e", program, *map(str, files)], capture_output=True, text=True, check=True)
    for (query, page), found in zip(wanted.items(), json.loads(done.stdout), strict=True):
        assert page in [location.partition("?")[0] for location in found[:8]], (query, found[:8])


def test_pages_on_a_disk_search_without_a_worker_or_a_request(site: Path) -> None:
    script, index = ((site / "search" / name).read_text() for name in ("search_index.js", "search_index.json"))
    assert script == f"var __index = {index}"
    for path in site.rglob("reference/*.html"):
        assert 0 < path.read_text().find('site/search.js"') < path.read_text().find("javascripts/bundle."), path.name


def test_llms_txt_leads_to_every_page_as_markdown(site: Path) -> None:
    linked = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.md")} == set(linked)
    assert (site / "llms-full.txt").read_text().count("\n# ") >= len(linked) - 3


def test_every_public_name_has_an_example_and_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make lint` runs the examples; those that need ranks or programs that are not installed are marked so."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    names = import_module("names")
    for package in names.PACKAGES:
        for name in names.exports(package):
            module, _, node = names.resolve(package, name)
            entry = names.describe(module, name, node)
            assert entry.doc, f"{package}.{name} has no docstring"
            if entry.kind == "value":
                continue
            assert ">>> " in entry.documented, f"{package}.{name} has no example"
            assert "Raises:" in entry.documented or not raises(node), f"{package}.{name} names no errors"


def raises(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Whether a function, or the construction of an object, raises in its own code."""
    functions = [node]
    if isinstance(node, ast.ClassDef):
        functions = [one for one in node.body if getattr(one, "name", "") in ("__init__", "__post_init__")]
    return any(isinstance(inner, ast.Raise) for function in functions for inner in ast.walk(function))


def exported(package: str) -> set[str]:
    base = ROOT / package.replace(".", "/")
    places = (base / "__init__.pyi", base / "__init__.py", base.with_suffix(".py"))
    return public_names(ast.parse(next(path for path in places if path.exists()).read_text())) or set()
