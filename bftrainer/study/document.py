"""Reads STUDY.yaml into a ``StudyDocument``, or into everything that is wrong with it.

The YAML is read as that of policies (``site.policy.document``): every problem has line and column.
Codes: BFT-1621 a key or value, BFT-1622 the rule, BFT-1623 several problems at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from bftrainer.site.policy.document import (
    Document,
    PolicyErrors,
    PolicyProblem,
    YamlNode,
    nearest,
    read_document,
)
from bftrainer.site.policy.files import read_text
from bftrainer.study.configurations import (
    MOST,
    CategoricalParameter,
    ConfigurationError,
    DeclaredParameter,
    FloatParameter,
    IntParameter,
    StrictModel,
    settled,
)
from bftrainer.study.rungs import rule_of
from bftrainer.study.trials import Scalar, StudyRule

MOST_TRIALS = 1_000_000  # a daemon takes no greater number
CODE, RULE_CODE = "BFT-1621", "BFT-1622"
SCHEMA_ID = "bftrainer/study-file/1"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,40}$"
_PARAMETER = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"

_TAGS = ("float", "int", "categorical", "bool", "str", "[key]")
_ALTERNATIVES = ("literal[", "constrained-", "tuple[", "dict[")
_TOO_LARGE = f"Put configurations into a CSV file (up to {MOST} rows), or name the right file."
_EXAMPLES = {"rule": "for example rule: {name: asha, trials: 9, least: 1, most: 9, eta: 3}"}
_MESSAGES = {
    "model_attributes_type": "a mapping with a type, or a list of values, is required",
    "union_tag_invalid": "type must be float, int or categorical",
    "union_tag_not_found": "type is missing: float, int or categorical",
    "dict_type": "a mapping is required",
}


class StudyDocument(StrictModel):
    """A user's description of a study."""

    model_config = ConfigDict(title="bftrainer study")

    name: str | None = Field(
        default=None, pattern=_NAME, description="Of the study; the file's without it."
    )
    metric: str = Field(default="value", min_length=1, description="Name of what scripts report.")
    direction: Literal["minimize", "maximize"] = Field(
        default="minimize", description="Which values are good."
    )
    unit: Literal["epochs", "samples"] = Field(
        default="epochs", description="What budgets of the rule count."
    )
    parameters: dict[Annotated[str, Field(pattern=_PARAMETER)], DeclaredParameter] = Field(
        default={}, description="What is searched: name to type and bounds, or a list of values."
    )
    configurations: tuple[dict[str, Scalar], ...] | str | None = Field(
        default=None,
        description="Configurations instead of a sampler: a list, or a CSV file with their names.",
    )
    sampler: Literal["tpe", "random", "grid", "qmc"] = Field(
        default="tpe", description="Optuna's sampler of configurations."
    )
    seed: int = Field(default=0, ge=0, lt=1 << 31, description="Of all that is drawn.")
    rule: dict[str, Any] = Field(description="Who trains how far: its name and settings.")
    nodes: str | int = Field(default=1, description="Sizes of a trial: 2, or MIN:MAX.")
    gpus: str | int | None = Field(
        default=None, description="Sizes of a trial in GPUs, instead of nodes: 2, or MIN:MAX."
    )
    parallel: Literal["auto"] | Annotated[int, Field(ge=1, le=100_000)] = Field(
        default="auto",
        description="Trials that train or wait for nodes at once; auto: as the pool has room.",
    )
    retry: int = Field(default=1, ge=0, le=100, description="How often a failed trial is retried.")
    failed: Literal["worst", "ignore"] = Field(
        default="worst",
        description="After that it counts as the worst, or is ignored and another one takes its"
        " place.",
    )
    submit: dict[str, Scalar | tuple[Scalar, ...]] = Field(
        default={}, description="Options of bftrainer submit, without their dashes."
    )
    unit_s: dict[str, float] | None = Field(
        default=None,
        description="Seconds of one unit of a trial by its nodes, for plan and deadline.",
    )

    @property
    def sign(self) -> float:
        """The factor that makes a value one to be minimised."""
        return -1.0 if self.direction == "maximize" else 1.0

    def rule_settings(self, more: int = 0) -> dict[str, Any]:
        """Return the rule's settings, with so many more trials than the document says."""
        settings = dict(self.rule)
        if isinstance(self.configurations, tuple) and settings.get("name") != "pbt":
            settings.setdefault("trials", len(self.configurations))
        if settings.get("name") == "hyperband" and not settings.setdefault("trials", 0):
            settings["trials"] = rule_of(settings).wanted  # one pass
        if more and "trials" in settings:
            settings["trials"] += more
        if settings.get("name") == "pbt":
            settings.setdefault("seed", self.seed)
        return settings

    def rule_with(self, more: int = 0) -> StudyRule:
        """Return the rule, with so many more trials than the document says."""
        return rule_of(self.rule_settings(more))


