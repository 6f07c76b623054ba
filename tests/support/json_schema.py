"""What a document breaks of a JSON schema: the keywords our schemas use, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description", "default"}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def violations(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[str]:
    """One sentence per rule of ``schema`` the value breaks; ``root`` holds its ``$defs``."""
    return _violations(value, schema, root, "document")


def _violations(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], where: str
) -> list[str]:
    found: list[str] = []
    for keyword, rule in schema.items():
        if keyword in _ANNOTATIONS or keyword in {"properties", "additionalProperties"}:
            continue
        if keyword == "$ref":
            name = str(rule).removeprefix("#/$defs/")
            found += _violations(value, root["$defs"][name], root, where)
        elif keyword == "anyOf":
            if all(_violations(value, part, root, where) for part in rule):
                found.append(f"{where} is none of the alternatives")
        elif keyword == "items":
            for i, item in enumerate(value if isinstance(value, list) else ()):
                found += _violations(item, rule, root, f"{where}[{i}]")
        elif not _holds(keyword, rule, value):
            found.append(f"{where} breaks {keyword} {rule!r}")
    if isinstance(value, dict):
        found += _members(value, schema, root, where)
    return found


def _members(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], where: str
) -> list[str]:
    found: list[str] = []
    others = schema.get("additionalProperties", True)
    for name, member in value.items():
        rule = schema.get("properties", {}).get(name, others)
        if rule is False:
            found.append(f"{where} has the unknown member {name}")
        elif rule is not True:
            found += _violations(member, rule, root, f"{where}.{name}")
    return found


def _holds(keyword: str, rule: Any, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match keyword:
        case "type":
            return any(_is_a(value, name) for name in ([rule] if isinstance(rule, str) else rule))
        case "enum":
            return value in rule
        case "required":
            return not isinstance(value, dict) or set(rule) <= set(value)
        case "minItems":
            return not isinstance(value, list) or len(value) >= rule
        case "minimum":
            return not is_number or value >= rule
        case "maximum":
            return not is_number or value <= rule
    raise AssertionError(f"the keyword {keyword} is not known here")


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])
