"""The fenced blocks of the documentation, and what its commands are made of."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1 *$", re.M | re.S)
_FILE = re.compile(r"# (\w+\.(?:py|toml))\n")


@dataclass(frozen=True)
class Block:
    """A block in a language; `needs` says what a newcomer's machine may lack to run it."""

    page: Path
    line: int
    language: str
    needs: str
    text: str

    def __str__(self) -> str:
        """The page and the line, with what it needs."""
        place = f"{self.page.relative_to(ROOT)}:{self.line}"
        return f"{place}-needs-{self.needs}" if self.needs else place

    @property
    def file(self) -> str:
        """The name that the block's first line gives the file that a reader saves it as, or ""."""
        match = _FILE.match(self.text)
        return match[1] if match else ""

    def commands(self) -> Iterator[list[str]]:
        """Yields the words of every command, without comments."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(re.sub(r"<[^>]*>", "PLACEHOLDER", line), comments=True)
            yield from split_commands(words)


def read_blocks(page: Path) -> Iterator[Block]:
    """Yields a page's outermost blocks."""
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        language, _, needs = match[2].strip().partition(" needs:")
        yield Block(page, text.count("\n", 0, match.start()) + 1, language, needs, match[3])


def split_commands(words: list[str]) -> Iterator[list[str]]:
    """Yields what stands between `&&`, without assignments before it."""
    command: list[str] = []
    for word in [*words, "&&"]:
        if word != "&&":
            command.append(word)
        elif command:
            yield command
            command = []


BLOCKS = [block for page in PAGES for block in read_blocks(page)]
SHELL = [block for block in BLOCKS if block.language in {"sh", "bash", "console"}]


def write_files(folder: Path, pages: Sequence[Path]) -> None:
    """Saves the blocks that are files, as a reader of the pages has done."""
    for block in BLOCKS:
        if block.file and block.page in pages:
            (folder / block.file).write_text(block.text, "utf-8")


def script_of(page: Path) -> str:
    """Returns a page's Python blocks as one script, which imports those that are files."""
    blocks = [b for b in BLOCKS if (b.page, b.language, b.needs) == (page, "python", "")]
    return "\n".join(f"import {Path(b.file).stem}" if b.file else b.text for b in blocks)


def texts_of(page: Path, language: str, needs: str = "") -> list[str]:
    """Returns a page's blocks in a language that need the same."""
    wanted = (page, language, needs)
    return [b.text for b in BLOCKS if (b.page, b.language, b.needs) == wanted]


def without_repetitions(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks without the lines that an earlier page's block has had."""
    first_page: dict[str, Path] = {}
    left = []
    for block in blocks:
        lines = block.text.splitlines(keepends=True)
        new = [line for line in lines if first_page.setdefault(line, block.page) == block.page]
        if new:
            left.append(replace(block, text="".join(new)))
    return left
