"""An agent that writes code, runs it, sees what is wrong and mends it: in a sandbox, whatever the model says.

    export OPENAI_BASE_URL=http://127.0.0.1:8089/v1 OPENAI_API_KEY=none    # any endpoint that speaks OpenAI's protocol
    python examples/coding_agent/agent.py

The model has two tools, and both work in a sandbox without a network. The agent ends with 0 only if the tests pass once
more after the model has said that it is done: what counts is what ran, not what was said.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from openai import OpenAI
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
)

from fumehood import FumehoodError, Sandbox

IMAGE = "127.0.0.1:5055/fumehood/python:1"
TASK = "Write roman.py with to_roman(number: int) -> str and test_roman.py with unittest; run the tests, mend the code."
MOST_TURNS = 12
MOST_CHARACTERS = 4000
"""Of a tool's answer: a model's memory is bounded, and the end is where the error stands."""


def tool(name: str, description: str, *parameters: str) -> ChatCompletionFunctionToolParam:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("write_file", "Write a text file in the working directory.", "path", "content"),
    tool("run", "Run a shell command in the working directory; gives its exit code and what it printed.", "command"),
]


def use_tool(sandbox: Sandbox, name: str, arguments: str) -> str:
    """What the model is told. A wrong call is an answer, too: models make mistakes and can mend them."""
    try:
        given = json.loads(arguments)
        if name == "write_file":
            sandbox.files.write(given["path"], given["content"])
            return f"wrote {given['path']}"
        if name == "run":
            return run(sandbox, given["command"])[1]
        return f"there is no tool {name}"
    except (ValueError, KeyError, TypeError, FumehoodError) as error:
        return f"that did not work: {error}"


def run(sandbox: Sandbox, command: str) -> tuple[bool, str]:
    result = sandbox.commands.run(command, timeout=60)
    print(f"    $ {command}    [{result.status}, exit code {result.exit_code}]")
    ended = f"exit code {result.exit_code}" if result.exit_code is not None else f"{result.status}: {result.detail}"
    said = (result.stdout + result.stderr).strip()
    cut = f"[{len(said) - MOST_CHARACTERS} characters left out]\n" if len(said) > MOST_CHARACTERS else ""
    return result.ok, f"{ended}\n{cut}{said[-MOST_CHARACTERS:]}"


def repeated(call: ChatCompletionMessageFunctionToolCall) -> ChatCompletionMessageFunctionToolCallParam:
    """What the model said, as it wants to hear it again."""
    said = call.function
    return {"id": call.id, "type": "function", "function": {"name": said.name, "arguments": said.arguments}}


def converse(model: OpenAI, name: str, task: str, sandbox: Sandbox) -> bool:
    """Whether the model said that it is done, within its turns."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "You are a programmer. You work with the tools until the tests pass."},
        {"role": "user", "content": task},
    ]
    for _ in range(MOST_TURNS):
        said = model.chat.completions.create(model=name, messages=messages, tools=TOOLS).choices[0].message
        print(f"model: {said.content}")
        if not said.tool_calls:
            return True
        calls = [call for call in said.tool_calls if call.type == "function"]
        messages.append(
            {"role": "assistant", "content": said.content, "tool_calls": [repeated(call) for call in calls]}
        )
        for call in calls:
            answer = use_tool(sandbox, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Have a model write code in a sandbox.")
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--image", default=IMAGE)
    parser.add_argument("--model", default=os.environ.get("OPENAI_MODEL", "scripted"))
    options = parser.parse_args()
    with OpenAI(timeout=60) as model, Sandbox.create(options.image) as sandbox:
        done = converse(model, options.model, options.task, sandbox)
        print("the tests, once more:")
        passed, said = run(sandbox, "python3 -m unittest discover")
        if done and passed:
            print(sandbox.files.read("roman.py"))
            return 0
        print(said, file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FumehoodError as error:
        sys.exit(f"fumehood: {error}")
