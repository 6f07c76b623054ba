"""Writes the reference page and the commented default file from the model.

``python -m bftrainer.site.policy.render`` in the root of the repository brings
docs/reference/policy.md and packaging/policy.yaml up to date; a test says when that is due.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.policy.schema import expectation, group, restart, unit, yaml_value

_HEAD = """\
# Policy of bftrainer: what the administrator decides.
#
# Every setting stands here with its default; remove the '#' in front of one to change
# it. A file that sets nothing is valid. After a change, before a reload:
#
#     bftrainer policy check FILE
"""
_DOCS = re.compile(r"docs/([a-z/-]+)\.md")
_PAGE_HEAD = """\
# Policy reference

YAML, `bftrainer daemon --policy FILE`. Every setting has a default; a file that sets nothing is
valid. `packaging/policy.yaml` holds all of them. With several `--policy`, or a directory of `.yaml`
files, the last file that sets it decides over a setting. Files must be regular, UTF-8, at most
64 KiB and not writable by everyone; anchors, aliases, tags, repeated keys and tabs are errors.
Mistakes are reported as `file:line:column: code: cause next step`.

A [reload](../howto/operate.md#change-the-policy) changes every setting but those marked *restart*.

| command | does |
|---|---|
| `bftrainer policy check FILE...` | names all mistakes; exit code 8 |
| `bftrainer policy show [FILE...]` | prints the values in force and where each comes from |
| `bftrainer policy diff OLD NEW` | prints what differs, and when it takes effect |
| `bftrainer policy test OLD NEW` | replays yesterday with both |
| `bftrainer policy reload` | has the daemon read its policy again |
| `bftrainer policy schema` | prints the JSON schema, for editors |

| code | means |
|---|---|
| BFT-2100 | several problems, listed below it |
| BFT-2101 to -2108 | the file: unreadable, no regular file, writable by everyone, too large, \
not UTF-8, not YAML, a tab, an anchor or tag |
| BFT-2109 to -2113 | a setting: twice, unknown, of the wrong type, out of bounds, in conflict |
| BFT-2114, -2115 | the allocation policy is not installed; the file is not one mapping |

"""


def render_yaml() -> str:
    """Return the commented default file."""
    parts = [_HEAD]
    heading = ""
    for name in SitePolicy.model_fields:
        if group(name) != heading:
            heading = group(name)
            parts.append(f"\n# ---- {heading} {'-' * (70 - len(heading))}\n")
        about = f"{_meaning(name)} {_capital(expectation(name))}{_counted(name)}."
        lines = textwrap.wrap(about, width=86, break_on_hyphens=False)
        parts.append("\n" + "".join(f"# {line}\n" for line in lines))
        parts.append(f"#{name}: {yaml_value(SitePolicy.model_fields[name].get_default())}\n")
    return "".join(parts)


def render_markdown() -> str:
    """Return the reference page."""
    parts = [_PAGE_HEAD]
    heading = ""
    for name in SitePolicy.model_fields:
        if group(name) != heading:
            heading = group(name)
            parts.append(f"{'' if heading == 'Decision' else chr(10)}## {heading}\n\n")
            parts.append("| setting | accepts | default | meaning |\n|---|---|---|---|\n")
        default = yaml_value(SitePolicy.model_fields[name].get_default())
        accepts = f"{_briefly(expectation(name))}{_counted(name)}"
        meaning = _DOCS.sub(r"[\1](../\1.md)", _meaning(name))
        meaning += " *Restart.*" if restart(name) else ""
        parts.append(f"| `{name}` | {accepts} | `{default}` | {meaning} |\n")
    return "".join(parts)


def write(root: Path) -> None:
    """Bring both files below ``root`` up to date."""
    for relative, text in (
        ("docs/reference/policy.md", render_markdown()),
        ("packaging/policy.yaml", render_yaml()),
    ):
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _briefly(expected: str) -> str:
    return expected.replace("a whole number from", "whole,").replace("a number from ", "")


def _meaning(name: str) -> str:
    return str(SitePolicy.model_fields[name].description)


def _counted(name: str) -> str:
    """Return what a number counts, where its bounds do not say so already."""
    return f" ({unit(name)})" if unit(name) not in ("", "s") else ""


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    write(Path.cwd())
