"""The documentation site, as `make docs` builds it: no warning, each page in the navigation, no other host asked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'> ]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
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
