"""Links, anchors, paths and commands of the documentation: all of them exist. The diffs of docs/adding.md apply."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {".ci", ".github", "deploy", "docs", "export", "graph_passes", "plugins", "tests", "tools"}
SUFFIXES = (".py", ".h", ".cpp", ".cu", ".cuh", ".cmake", ".md", ".toml", ".txt")
ELSEWHERE = {
    "docs/OperatorKernels.md",
    "el_attention_optimizer.py",
    "texts.txt",
    "articles.txt",
    "files.txt",
    "in.txt",
    "out.txt",
    "lines.txt",
    "references.txt",
    "text.txt",
    "NAME.txt",
}
"""Files of other projects, and of users."""
MAKE = re.compile(r"^([a-z-]+):.*## ", re.MULTILINE)


def fences(text: str) -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """The text without fenced and indented blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def code(text: str) -> str:
    """Fenced and indented blocks."""
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    return "\n".join([*fences(text), indented])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def diffs(text: str) -> list[str]:
    return [fence for fence in fences(text) if fence.startswith(("--- ", "diff "))]


def made_by_diffs(text: str) -> set[str]:
    """The files that a page's diffs make."""
    return set(re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", "\n".join(diffs(text)), re.MULTILINE))


def named_paths(text: str) -> Iterator[str]:
    """The paths of the repository among a page's words in backticks."""
    for quoted in re.findall(r"`([^`\n]+)`", prose(text)):
        for word in quoted.split():
            word = word.partition("::")[0].rstrip(":,;.")
            is_path = word.partition("/")[0] in FOLDERS if "/" in word else word.endswith(SUFFIXES) and "*" not in word
            if is_path:
                yield word


def is_there(path: str) -> bool:
    """True where the path exists in the repository. A bare file name matches in any folder, ``<x>`` any name."""
    pattern = re.sub(r"<[^>]*>", "*", path).rstrip("/")
    if "/" in pattern:
        return any(ROOT.glob(pattern))
    folders = (ROOT, *(ROOT / folder for folder in FOLDERS))
    return any(next(folder.glob(f"**/{pattern}" if folder != ROOT else pattern), None) for folder in folders)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            wrong.append(target)
    assert not wrong, f"{name_of(page)} links to {', '.join(wrong)}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    known = made_by_diffs(text) | ELSEWHERE
    known |= {Path(path).name for path in known}
    wrong = sorted({path for path in named_paths(text) if path not in known and not is_there(path)})
    assert not wrong, f"{name_of(page)} names {', '.join(wrong)}, which the repository does not have"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    commands = code(text) + "\n" + "\n".join(re.findall(r"`([^`\n]+)`", prose(text)))
    targets = set(MAKE.findall((ROOT / "Makefile").read_text("utf-8")))
    called = re.findall(r"^ *make ([a-z][a-z-]*)", commands, re.MULTILINE)
    wrong = [f"make {target}" for target in called if target not in targets]
    for module in re.findall(r"python -m ((?:tools|tests)[\w.]*)", commands):
        path = ROOT / module.replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            wrong.append(f"python -m {module}")
    made = made_by_diffs(text)
    for script in re.findall(r"(?:python|pytest)(?: -[\w]+)* ((?:deploy|export|tools|tests)/[\w/.]+\.py)", commands):
        if not (ROOT / script).exists() and script not in made:
            wrong.append(script)
    assert not wrong, f"{name_of(page)} runs {', '.join(wrong)}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lists_and_tables_begin_after_an_empty_line(page: Path) -> None:
    """mkdocs takes them for text otherwise, unlike GitHub."""
    lines = prose(page.read_text("utf-8")).splitlines()
    starts = re.compile(r"(- |\d+\. |\|)")
    inside = re.compile(r"(- |\d+\. |\||  |#|$)")
    wrong = [line for above, line in pairwise(lines) if starts.match(line) and not inside.match(above)]
    assert not wrong, f"{name_of(page)}: no empty line above {wrong[0]!r}"


def test_comments_cite_sections_of_the_design() -> None:
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / "design.md").read_text("utf-8"), re.MULTILINE)
    wrong = []
    for folder in ("deploy", "export", "graph_passes", "plugins"):
        for path in [path for suffix in SUFFIXES for path in (ROOT / folder).rglob(f"*{suffix}")]:
            for cited in re.findall(r"docs/design\.md, ([A-Z][\w ]+)", path.read_text("utf-8")):
                if not any(cited.startswith(heading) for heading in headings):
                    wrong.append(f"{name_of(path)}: {cited}")
    assert not wrong, f"docs/design.md has no section of that name: {'; '.join(wrong)}"


ADDING = ROOT / "docs" / "adding.md"


@pytest.mark.parametrize("diff", diffs(ADDING.read_text("utf-8")))
def test_diff_of_adding_applies(diff: str) -> None:
    """Apply one diff to the tree as it is. Where the tree has changed under it, correct the page."""
    done = subprocess.run(
        ["git", "apply", "--check", "-C1", "-"], input=diff, text=True, capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_in_tables_has_no_pipe(page: Path) -> None:
    r"""GitHub ends the cell at the pipe, and mkdocs shows the backslash of ``\|``."""
    rows = [line for line in prose(page.read_text("utf-8")).splitlines() if line.startswith("|")]
    wrong = [row for row in rows if any("\\|" in code for code in row.split("`")[1::2])]
    assert not wrong, f"{name_of(page)}: a pipe in code of the row {wrong[0][:100]!r}"
