"""Questions that readers ask: two links from README at most, and a first sentence that answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\(([^)#\s]+\.md)")
MOST_LINKS = 2
# The question, words of the heading that answers it, and words of the first sentence below it.
QUESTIONS = {
    "Why does my trainer wait?": ("trainer waits", "`bftrainer explain ID` says why"),
    "What did it cost?": ("what did it cost", "`bftrainer account --by trainer` shows node-hours"),
    "Is my job script usable?": ("script usable", "usable after five changed lines"),
    "How do I remove it?": ("switch it off now, or remove it", "`bftrainer down`"),
    "What happens when a node is taken?": ("when a node is taken", "repeat the step"),
    "Does it change my results?": ("change my results", "Usually not"),
    "Which policy shall I choose?": ("which policy", "the default, `milp`"),
    "How do I see the loss?": ("see the loss", "`bftrainer logs ID --follow`"),
    "How do I switch it off now?": ("how do we switch it off", "`bftrainer drain --all`"),
    "How do I add a policy?": ("add a policy", "one file, one line in `setup.cfg`"),
}


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each heading of a page in small letters, with the first sentence below it."""
    for part in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        first_sentence = re.split(r"(?<=[.?!:])\s", body.strip(), maxsplit=1)[0]
        yield heading.lower(), " ".join(first_sentence.split())


def links_from(page: Path) -> set[Path]:
    """Return the documents to which a page leads."""
    targets = ((page.parent / link).resolve() for link in LINK.findall(page.read_text("utf-8")))
    return {target for target in targets if target.is_file()}


@pytest.fixture(scope="module")
def clicks() -> dict[Path, int]:
    """Each document that is near README, with the links that lead there."""
    near = {ROOT / "README.md": 0}
    for count in range(1, MOST_LINKS + 1):
        seen = set().union(*map(links_from, near))
        near |= dict.fromkeys(seen - near.keys(), count)
    return near


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_sentence_answers(question: str, clicks: dict[Path, int]) -> None:
    words, answer = QUESTIONS[question]
    answers = [
        sentence for page in clicks for heading, sentence in sections(page) if words in heading
    ]
    assert any(answer in sentence for sentence in answers), answers


def test_an_answer_further_down_does_not_count(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## What did it cost?\n\nIt\ndepends. Call `account`.\n\n## End\n")
    assert dict(sections(page))["what did it cost?"] == "It depends."
