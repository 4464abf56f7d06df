"""What MkDocs is told beside mkdocs.yml: pages from outside docs/, the navigation, and the gallery.

README.md is the index and its table of pages the navigation. Files outside docs/ that pages link to are copied to the
same path from the root of the repository.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GALLERY = ROOT / "out" / "gallery"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation((ROOT / "README.md").read_text(encoding="utf-8"))
    return config


def navigation(readme: str) -> list[dict[str, Any]]:
    """Kinds of pages with their pages, as the README's section Documentation has them in a table."""
    rows = re.findall(r"^\| \*\*([a-z-]+)\*\* \| (.+) \|$", readme, re.MULTILINE)
    pages = [(kind.capitalize(), re.findall(r"\[([^]]+)]\(docs/([^)]+)\)", links)) for kind, links in rows]
    kinds: list[dict[str, Any]] = [{kind: [{title: path} for title, path in links]} for kind, links in pages]
    return [{"Overview": "index.md"}, {"Gallery": "gallery.md"}, *kinds, {"Contribute": "CONTRIBUTING.md"}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name, source in (("index.md", "README.md"), ("CONTRIBUTING.md", "CONTRIBUTING.md")):
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted(outside()):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for name in ("iframe-worker.js", "tables.css"):
        files.append(File.generated(config, name, abs_src_path=str(Path(__file__).with_name(name))))
    files.append(File.generated(config, "gallery.md", content=gallery()))
    for path in sorted(GALLERY.glob("*/*.*")):
        if path.name in ("report.html", "report.jpg"):
            name = f"gallery/{path.parent.name}{path.suffix}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def outside() -> set[Path]:
    """Files outside docs/ that a page links to and that are no page themselves."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    targets = {(page.parent / link).resolve() for page in pages for link in LINK.findall(page.read_text("utf-8"))}
    return {path for path in targets if path.is_file() and DOCS not in path.parents and path.suffix != ".md"}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return markdown if page.file.src_uri == "gallery.md" else links_on_site(markdown, page.file.src_uri)


def links_on_site(markdown: str, page: str) -> str:
    """The page with its links as seen from the site, whose root holds what is in docs/, and the rest of the repository
    beside that. `page`: its path from the root of the site."""
    folder = "" if page in ("index.md", "CONTRIBUTING.md") else posixpath.join("docs", posixpath.dirname(page))

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        target = "index.md" if target == "README.md" else target.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    return LINK.sub(on_site, markdown)


def gallery() -> str:
    """The page of the drives: for each a screenshot, what it shows, and the command that made it."""
    listed = GALLERY / "gallery.json"
    if not listed.exists():
        return "# Gallery\n\nNo drives are here: `make gallery` makes them.\n"
    drives = json.loads(listed.read_text(encoding="utf-8"))
    lines = ["# Gallery", "", "Each image opens a drive: press play. Made by `make gallery`.", ""]
    for drive in drives:
        name, title = drive["name"], drive["title"]
        image = f"![{title}](gallery/{name}.jpg)" if (GALLERY / name / "report.jpg").exists() else title
        lines += [f"## {title}", "", f"[{image}](gallery/{name}.html#plan={drive['plan']})", ""]
        lines += [drive["text"], "", f"    {drive['command']}", ""]
    return "\n".join(lines)
