"""Hooks of MkDocs: what the site has beside ``docs/``, its navigation, and its links.

The documents of the top level, the notebooks and the examples become pages; the navigation is
README's "Where next". Links name files of the tree, as on a Git host. Those to pages lead to them;
those to other files, which the site has not, become text; those to nothing end the strict build.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = {
    "README.md": "index.md",
    "packaging/README.md": "packages.md",
    **{f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "SECURITY")},
    "CHANGELOG.md": "changelog.md",
}
LISTED = {"docs/adr": "Decisions", "docs/design": "Mechanisms"}  # folders without a README
_LINK = re.compile(r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?P<to>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)

_uris: dict[str, str] = {}  # of the site, by the path in the tree


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages, and set the navigation."""
    _uris.clear()
    _uris.update({f"docs/{file.src_uri}": file.src_uri for file in files})
    for path, uri, text in _pages():
        files.append(File.generated(config, uri, content=text))
        _uris[path] = uri
    worker = Path(__file__).with_name("iframe-worker.js")
    files.append(File.generated(config, worker.name, abs_src_path=str(worker)))
    config.theme.static_templates.clear()  # they would need to know where the site is served
    config.nav = [{"bftrainer": "index.md"}, *_navigation()]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave out comments, which are for tests, and turn the links."""
    del config, files
    uri = page.file.src_uri
    path = next(path for path, at in _uris.items() if at == uri)

    def turned(link: re.Match[str]) -> str:
        to = posixpath.normpath(posixpath.join(posixpath.dirname(path), link["to"]))
        if not link["to"] or ":" in link["to"]:
            return link[0]
        if to in _uris:
            there = posixpath.relpath(_uris[to], posixpath.dirname(uri) or ".")
            return f"{link['mark']}[{link['text']}]({there}{link['anchor'] or ''})"
        if (ROOT / to).exists():
            return link["text"] if to in link["text"] else f"{link['text']} (`{to}`)"
        return link[0]

    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(turned, _COMMENT.sub("", part)) for part in parts[::2]]
    return "".join(parts)


def _pages() -> Iterator[tuple[str, str, str]]:
    """Yield path in the tree, URI and Markdown of what is not below ``docs/`` as a page."""
    for path, uri in DOCUMENTS.items():
        yield path, uri, (ROOT / path).read_text(encoding="utf-8")
    for path, title in LISTED.items():
        pages = sorted((ROOT / path).glob("*.md"))
        links = [f"* [{_title(page)}]({posixpath.basename(path)}/{page.name})" for page in pages]
        uri = f"{path.removeprefix('docs/')}/index.md"
        yield path, uri, "\n".join((f"# {title}\n", *links))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        yield f"docs/notebooks/{notebook.name}", f"notebooks/{notebook.stem}.md", _cells(notebook)
    yield "trainers/examples", "examples.md", "\n".join(_examples())


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _cells(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shown = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    texts = [f"```python\n{text}\n```" if is_code else text for text, is_code in shown]
    return "\n\n".join((*texts, f'<a href="{notebook.name}" download>This notebook</a>'))


def _examples() -> Iterator[str]:
    yield "# Examples\n"
    for script in sorted((ROOT / "trainers" / "examples").glob("[!_]*.py")):
        source = script.read_text(encoding="utf-8")
        said = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
        yield f"## {script.name}\n\n{said.replace('``', '`')}\n"
        fenced = indent(f"```python\n{source}```", "    ")
        yield f'??? example "The script"\n\n{fenced}\n'


def _navigation() -> Iterator[dict[str, Any]]:
    """Yield a section for each of README's paths; a folder's index brings all of its pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in readme.partition("\n## Where next\n")[2].split("\n* **")[1:]:
        entries: list[Any] = []
        for link in _LINK.finditer(path):
            uri = _uris[link["to"].rstrip("/")]
            folder, name = posixpath.split(uri)
            if name in ("index.md", "README.md"):
                others = {at for at in _uris.values() if at.startswith(f"{folder}/")} - {uri}
                pages = sorted(at for at in others if at.endswith(".md"))
                entries.append({link["text"].capitalize(): [uri, *pages]})
            else:
                entries.append(uri)
        yield {path.partition("**")[0]: entries}