class StudyErrors(PolicyErrors):
    """A study document that cannot be used; ``problems`` says where and why."""

    WHAT: ClassVar = "study"
    SEVERAL: ClassVar = "BFT-1623"
    CHECK: ClassVar = "bftrainer study run --dry-run {path} SCRIPT"


def read_study(path: Path) -> StudyDocument:
    """Return the study in a file; its configurations are a list, whatever they were.

    Raises:
        StudyErrors: all problems of the file at once (exit code 8).
    """
    try:
        text = read_text(path)
    except PolicyErrors as errors:
        raise _ours(path, errors.problems) from errors
    return parse_study(text, path)


def parse_study(text: str, path: Path) -> StudyDocument:
    """Return the study in a text; ``path`` is said in problems, and where CSV files are sought."""
    document = read_document(text, "A study")
    if document.problems and not document.entries:
        raise _ours(path, document.problems)  # not read to its end: the rest is a consequence
    study = _Reading(document).study(path.parent)
    if study is None:
        raise _ours(path, document.problems)
    return study.model_copy(update={"name": study.name or path.stem})


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) that editors can check studies with."""
    schema = StudyDocument.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


class Entry(NamedTuple):
    """A key of the document, and what stands there."""

    key: YamlNode
    value: YamlNode


class _Reading:
    """Makes a study of a YAML document, or complains of its places."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = {str(key.value): Entry(key, node) for key, node in document.entries}

    def study(self, folder: Path) -> StudyDocument | None:
        """Return the study; None: the document says what is wrong."""
        values = {key: _plain(entry.value.value) for key, entry in self._nodes.items()}
        try:
            study = StudyDocument.model_validate(values)
        except ValidationError as errors:
            self._explain_all(errors)
            return None
        try:
            study = _with_configurations(study, folder)
            _check_counts(study)
            study.rule_with()
        except ConfigurationError as error:
            self._complain(self._at(error.where), CODE, error.cause, error.next_step)
        except ValueError as problem:
            self._explain_rule(study.rule, str(problem))
        if self._document.problems:
            return None
        return study

    def _explain_all(self, errors: ValidationError) -> None:
        """Complain once of each place."""
        by_place: dict[tuple[str | int, ...], ErrorDetails] = {}
        for details in errors.errors(include_url=False, include_context=False):
            # Of the alternatives that one value may be, the last says most.
            by_place[_steps(details["loc"])] = details
        for where, details in by_place.items():
            if not self._document.is_told:
                self._explain(where, details["type"], details["msg"])

    def _explain_rule(self, rule: Mapping[str, Any], problem: str) -> None:
        """Complain of the rule, at the setting with which the problem begins if there is one."""
        place = self._at(("rule",))
        for setting in rule:
            if problem.startswith(f"{setting} "):
                place = self._at(("rule", setting))
                break
        full_stop = "" if problem.endswith((".", "?")) else "."
        cause = f"rule: {problem}{full_stop}"
        self._complain(place, RULE_CODE, cause, "docs/howto/studies.md lists the rules.")

    def _explain(self, where: Sequence[str | int], kind: str, message: str) -> None:
        """Say what is wrong with one place, with a near name for an unknown key."""
        name = ".".join(map(str, where)) or "the study"
        message = _MESSAGES.get(kind, message.removeprefix("Value error, "))
        place = self._at(where)
        if kind == "extra_forbidden":
            names = self._names_at(where)
            step = nearest(str(where[-1]), names, f"Known are: {', '.join(names)}.")
            self._complain(self._key(where), CODE, f"There is no key {name[:80]!r}.", step)
        elif kind == "missing":
            cause, step = f"{name} is missing.", f"Add {_EXAMPLES.get(name, where[-1])}."
            self._complain(self._at(where[:-1]), CODE, cause, step)
        else:
            subject = name
            if not place.is_mapping:
                subject = f"{name} is {json.dumps(place.value, default=str)[:80]}, but"
            cause = f"{subject}: {message[:1].lower()}{message[1:]}."
            step = "Correct it; docs/howto/studies.md has an example."
            self._complain(place, CODE, cause, step)

    def _names_at(self, where: Sequence[str | int]) -> list[str]:
        """Return the keys that are possible there."""
        if len(where) == 1:
            return list(StudyDocument.model_fields)
        kinds = {"float": FloatParameter, "int": IntParameter}
        kind = str(self._at(where[:2]).at(("type",)).value)
        model = cast("type[BaseModel]", kinds.get(kind, CategoricalParameter))
        return list(model.model_fields)

    def _at(self, where: Sequence[str | int]) -> YamlNode:
        """Return the value there, or the last on the way there that is."""
        if not where or str(where[0]) not in self._nodes:
            return YamlNode(value=None, line=1, column=1, is_mapping=True)
        return self._nodes[str(where[0])].value.at(where[1:])

    def _key(self, where: Sequence[str | int]) -> YamlNode:
        """Return the key itself, or the place above it."""
        if len(where) == 1:
            return self._nodes[str(where[0])].key
        above = self._at(where[:-1])
        for key in above.keys:
            if str(key.value) == str(where[-1]):
                return key
        return above

    def _complain(self, at: YamlNode, code: str, cause: str, next_step: str) -> None:
        self._document.complain(code, at.line, at.column, cause, next_step)


