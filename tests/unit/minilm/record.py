"""Records what the reference implementations say, into `golden.json` beside it. Not run by the tests:

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers
    /tmp/oracle/bin/python tests/unit/minilm/record.py FOLDER_OF_THE_MODEL

Token ids are those of the package `tokenizers` (without the marks of begin and end); vectors those of PyTorch and
`transformers`, as the model's card does it: the mean over the pieces, then length 1, of at most 256 pieces.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

TEXTS = [
    "",
    " ",
    "hello",
    "Hello, World!",
    "How does the authentication system work?",
    "fn login() { ... }",
    "def parse_config(path: Path) -> dict[str, Any]:\n    return tomllib.loads(path.read_text())",
    "SELECT id FROM orders WHERE (placed_at, id) < ($1, $2) ORDER BY placed_at DESC LIMIT 50;",
    '#include <stdio.h>\r\nint main(void) {\tprintf("%d\\n", 0x7f); }',
    "Crème brûlée, naïve café, ÀÉÎÕÜ ñ ß ø",
    "İstanbul ΟΔΟΣ Σίσυφος ﬁne",
    "東京タワー 中文字符 한국어 텍스트",
    "Здравствуй, мир! שלום עולם مرحبا",
    "emoji 🙂🚀 and symbols © ™ € £ ∑ √ → “quotes” – dashes —",
    "a\u0000b\u200bc\ufffdd\u00a0e\u2003f\u00adg\tx\ny\rz",
    "x" * 100,
    "x" * 101 + " tail",
    "unaffable electroencephalographically antidisestablishmentarianism qzxjkv",
    "don't stop_me-now 3.14159 1,000,000 v2.0.1-rc.3 user@example.org https://example.org/a?b=c#d",
    "The order in which modules can be built, each after all that it depends on.",
    "retry a failed network call with exponential backoff",
    "the quick brown fox jumps over the lazy dog " * 40,
]


def main(folder: str) -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    pieces = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    pieces.no_padding()
    pieces.no_truncation()
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    found = []
    for text in TEXTS:
        whole = pieces.encode(text, add_special_tokens=True).ids
        cut = whole if len(whole) <= 256 else [*whole[:255], whole[-1]]
        with torch.no_grad():
            last = model(input_ids=torch.tensor([cut])).last_hidden_state
        vector = torch.nn.functional.normalize(last.mean(dim=1), dim=1)[0].tolist()
        found.append({"text": text, "ids": whole[1:-1], "vector": [round(one, 6) for one in vector]})
    versions = {one.__name__: one.__version__ for one in (torch, transformers, tokenizers)}
    lines = ",\n".join(json.dumps(one) for one in found)
    target = Path(__file__).with_name("golden.json")
    target.write_text(f'{{"made_with": {json.dumps(versions)}, "texts": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
