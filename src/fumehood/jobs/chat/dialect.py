"""How one endpoint wants to be asked. All speak the OpenAI protocol; none knows all of it.

We begin with what gives the firmest answers, and step back from a field when the endpoint says that it does not know
it: `json_schema` becomes `json_object` and then nothing (the schema is in the prompt in any case), `max_tokens` becomes
`max_completion_tokens` (not the other way round: Ollama passes over the new name in silence), temperature 0 becomes 1
for models that have no other, the seed is left out. What is really sent is what the provenance says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import openai
from openai.types.shared_params import ResponseFormatJSONObject, ResponseFormatJSONSchema

from fumehood.wire.jobs import Sampling

SEED = 7
"""Any number does; the same one each time is what makes answers alike."""
_REFUSALS = frozenset({400, 422})


class Form(StrEnum):
    SCHEMA = "json_schema"
    OBJECT = "json_object"
    TEXT = "text"


_NEXT_FORM = {Form.SCHEMA: Form.OBJECT, Form.OBJECT: Form.TEXT}


@dataclass(frozen=True, slots=True)
class Dialect:
    form: Form = Form.SCHEMA
    old_token_name: bool = True
    temperature: float = 0.0
    seed: int | None = SEED

    def response_format(
        self, name: str, schema: dict[str, Any]
    ) -> ResponseFormatJSONSchema | ResponseFormatJSONObject | openai.Omit:
        if self.form is Form.SCHEMA:
            return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
        return {"type": "json_object"} if self.form is Form.OBJECT else openai.omit

    def sampling(self, max_tokens: int) -> Sampling:
        said: dict[str, Any] = {"temperature": self.temperature, "max_tokens": max_tokens}
        if self.seed is not None:
            said["seed"] = self.seed
        return Sampling.model_validate(said)

    def after(self, error: openai.APIStatusError) -> Dialect | None:
        """The next one to try after a refusal; None where no other would do. Each step back is made once."""
        field = _refused(error)
        if field == "response_format" and self.form in _NEXT_FORM:
            return replace(self, form=_NEXT_FORM[self.form])
        if field == "max_tokens" and self.old_token_name:
            return replace(self, old_token_name=False)
        if field == "temperature" and self.temperature == 0:
            return replace(self, temperature=1.0)
        if field == "seed" and self.seed is not None:
            return replace(self, seed=None)
        return None


def _refused(error: openai.APIStatusError) -> str | None:
    """Which of our fields the endpoint does not want. It names the field in `param`, or in its words."""
    if error.status_code not in _REFUSALS:
        return None
    fields = ("response_format", "max_tokens", "temperature", "seed")
    if isinstance(error.param, str) and error.param:
        return next((field for field in fields if error.param.startswith(field)), None)
    words = said_by(error)
    if "json_schema" in words or "json_object" in words:
        return "response_format"
    return next((field for field in fields if field in words), None)


def said_by(error: openai.APIStatusError) -> str:
    """An endpoint's own words, for telling errors apart; never for showing, since they may repeat what was sent."""
    body = error.body
    found = body.get("message") if isinstance(body, dict) else body
    return found[:1000].lower() if isinstance(found, str) else ""