def _with_configurations(study: StudyDocument, folder: Path) -> StudyDocument:
    """Return the study with its configurations as a list, and all parameters declared."""
    configurations, parameters = settled(
        study.configurations, study.parameters, folder, is_grid=study.sampler == "grid"
    )
    update = {"configurations": configurations, "parameters": parameters}
    return study.model_copy(update=update)


def _plain(value: Any) -> Any:
    """Return the value with tuples where the model has them."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    values = dict(value)
    for key, inner_value in value.items():
        # Choices are a list in the document; the parameter makes a tuple of them.
        if isinstance(inner_value, list) and key != "choices":
            values[key] = tuple(inner_value)
    return values


def _check_counts(study: StudyDocument) -> None:
    if study.failed == "ignore" and study.configurations is not None:
        raise ValueError(
            "failed: ignore needs a sampler: no other configuration of a list or grid can take"
            " the place of one that failed"
        )
    settings = study.rule_settings()
    for key in ("trials", "population"):
        count = settings.get(key)
        if not isinstance(count, int):
            continue
        name = key
        if not study.rule.get(key):  # hyperband's, which follow from its other settings
            name = f"{key} of one pass"
        if count > MOST_TRIALS:
            raise ValueError(f"{name} is too great; at most {MOST_TRIALS} are possible")
        if isinstance(study.configurations, tuple) and count > len(study.configurations):
            raise ValueError(
                f"{name} is {count}, but there are only {len(study.configurations)} configurations"
            )


def _steps(where: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the keys on the way there, without the names of alternatives."""
    return tuple(step for step in where if not _is_alternative(step))


def _is_alternative(step: str | int) -> bool:
    if isinstance(step, int):
        return False
    return step in _TAGS or step.startswith(_ALTERNATIVES)


def _ours(path: Path, problems: Sequence[PolicyProblem]) -> StudyErrors:
    """Return the problems under our code: those of the form have codes of policies."""
    return StudyErrors(path, list(map(_our_problem, problems)))


def _our_problem(problem: PolicyProblem) -> PolicyProblem:
    if problem.code in (CODE, RULE_CODE):
        return problem
    cause = problem.cause.replace("policy", "study")
    next_step = problem.next_step
    if problem.code == "BFT-2104":  # the file is too large
        next_step = _TOO_LARGE
    return replace(problem, code=CODE, cause=cause, next_step=next_step)
