"""What a model accepts: learned from the first request that it refuses, and remembered, so that it is probed once."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mikit.files import value_hash, write_text
from mikit.llm.requests import Question


class Dialect(BaseModel):
    """How a request is written for one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Literal["max_tokens", "max_completion_tokens", "none"] = "max_tokens"
    temperature: bool = True
    schema_form: Literal["json_schema", "json_object", "none"] = "json_schema"
    system: bool = True
    """Whether there is a role of that name; else all goes to the user's."""

    def arguments(self, question: Question) -> dict[str, Any]:
        """The arguments of a chat completion."""
        if self.system:
            messages = [{"role": "system", "content": question.system}, {"role": "user", "content": question.user}]
        else:
            messages = [{"role": "user", "content": f"{question.system}\n\n{question.user}"}]
        arguments: dict[str, Any] = {"model": question.model, "messages": messages}
        if self.limit != "none":
            arguments[self.limit] = question.max_tokens
        if self.temperature:
            arguments["temperature"] = question.temperature
        if self.schema_form == "json_schema":
            schema = {"name": "answer", "schema": dict(question.schema), "strict": True}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.schema_form == "json_object":
            arguments["response_format"] = {"type": "json_object"}
        return arguments

    def without(self, complaint: str) -> "Dialect | None":
        """What to try after a request was refused with this message; None if nothing is left that it could be about."""
        said = complaint.lower()
        if re.search(r"response_format|json_schema|json_object|structured|guided", said) and self.schema_form != "none":
            return self._plainer()
        if re.search(r"max_(?:completion_)?tokens", said) and self.limit != "none":
            later: Literal["max_completion_tokens", "none"] = (
                "max_completion_tokens" if self.limit == "max_tokens" else "none"
            )
            return self.model_copy(update={"limit": later})
        if "temperature" in said and self.temperature:
            return self.model_copy(update={"temperature": False})
        if re.search(r"system (?:role|message|prompt)|role.{0,20}system", said) and self.system:
            return self.model_copy(update={"system": False})
        # a refusal that names nothing is most often about the format, the one part that not every server has
        return self._plainer() if self.schema_form != "none" else None

    def _plainer(self) -> "Dialect":
        form = "json_object" if self.schema_form == "json_schema" else "none"
        return self.model_copy(update={"schema_form": form})


TOO_LONG = re.compile(r"context[_ ](?:length|window)|too (?:long|many tokens)|maximum.{0,20}length", re.IGNORECASE)


def _path(folder: Path, base_url: str | None, model: str) -> Path:
    return folder / "models" / f"{value_hash([base_url, model])}.json"


def load_dialect(folder: Path | None, base_url: str | None, model: str) -> Dialect:
    """What was learned of a model; the usual form of a request if nothing was."""
    try:
        return Dialect.model_validate_json(_path(folder, base_url, model).read_bytes()) if folder else Dialect()
    except (OSError, ValidationError):
        return Dialect()


def save_dialect(folder: Path | None, base_url: str | None, model: str, dialect: Dialect) -> None:
    """Remember what was learned of a model."""
    if folder:
        write_text(_path(folder, base_url, model), dialect.model_dump_json(indent=1) + "\n")
