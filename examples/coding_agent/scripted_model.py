"""A model that needs no GPU and no account: it speaks OpenAI's chat protocol, and its lines are written down here.

    python examples/coding_agent/scripted_model.py --port 8089

It plays a programmer who forgets something at first. What it says next hangs on what the tools answered, as with a real
one: without a failed test in the conversation it mends nothing, and without a passed one it does not say that it is
done. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TESTS = """import unittest

from roman import to_roman


class RomanTest(unittest.TestCase):
    def test_sums(self) -> None:
        self.assertEqual(to_roman(2023), "MMXXIII")

    def test_differences(self) -> None:
        self.assertEqual([to_roman(n) for n in (4, 9, 40, 1994)], ["IV", "IX", "XL", "MCMXCIV"])


if __name__ == "__main__":
    unittest.main()
"""
CODE = """NUMERALS = {NUMERALS}


def to_roman(number: int) -> str:
    said = ""
    for value, letters in NUMERALS:
        count, number = divmod(number, value)
        said += letters * count
    return said
"""
SUMS = '[(1000, "M"), (500, "D"), (100, "C"), (50, "L"), (10, "X"), (5, "V"), (1, "I")]'
DIFFERENCES = (
    '[(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),'
    ' (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]'
)
RUN_TESTS = ("run", {"command": "python3 -m unittest -v test_roman"})

Message = dict[str, Any]


def answer(messages: list[Message]) -> Message:
    """The next line of the play."""
    results = [str(one["content"]) for one in messages if one["role"] == "tool"]
    if not results:
        code = {"path": "roman.py", "content": CODE.replace("{NUMERALS}", SUMS)}
        tests = {"path": "test_roman.py", "content": TESTS}
        return _calls("I write the function and its tests.", ("write_file", code), ("write_file", tests))
    if results[-1].startswith("wrote"):
        return _calls("I run the tests.", RUN_TESTS)
    if "FAILED" in results[-1] and "'IIII'" in results[-1]:
        mended = {"path": "roman.py", "content": CODE.replace("{NUMERALS}", DIFFERENCES)}
        return _calls("Four is IV, not IIII: I forgot the differences.", ("write_file", mended))
    if results[-1].startswith("exit code 0") and results[-1].endswith("OK"):
        return {"role": "assistant", "content": "Done: to_roman knows sums and differences, and its tests pass."}
    return {"role": "assistant", "content": f"I give up: that is not in my script.\n{results[-1]}"}


def _calls(content: str, *calls: tuple[str, dict[str, str]]) -> Message:
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    made = [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": one} for one in functions]
    return {"role": "assistant", "content": content, "tool_calls": made}


class Handler(BaseHTTPRequestHandler):
    """`POST /v1/chat/completions`, without streaming."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or not asked.get("messages"):
            self.send_error(404)
            return
        message = answer(asked["messages"])
        end = "tool_calls" if "tool_calls" in message else "stop"
        said = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": end, "logprobs": None}],
        }
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's word
        """Quiet: the agent prints the conversation."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8089, help="0 takes any; the first line printed says which")
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
