"""``make site``: links lead somewhere, no other host is needed, the search finds. Notebooks."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from bftrainer.batch import process
from tests.support.browser import complaints, driver
from tests.support.left_over import nothing_left
from tests.support.machine import ROOT
from tests.support.waiting import wait_for

__all__ = ["driver"]

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
BIN = Path(sys.prefix) / "bin"
PATHS = ("Learn", "Do", "Look up", "Understand")


def made(out: Path) -> Path:
    if not (BIN / "mkdocs").exists():
        pytest.skip("MkDocs is not installed (extra site)")
    argv = ("make", "-C", str(ROOT), "site", f"SITE_VENV={sys.prefix}", f"SITE_DIR={out}")
    done = process.run(argv, timeout_s=300)
    assert done.is_ok, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("site"))


class Read(HTMLParser):
    """A page's anchors, its links, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loads = set[str](), list[str](), list[str]()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.links += [found["href"]] if "href" in found else []
        self.loads += [found[name] for name in ("src", "srcset", "data") if name in found]
        self.loads += [found["href"]] if tag == "link" and "href" in found else []


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    return {page: Read(page) for page in site.rglob("*.html")}


def test_readme_leads_to_every_page() -> None:
    """The navigation is README's: without a link there the site's strict build fails."""
    told = (ROOT / "README.md").read_text().partition("\n## Where next\n")[2]
    links = re.findall(r"\]\(([^)#\s]+)", told)
    folders = tuple(
        re.sub("README.md$", "", one) for one in links if re.search("(/|README.md)$", one)
    )
    assert "docs/policies/" in folders
    pages = [str(one.relative_to(ROOT)) for one in sorted((ROOT / "docs").rglob("*.md"))]
    assert not [one for one in pages if one not in links and not one.startswith(folders)]
    assert "packaging/README.md" in links


@pytest.mark.long
def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Read]) -> None:
    def is_dead(page: Path, link: str) -> bool:
        url = urlsplit(link)
        if url.scheme or url.netloc:
            return False
        to = (page.parent / unquote(url.path)).resolve() if url.path else page
        if not (to.is_relative_to(site) and to.is_file()):
            return True
        return bool(url.fragment) and unquote(url.fragment) not in pages[to].anchors

    links = [(page, link) for page, read in pages.items() for link in (*read.links, *read.loads)]
    assert len(links) > 1000
    assert {(str(page), link) for page, link in links if is_dead(page, link)} == set()


@pytest.mark.long
def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    expected = {str(p.with_suffix(".html")).replace("README", "index") for p in documents}
    expected |= {f"notebooks/{path.stem}.html" for path in NOTEBOOKS}
    assert expected | {"index.html", "examples.html", "architecture.html"} <= pages
    first = " ".join((site / "index.html").read_text(encoding="utf-8").split())
    assert [path for path in PATHS if f"> {path} <" not in first] == []
    assert "<img" in first
    shown = (site / "examples.html").read_text(encoding="utf-8")
    assert all(p.name in shown for p in (ROOT / "trainers/examples").glob("[!_]*.py"))


@pytest.mark.long
def test_no_markdown_is_left(site: Path) -> None:
    """Lists need an empty line before, what belongs to an item four spaces: others need less."""
    code = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
    left = re.compile(r"^\s*(?:\d+\. |\* |\| )|\*\*|```|&lt;!--|wzxhzdk", re.MULTILINE)
    texts = {p: p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    bodies = {
        p: text.partition("<article")[2].partition("</article")[0] for p, text in texts.items()
    }
    assert all(bodies.values())
    assert [str(p) for p, body in bodies.items() if left.search(code.sub("", body))] == []


@pytest.mark.long
def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Read]) -> None:
    loaded = {url for read in pages.values() for url in read.loads}
    for style in site.rglob("*.css"):
        loaded |= set(re.findall(r"(?:@import|url\()\s*[\"']?([^\"')]+)", style.read_text()))
    assert loaded
    assert {url for url in loaded if urlsplit(url).netloc} == set()
    # The theme's script would load what draws such diagrams.
    assert not [page for page in pages if 'class="mermaid"' in page.read_text()]


@pytest.fixture(params=["file", "http"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    if request.param == "file":
        yield site.as_uri()
        return
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.long
def test_the_search_finds(driver: Any, address: str) -> None:
    driver.get(f"{address}/index.html")
    field = driver.find_element("css selector", ".md-search__input")
    wait_for(field.is_displayed, timeout_s=60)
    field.send_keys("preemption")
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    wait_for(lambda: driver.execute_script(found), timeout_s=60)
    links = driver.execute_script(found)
    assert all(link.startswith(address) for link in links)
    driver.get(links[0])
    loaded = "return performance.getEntriesByType('resource').map(one => one.name)"
    assert [u for u in driver.execute_script(loaded) if not u.startswith(address)] == []
    assert complaints(driver) == []


@pytest.mark.long
def test_built_again_it_is_the_same(site: Path, tmp_path: Path) -> None:
    def contents(of: Path) -> dict[str, bytes]:
        return {str(p.relative_to(of)): p.read_bytes() for p in of.rglob("*") if p.is_file()}

    assert contents(made(tmp_path / "again")) == contents(site)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path: Path) -> None:
    if not (BIN / "jupyter-execute").exists():
        pytest.skip("nbclient is not installed (extra notebooks)")
    with nothing_left("bft-no-such-*") as scratch:
        here = scratch / path.name
        here.write_bytes(path.read_bytes())
        env = {
            **os.environ,
            **dict.fromkeys(("HOME", "TMPDIR"), str(scratch)),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        argv = (str(BIN / "jupyter-execute"), "--inplace", str(here))
        done = process.run(argv, timeout_s=300, env=env, cwd=scratch)
        assert done.is_ok, done.stdout + done.stderr
        cells = [c for c in json.loads(here.read_text())["cells"] if c["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in cells)
        drawn = [
            out for cell in cells for out in cell["outputs"] if "image/png" in out.get("data", ())
        ]
        assert drawn
