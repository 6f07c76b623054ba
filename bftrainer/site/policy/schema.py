"""What the model says about each setting, in words and as a JSON schema.

``load`` quotes ``expectation`` in errors, ``render`` writes it into the reference.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from bftrainer.site.policy.model import SitePolicy

SCHEMA_ID = "bftrainer/site/policy/1"
_TYPES = {
    "number": "a number",
    "integer": "a whole number",
    "string": "a word",
    "array": "a list of at least one word",
    "object": "a mapping",
    "boolean": "true or false",
}


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


def _extra(name: str) -> dict[str, Any]:
    extra = SitePolicy.model_fields[name].json_schema_extra
    if not isinstance(extra, dict):
        raise TypeError(f"{name} is declared without a unit")
    return extra


def _resolved(option: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = option.get("$ref")
    return schema["$defs"][reference.rsplit("/", 1)[1]] if reference else option


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
        words += f" {setting['unit']}" if setting["unit"] == "s" else ""
    return words
