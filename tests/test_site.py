"""The documentation site, as `make docs` builds it: no warning, each page in the navigation, no other host asked."""

import ast
import html
import json
import re
import shutil
import subprocess
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
    assert pages | {"index.html", "changelog.html", "contributing.html"} <= built


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.glob("assets/stylesheets/*.css")]:
        text = path.read_text()
        assert LOADED.findall(text) + re.findall(r"url\([\"']?((?:https?:)?//[^)]+)", text) == [], path.name


def test_links_out_of_the_docs_lead_to_files_of_the_site(site: Path) -> None:
    links = re.findall(r'href="([^"#:]*examples/[^"#]+)"', (site / "demo.html").read_text())
    assert links
    assert all((site / link).is_file() for link in links)


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    programs = {"shard-dataset": SUBCOMMANDS.split("|"), "ringfeed": COMMANDS}
    for program, commands in programs.items():
        page = (site / f"reference/{program}.html").read_text()
        assert [command for command in commands if f'id="{command}"' not in page] == []
    assert "<code>--print-schema</code>" in page


def test_the_reference_has_every_key_of_the_configuration(site: Path) -> None:
    page = (site / "reference/configuration.html").read_text()
    assert [key for key, _ in all_keys() if f"<code>{key}</code>" not in page] == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    pages = {path.stem: path.read_text() for path in site.glob("reference/api/*.html")}
    assert {"sharding", "pipeline", "training", "training.keras", "tools.tune"} < set(pages)
    for package, page in pages.items():
        names = exported(package)
        assert names, package
        assert [name for name in names if f'id="ringfeed.{package}.{name}"' not in page] == []


def test_the_index_of_messages_has_those_that_commands_print(site: Path) -> None:
    """With the remedy beside each; the messages were printed by commands, with … for what differs."""
    text = html.unescape(re.sub(r"</td>\s*<td>", "; ", (site / "reference/errors.html").read_text()))
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
        "learning rate": "reference/configuration.html#schedule",
        "a record appeared that the first pass did not see": "reference/errors.html",
    }
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    program = SEARCH.replace("QUERIES", json.dumps(list(wanted)))
    files = [worker, site / "site/search.js", site / "search/search_index.json"]
    done = subprocess.run(["node", "-e", program, *map(str, files)], capture_output=True, text=True, check=True)
    for (query, page), found in zip(wanted.items(), json.loads(done.stdout), strict=True):
        assert page in [location.partition("?")[0] for location in found[:8]], (query, found[:8])


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
