"""Writes the reference page, the default file and the JSON schema from the model.

``expectation`` is written into the reference; ``load`` quotes it in errors.

``python -m bftrainer.site.policy.render`` in the root of the repository brings
docs/reference/policy.md and packaging/policy.yaml up to date; a test says when that is due.
"""

from __future__ import annotations

import json
import re
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

from bftrainer.site.policy.model import SitePolicy

SCHEMA_ID = "bftrainer/policy/1"
_TYPES = {
    "number": "a number",
    "integer": "a whole number",
    "string": "a word",
    "array": "a list of at least one word",
    "object": "a mapping",
    "boolean": "true or false",
}
_HEAD = """\
# Policy of bftrainer: what the administrator decides.
#
# Every setting stands here with its default; remove the '#' in front of one to change
# it. One without '#' is set as new sites have it. A file that sets nothing is valid.
# After a change, before a reload:
#
#     bftrainer policy check FILE
"""
# What new sites set, whose default is what earlier releases did.
NEW = {"lend": "auto"}
_DOCS = re.compile(r"docs/([a-z/-]+)\.md")
INTRODUCTION = """\
YAML, `bftrainer daemon --policy FILE`. Every setting has a default; a file that sets nothing is
valid. `packaging/policy.yaml` holds all of them. Of several files the last that sets a setting
decides over it. Files must be regular, UTF-8, at most 64 KiB and not writable by everyone; anchors,
aliases, tags, repeated keys and tabs are errors. `bftrainer policy schema` prints the JSON schema,
for editors."""
_PAGE_HEAD = f"""\
# Policy reference

{INTRODUCTION}

[How to check and change a policy](../howto/operate.md#change-the-policy). A reload changes every
setting but those marked *restart*. Mistakes are reported as
`file:line:column: code: cause next step`; `bftrainer help BFT-2109` explains a code.

"""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) that editors can check policies with."""
    schema = SitePolicy.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


def expectation(name: str) -> str:
    """Return what a setting accepts, for example "a number from 1 to 86400 s"."""
    if "expects" in _extra(name):
        return str(_extra(name)["expects"])
    schema = SitePolicy.model_json_schema()
    setting = schema["properties"][name]
    options = setting.get("anyOf", [setting])
    words = [_option(_resolved(option, schema), setting) for option in options]
    return " or ".join(words)


def yaml_value(value: Any) -> str:
    """Return a value as it is written in a policy file."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and value.split() == [value] and not value[0].isdigit():
        return value
    return json.dumps(value, ensure_ascii=False)


def unit(name: str) -> str:
    """Return the unit of a setting, "" when it has none."""
    return str(_extra(name)["unit"])


def group(name: str) -> str:
    """Return the heading under which a setting is described."""
    return str(_extra(name)["group"])


def restart(name: str) -> str:
    """Return why a setting changes with a restart only; "": a reload suffices."""
    return str(_extra(name).get("restart", ""))


def about(name: str) -> str:
    """Return what a setting means and accepts."""
    return f"{_meaning(name)} {_capital(expectation(name))}{_counted(name)}."


def _extra(name: str) -> dict[str, Any]:
    extra = SitePolicy.model_fields[name].json_schema_extra
    if not isinstance(extra, dict):
        raise TypeError(f"{name} is declared without a unit")
    return extra


def _resolved(option: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = option.get("$ref")
    if not reference:
        return option
    definition: dict[str, Any] = schema["$defs"][reference.rsplit("/", 1)[1]]
    return definition


def _option(option: dict[str, Any], setting: dict[str, Any]) -> str:
    if option.get("type") == "null":
        return "null"
    if "enum" in option:
        return "one of " + ", ".join(option["enum"])
    words = _TYPES[option["type"]]
    of_each = option.get("additionalProperties")
    if isinstance(of_each, dict) and of_each.get("type") == "integer":
        return f"{words} of names to whole numbers, {of_each['minimum']} to {of_each['maximum']}"
    limits = {**setting, **option}
    if "minimum" in limits:
        words += f" from {limits['minimum']:.12g} to {limits['maximum']:.12g}"
        if setting["unit"] == "s":
            words += " s"
    return words


def render_yaml() -> str:
    """Return the commented default file."""
    parts = [_HEAD]
    heading = ""
    for name in SitePolicy.model_fields:
        if group(name) != heading:
            heading = group(name)
            parts.append(f"\n# ---- {heading} {'-' * (70 - len(heading))}\n")
        lines = textwrap.wrap(about(name), width=86, break_on_hyphens=False)
        parts.append("\n" + "".join(f"# {line}\n" for line in lines))
        if name in NEW:
            parts.append(f"{name}: {NEW[name]}\n")
        else:
            default = yaml_value(SitePolicy.model_fields[name].get_default())
            parts.append(f"#{name}: {default}\n")
    return "".join(parts)


def render_markdown() -> str:
    """Return the reference page."""
    parts = [_PAGE_HEAD]
    heading = ""
    for name in SitePolicy.model_fields:
        if group(name) != heading:
            if heading:
                parts.append("\n")
            heading = group(name)
            parts.append(f"## {heading}\n\n")
        default = yaml_value(SitePolicy.model_fields[name].get_default())
        accepts = f"{_briefly(expectation(name))}{_counted(name)}"
        meaning = _DOCS.sub(r"[\1](../\1.md)", _meaning(name))
        if restart(name):
            meaning += " *Restart.*"
        words = f"* `{name}: {default}`, {accepts}: {meaning}"
        lines = textwrap.wrap(words, 118, subsequent_indent="  ", break_on_hyphens=False)
        parts.append("".join(f"{line}\n" for line in lines))
    return "".join(parts)


def write(root: Path) -> None:
    """Bring both files below ``root`` up to date."""
    texts = {
        "docs/reference/policy.md": render_markdown(),
        "packaging/policy.yaml": render_yaml(),
    }
    for relative, text in texts.items():
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _briefly(expected: str) -> str:
    return expected.replace("a whole number from", "whole,").replace("a number from ", "")


def _meaning(name: str) -> str:
    return str(SitePolicy.model_fields[name].description)


def _counted(name: str) -> str:
    """Return what a number counts, where its bounds do not say so already."""
    if unit(name) in ("", "s"):
        return ""
    return f" ({unit(name)})"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    write(Path.cwd())
