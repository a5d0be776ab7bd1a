"""A run's events, each once: whatever becomes of the stream that brings them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.cli import stream
from fumehood.cli.client import Api, ApiError
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.stream import Following, Patience, frames
from tests.unit.api_server import Answer, ApiServer, Asked, api_server, problem

EVENTS_PATH, HISTORY_PATH = "/v1/runs/run-1/events", "/v1/runs/run-1/history"
SSE = {"content-type": "text/event-stream"}

STORY: list[tuple[int, int, dict[str, Any]]] = [
    (3, 0, {"type": "run.started"}),
    (3, 1, {"type": "step.queued", "step": "a"}),
    (7, 0, {"type": "step.calling", "step": "a", "child_run_id": "run-2"}),
    (9, 0, {"type": "step.completed", "step": "a", "output": "one\u2028two\x85three"}),
    (9, 1, {"type": "run.succeeded"}),
]


def told(seq: int, index: int, event: dict[str, Any]) -> bytes:
    data = json.dumps({"seq": seq, "at": "now", "run_id": "run-1", **event}, ensure_ascii=False)
    return f"id: {seq}-{index}\nevent: {event['type']}\ndata: {data}\n\n".encode()


END = b'event: end\ndata: {"run_id":"run-1","status":"succeeded"}\n\n'
GREETING, ALIVE = b"retry: 1000\n\n", b": still here\nid: 9\n\n"
EXPECTED = [{"seq": seq, "at": "now", "run_id": "run-1", **event} for seq, _, event in STORY]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


def follow(server: ApiServer, **more: Any) -> list[dict[str, Any]]:
    """All events that a reader sees who does not wait between two tries."""
    with closing(Api(server.url, "key")) as api:
        return list(Following(api, "run-1", Patience(sleep=lambda _: None, **more)).events())


def behind(asked: Asked) -> list[tuple[int, int, dict[str, Any]]]:
    """What a client that saw so much has not seen."""
    seen = asked.headers.get("last-event-id")
    if seen is None:
        return STORY
    seq, _, index = seen.partition("-")
    return [one for one in STORY if one[:2] > (int(seq), int(index))]


def streamed(pieces: list[bytes], *, whole: bool = True) -> Answer:
    return Answer(headers=SSE, pieces=tuple(pieces), whole=whole)


# --- streams -----------------------------------------------------------------------------------------------


def test_a_stream_that_holds_brings_everything(server: ApiServer) -> None:
    server.answers[f"GET {EVENTS_PATH}"] = streamed([GREETING, *(told(*one) for one in STORY), ALIVE, END])
    assert follow(server) == EXPECTED
    assert len(server.asked) == 1


@pytest.mark.parametrize("whole", [True, False], ids=["closed", "cut"])
def test_a_stream_that_breaks_after_each_event_brings_each_once(server: ApiServer, whole: bool) -> None:
    def one_more(asked: Asked) -> Answer:
        rest = behind(asked)
        pieces = [told(*one) for one in rest[:1]] + ([END] if len(rest) <= 1 else [])
        return streamed(pieces, whole=whole)

    server.answers[f"GET {EVENTS_PATH}"] = one_more
    assert follow(server) == EXPECTED
    assert [asked.headers.get("last-event-id") for asked in server.asked][:3] == [None, "3-0", "3-1"]


def test_an_event_that_is_cut_in_the_middle_comes_again(server: ApiServer) -> None:
    half = told(*STORY[1])[:20]
    server.answers[f"GET {EVENTS_PATH}"] = [
        streamed([told(*STORY[0]), half], whole=False),
        streamed([told(*one) for one in STORY[1:]] + [END]),
    ]
    assert follow(server) == EXPECTED


def test_what_a_server_tells_twice_is_told_once(server: ApiServer) -> None:
    server.answers[f"GET {EVENTS_PATH}"] = [
        streamed([told(*one) for one in STORY[:3]]),
        streamed([*(told(*one) for one in STORY), END]),
    ]
    assert follow(server) == EXPECTED


def test_a_run_that_ended_and_was_taken_up_again_is_followed_to_its_present_end(server: ApiServer) -> None:
    story = [(1, 0, {"type": "run.failed"}), (2, 0, {"type": "run.retried"}), (3, 0, {"type": "run.succeeded"})]
    server.answers[f"GET {EVENTS_PATH}"] = streamed([*(told(*one) for one in story), END])
    assert [event["type"] for event in follow(server)] == ["run.failed", "run.retried", "run.succeeded"]


def test_nothing_more_is_over_where_all_was_seen(server: ApiServer) -> None:
    """Cut off between the last event and the end: the server has nothing left to say."""
    server.answers[f"GET {EVENTS_PATH}"] = [streamed([told(*one) for one in STORY], whole=False), Answer(status=204)]
    assert follow(server) == EXPECTED


# --- without streams ---------------------------------------------------------------------------------------


def page(records: list[dict[str, Any]], following: int | None = None) -> Answer:
    return Answer({"run_id": "run-1", "records": records, "next": following})


def records() -> list[dict[str, Any]]:
    """As a history has them: the run that a step calls is `run_id` there."""
    found: dict[int, dict[str, Any]] = {}
    for seq, _, event in STORY:
        plain = {"run_id" if name == "child_run_id" else name: value for name, value in event.items()}
        found.setdefault(seq, {"seq": seq, "at": "now", "events": []})["events"].append(plain)
    return list(found.values())


def test_without_a_stream_the_history_says_the_same(server: ApiServer) -> None:
    first, second, third = records()
    server.answers[f"GET {HISTORY_PATH}"] = [
        page([]), page([first], 3), page([second]), page([second]), page([second, third]),
    ]  # fmt: skip
    assert follow(server) == EXPECTED
    assert [dict(asked.query)["after"] for asked in server.asked[1:]] == ["0", "0", "3", "6", "6"]


def test_a_run_that_is_not_there_is_said_by_the_history(server: ApiServer) -> None:
    server.answers[f"GET {HISTORY_PATH}"] = problem(404, "not-found", "there is no such run")
    with pytest.raises(ApiError, match="there is no such run"):
        follow(server)


# --- trouble -----------------------------------------------------------------------------------------------


def test_trouble_is_told_and_so_is_its_end(server: ApiServer) -> None:
    said: list[str | None] = []
    busy = problem(503, "draining", "this server is going away")
    server.answers[f"GET {EVENTS_PATH}"] = [busy, streamed([*(told(*one) for one in STORY), END])]
    follow(server, trouble=said.append)
    assert said[0] is not None
    assert "going away" in said[0]
    assert said[1:] == [None] * (len(said) - 1)


def test_who_may_not_see_a_run_is_not_kept_waiting(server: ApiServer) -> None:
    server.answers[f"GET {EVENTS_PATH}"] = problem(403, "forbidden", "this key may not")
    with pytest.raises(ApiError, match="may not"):
        follow(server)
    assert len(server.asked) == 1


def test_a_server_that_stays_away_is_given_up(server: ApiServer) -> None:
    now = iter(range(0, 10_000, 100))
    server.answers[f"GET {EVENTS_PATH}"] = problem(503, "draining", "away")
    with pytest.raises(NoAnswerError, match="away"):
        follow(server, clock=lambda: float(next(now)))
    assert 2 <= len(server.asked) <= stream.GIVE_UP_SECONDS / 100 + 2


# --- the format --------------------------------------------------------------------------------------------


@given(st.data())
def test_however_the_bytes_are_cut_the_frames_are_the_same(data: st.DataObject) -> None:
    whole = GREETING + b"".join(told(*one) for one in STORY) + ALIVE + END + b"id: 10-0\ndata: {"
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    cut = [whole[begin:end] for begin, end in zip([0, *places], [*places, len(whole)], strict=True)]
    found = [frame for frame in frames(cut) if frame.data is not None]
    assert [frame.event for frame in found] == [*(event["type"] for _, _, event in STORY), "end"]
    assert [frame.place for frame in found] == [*((seq, index) for seq, index, _ in STORY), None]
    assert found[3].data is not None
    assert found[3].data["output"] == "one\u2028two\x85three"


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", b"data: [1]\n\n", b'data: {"a": \ndata: }\n\n'])
def test_an_event_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(CommandError, match="cannot be understood"):
        list(frames([data]))


def test_lines_may_end_as_on_other_systems() -> None:
    (frame,) = frames([b'id: 1-0\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\n'])
    assert (frame.place, frame.event, frame.data) == ((1, 0), "a", {"x": 1})


def test_an_event_without_an_end_is_not_collected_for_ever() -> None:
    piece = b"x" * (1024 * 1024)
    with pytest.raises(CommandError, match="no end"):
        list(frames(piece for _ in range(100)))
