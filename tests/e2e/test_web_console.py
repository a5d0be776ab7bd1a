"""The web console in Chromium: the built page, a real server and a real broker."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from fumehood.cli.dev_receipts import ROOT_KEY
from fumehood.cli.processes import held_port
from fumehood.cli.receipt_files import root_in
from fumehood.node.signing import ReceiptKeys
from fumehood.sdk.own_dev import RECEIPT_KEYS
from fumehood.verify import keylist, receipt
from fumehood.verify.dsse import SigningKey
from tests.conformance.broker_bench import NatsServer
from tests.dev_process import Dev
from tests.e2e.web_visit import Visit, check, visiting
from tests.http_worker import EVERY_KIND, FRAGILE, HttpWorker
from tests.server_process import ServerProcess
from tests.waiting import wait_until

INPUT = {"who": "you", "items": ["cup", "plate"]}


@dataclass
class Cell:
    """A server with a worker, and requests to it that do not come from the page."""

    server: ServerProcess
    worker: HttpWorker

    def post(self, path: str, body: object = None) -> Any:
        with self.server.client() as client:
            return client.post(path, json=body).raise_for_status().json()

    def start(self, workflow: str, given: object = None) -> str:
        return str(self.post(f"/v1/workflows/{workflow}/runs", {"input": given})["run_id"])

    def until(self, run_id: str, look: Callable[[dict[str, Any]], bool]) -> None:
        with self.server.client() as client:
            wait_until(lambda: look(client.get(f"/v1/runs/{run_id}").raise_for_status().json()))

    def events(self, run_id: str) -> int:
        with self.server.client() as client:
            said = client.get(f"/v1/runs/{run_id}/history", params={"limit": 200}).raise_for_status().json()
        assert said["next"] is None
        return sum(len(record["events"]) for record in said["records"])

    def key(self, *scopes: str) -> dict[str, Any]:
        made: dict[str, Any] = self.post("/v1/keys", {"name": "somebody", "scopes": scopes})
        return made


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("web")
    nats = NatsServer(folder / "nats", 1)
    nats.start()
    try:
        with ServerProcess(folder, nats, port=held_port()) as server, HttpWorker(server) as worker:
            with server.client() as client:
                for text in (EVERY_KIND, FRAGILE):
                    name = re.findall(r"^name: (\w+)", text, re.MULTILINE)[0]
                    headers = {"content-type": "application/yaml"}
                    client.put(f"/v1/workflows/{name}", content=text, headers=headers).raise_for_status()
            yield Cell(server, worker)
    finally:
        nats.kill()


@pytest.fixture
def visit(chromium: Browser, cell: Cell) -> Iterator[Visit]:
    with visiting(chromium, cell.server.url) as made:
        yield made


def test_signing_in_and_out(visit: Visit, cell: Cell) -> None:
    visit.give("guess")
    expect(visit.page.get_by_role("alert")).to_have_text("This key is wrong, expired or revoked")
    visit.sign_in(cell.server.token)
    visit.page.reload()
    expect(visit.page.get_by_role("heading", name="Runs")).to_be_visible()
    assert visit.page.evaluate("document.cookie") == ""
    visit.page.get_by_role("button", name="Sign out").click()
    expect(visit.page.get_by_label("API key")).to_be_visible()


def test_a_run_is_watched_and_helped_to_its_end(visit: Visit, cell: Cell) -> None:
    """Without a reload: steps, an approval and a signal."""
    run_id = cell.start("order", INPUT)
    visit.sign_in(cell.server.token)
    visit.page.get_by_role("link", name=run_id).click()
    visit.step("ask", "awaiting approval")
    visit.step("paid", "listening")
    visit.page.get_by_label("Comment").fill("fine")
    visit.page.get_by_role("button", name="Approve").click()
    visit.step("ask", "completed")
    visit.page.get_by_role("button", name="paid", exact=True).click()
    visit.page.get_by_label("Data of the signal").fill('{"euros": 3}')
    visit.page.get_by_role("button", name="Send").click()
    visit.status("succeeded")
    expect(visit.page.get_by_text("hello the hello you")).to_be_visible()
    given = visit.page.locator("summary", has_text="approval.given")
    given.click()
    expect(visit.page.locator("details[open]")).to_contain_text('"comment": "fine"')
    visit.page.get_by_role("button", name="pack--1").click()
    expect(visit.page.get_by_role("region", name="Step pack--1")).to_contain_text("completed")


def test_failed_runs_are_found_and_retried(visit: Visit, cell: Cell) -> None:
    cell.worker.is_bad.set()
    run_id = cell.start("fragile")
    cell.until(run_id, lambda run: run["status"] == "failed")
    visit.sign_in(cell.server.token)
    visit.page.get_by_label("Status").select_option("failed")
    expect(visit.page).to_have_url(re.compile(r"\?status=failed$"))
    row = visit.page.get_by_role("row", name=run_id)
    expect(row).to_contain_text("not today")
    visit.page.reload()
    row.get_by_role("checkbox").check()
    expect(visit.page.get_by_role("button", name="Stop")).to_be_disabled()
    cell.worker.is_bad.clear()
    visit.page.get_by_role("button", name="Retry").click()
    expect(row).to_have_count(0)
    visit.open(run_id)
    visit.status("succeeded")
    expect(visit.page.get_by_text("run.retried")).to_be_visible()
    expect(visit.page.locator(".history li")).to_have_count(cell.events(run_id))


def test_the_list_changes_by_itself(visit: Visit, cell: Cell) -> None:
    visit.sign_in(cell.server.token)
    run_id = cell.start("order", INPUT)
    row = visit.page.get_by_role("row", name=run_id)
    expect(row).to_contain_text("running")
    row.get_by_role("checkbox").check()
    visit.page.get_by_role("button", name="Stop").click()
    expect(row).to_contain_text("cancelled")


def test_the_page_goes_on_after_the_server_was_killed(visit: Visit, cell: Cell) -> None:
    run_id = cell.start("order", INPUT)
    visit.sign_in(cell.server.token)
    visit.open(run_id)
    visit.step("ask", "awaiting approval")
    cell.server.kill()
    cell.server.launch()
    cell.server.wait()
    cell.post(f"/v1/runs/{run_id}/steps/ask:approve", {})
    visit.step("ask", "completed")
    cell.post(f"/v1/runs/{run_id}/signals/paid", {"data": 1})
    visit.status("succeeded")
    expect(visit.page.locator(".history li")).to_have_count(cell.events(run_id))


def test_what_a_key_may_not_do_is_not_offered(visit: Visit, cell: Cell) -> None:
    run_id = cell.start("order", INPUT)
    made = cell.key("runs:read")
    visit.sign_in(made["key"])
    expect(visit.page.get_by_role("row", name=run_id)).to_be_visible()
    expect(visit.page.get_by_role("checkbox")).to_have_count(0)
    visit.open(run_id)
    visit.step("ask", "awaiting approval")
    expect(visit.page.get_by_text("Your key cannot decide")).to_be_visible()
    for name in ("Stop", "Approve", "Reject"):
        expect(visit.page.get_by_role("button", name=name)).to_have_count(0)
    with cell.server.client() as client:
        client.delete(f"/v1/keys/{made['id']}").raise_for_status()
    expect(visit.page.get_by_label("API key")).to_be_visible()
    cell.post(f"/v1/runs/{run_id}:cancel", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everyone_can_use_it(visit: Visit, cell: Cell, scheme: Any, width: int) -> None:
    """No serious finding of axe, and nothing is wider than the screen."""
    run_id = cell.start("order", INPUT)
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.set_viewport_size({"width": width, "height": 844})
    visit.page.goto(f"{visit.url}/")
    expect(visit.page.get_by_label("API key")).to_be_visible()
    check(visit.page)
    visit.sign_in(cell.server.token)
    expect(visit.page.get_by_role("link", name=run_id)).to_be_visible()
    check(visit.page)
    visit.open(run_id)
    visit.step("ask", "awaiting approval")
    expect(visit.page.get_by_role("button", name="Approve")).to_be_visible()
    check(visit.page)
    cell.post(f"/v1/runs/{run_id}:cancel", {})


def test_the_keyboard_is_enough(visit: Visit, cell: Cell) -> None:
    run_id = cell.start("order", INPUT)
    visit.page.goto(f"{visit.url}/")
    expect(visit.page.get_by_label("API key")).to_be_focused()
    visit.page.keyboard.type(cell.server.token)
    visit.page.keyboard.press("Enter")
    visit.page.get_by_role("link", name="Runs", exact=True).press("Enter")
    link = visit.page.get_by_role("link", name=run_id)
    expect(link).to_be_visible()
    link.press("Enter")
    visit.step("ask", "awaiting approval")
    node = visit.page.locator(".react-flow__node[data-id=paid]")
    node.press("Enter")
    expect(visit.page.get_by_role("region", name="Step paid")).to_be_visible()
    cell.post(f"/v1/runs/{run_id}:cancel", {})


# --- receipts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signed:
    """The receipt of a step on a real node, and the keys behind it."""

    receipt: dict[str, Any]
    root: SigningKey
    node: SigningKey
    listed: keylist.KeyList

    def published(self, version: int | None = None, **of_the_key: Any) -> dict[str, Any]:
        """The list with changed fields of the node's key, signed by the right root."""
        version = self.listed.version if version is None else version
        keys = [
            key.model_copy(update=of_the_key) if key.key_id == self.node.key_id else key for key in self.listed.keys
        ]
        return keylist.published(self.listed.model_copy(update={"version": version, "keys": tuple(keys)}), self.root)

    def by_another_root(self) -> dict[str, Any]:
        return keylist.published(self.listed, SigningKey.generate())

    def signed_again(self, old: bytes, new: bytes) -> dict[str, Any]:
        """The receipt with a changed part, signed by the node itself."""
        payload = base64.b64decode(self.receipt["payload"])
        assert payload.count(old) == 1
        return self.node.sign(receipt.PAYLOAD_TYPE, payload.replace(old, new))

    def forged(self) -> dict[str, Any]:
        """With a byte changed, under the old signature."""
        payload = base64.b64decode(self.receipt["payload"]).replace(b'"exit_code":0', b'"exit_code":1')
        return {**self.receipt, "payload": base64.b64encode(payload).decode()}


def saying(answer: object) -> Callable[[Route], None]:
    """JSON, or a text of Server-Sent Events; after the last of several such texts all was seen."""
    if isinstance(answer, list):
        parts = iter(answer)
        return lambda route: saying(part)(route) if (part := next(parts, None)) else route.fulfill(status=204)
    if isinstance(answer, str):
        return lambda route: route.fulfill(body=answer, content_type="text/event-stream")
    return lambda route: route.fulfill(json=answer)


Event = tuple[str, dict[str, Any] | None]


def events(*told: Event) -> str:
    return "".join(f"event: {event}\ndata: {json.dumps(said)}\n\n" for event, said in told)


def printing(*told: Event) -> str:
    """The log stream of an attempt that prints this."""
    return events(("start", {"attempt": 1}), *told, ("end", {"attempt": 1, "stdout": 0, "stderr": 0}))


def with_step(run: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**run, "steps": {**run["steps"], "say": {**run["steps"]["say"], **changes}}}


def answers(signed: Signed, root: SigningKey, seen: dict[str, Any]) -> dict[str, list[tuple[str, Any, str]]]:
    """What a server may answer in place of the truth, by what the page must say of it: the path, the answer, and a part
    of the page's reason."""
    run_id = seen["run_id"]
    said = seen["steps"]["say"]["output"]
    streams = {**said["streams"], "stdout": {"sha256": "0" * 64}}
    error = {"code": "exit", "message": "the command ended with exit code 1", "details": said}
    true = ("stdout", {"offset": 0, "text": "shown in the page\n"})
    lie = ("stdout", {"offset": 0, "text": "something else\n"})
    deep = "[" * 70 + "]" * 70
    early = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    wanted = "steps/say/receipt"
    refused: list[tuple[str, Any, str]] = [
        (wanted, signed.forged(), "signature_invalid"),
        (wanted, signed.signed_again(b'"attempt":1', b'"attempt":2'), "task_mismatch"),
        (wanted, signed.signed_again(b'"kind":"sandbox_run"', b'"kind":"command"'), "task_mismatch"),
        (wanted, signed.signed_again(b'"exit_code":0', b'"exit_code":1'), "outcome_mismatch"),
        (wanted, signed.signed_again(b'"exit_code":0', b'"exit_code":1,"exit_code":0'), "malformed"),
        (wanted, signed.signed_again(b'"capabilities":', f'"a":{deep},"capabilities":'.encode()), "malformed"),
        (wanted, SigningKey.generate().sign(receipt.PAYLOAD_TYPE, b"{}"), "unknown_key"),
        (wanted, {**signed.receipt, "more": 1}, "malformed"),
        (wanted, {**signed.receipt, "signatures": [None]}, "malformed"),
        (wanted, {**signed.receipt, "payload": {}}, "malformed"),
        ("receipt-keys", None, "malformed"),
        ("receipt-keys", {**signed.published(), "root": {}}, "malformed"),
        ("receipt-keys", {**signed.published(), "list": None}, "malformed"),
        ("receipt-keys", signed.by_another_root(), "wrong_root"),
        ("receipt-keys", {**signed.by_another_root(), "root": root.public_key.hex()}, "signature_invalid"),
        ("receipt-keys", signed.published(revoked_at=early, revoked_because="stolen"), "revoked_key"),
        ("receipt-keys", signed.published(not_before=early, not_after=early), "key_not_valid_then"),
        ("receipt-keys", signed.published(worker="somebody-else"), "wrong_worker"),
        ("receipt-keys", signed.published(version=signed.listed.version - 1), "older_list"),
        (run_id, with_step(seen, output={**said, "exit_code": 1}), "outcome_mismatch"),
        (run_id, with_step(seen, output={**said, "streams": streams}), "output_mismatch"),
        (run_id, with_step(seen, status="failed", output=None, error=error), "outcome_mismatch"),
        (run_id, with_step(seen, error={"code": "oom", "message": "it was killed"}), "outcome_mismatch"),
        ("logs/stream", printing(lie), "output_mismatch"),
        ("logs/stream", printing(), "output_mismatch"),
        ("logs/stream", events(("start", {"attempt": 0.5}), lie) + printing(true), "output_mismatch"),
        ("logs/stream", printing(true, ("stdout", None), lie), "output_mismatch"),
    ]
    cut = {"stream": "stdout", "offset": 0, "resumes_at": 19}
    partial: list[tuple[str, Any, str]] = [
        ("logs/stream", printing(("cut", cut)), "a part of it is left out"),
        ("logs/stream", printing(("stdout", {"offset": 0, "text": "shown \ufffd\n"})), "bytes that are not text"),
        ("logs/stream", printing(("stdout", {"offset": 0, "text": "shown \ud83d"})), "bytes that are not text"),
        ("logs/stream", events(("end", {"attempt": 1})), "the server does not have it"),
        (run_id, with_step(seen, output={"stdout": "something else"}), "outcome of the step is not available"),
    ]
    begun = 'id: 1.0.0\nevent: start\ndata: {"attempt": 1}\n\n'
    verified: list[tuple[str, Any, str]] = [
        ("logs/stream", printing(true) + printing(lie), "byte for byte"),
        ("logs/stream", [begun, f"id: 1.18.0\n{events(true)}"], "byte for byte"),
    ]
    return {"refused": refused, "verified": verified, "verified in part": partial}


def test_a_receipt_is_checked_in_the_page(visit_to_dev: Visit, dev: Dev, base_image: str) -> None:
    """First a good one; then the server lies in many ways."""
    visit, page = visit_to_dev, visit_to_dev.page
    visit.sign_in(dev.facts["tokens"]["admin"])
    with dev.client() as client:
        sandbox = {"image": base_image, "command": ["bash", "-c", "echo shown in the page"]}
        foreign = {"image": f"registry.example/evil@sha256:{'0' * 64}"}
        steps = [{"id": "say", "sandbox": sandbox}, {"id": "evil", "sandbox": foreign, "on_failure": "continue"}]
        definition = {"name": "signed", "steps": steps}
        client.put("/v1/workflows/signed", json=definition).raise_for_status()
        run_id = client.post("/v1/workflows/signed/runs", json={}).raise_for_status().json()["run_id"]
        page.get_by_role("link", name=run_id).click()
        visit.status("succeeded")
        panel = page.get_by_role("region", name="Receipt")
        page.get_by_role("button", name="evil", exact=True).click()
        expect(panel.locator(".status")).to_have_text("signed, root not compared")
        expect(panel.locator(".evidence")).to_contain_text("registry not allowed")
        page.get_by_role("button", name="say", exact=True).click()
        expect(page.get_by_text("shown in the page", exact=True)).to_be_visible()
        expect(panel).to_contain_text(base_image.rpartition("@")[2])
        expect(panel.get_by_role("listitem")).to_have_count(5)
        check(page)
        panel.get_by_role("button", name="rely on this root").click()
        expect(panel).to_contain_text("the root that you rely on")
        expect(panel.locator(".status")).to_have_text("verified")
        signed = Signed(
            client.get(f"/v1/runs/{run_id}/steps/say/receipt").raise_for_status().json(),
            root := root_in(dev.state / ROOT_KEY),
            ReceiptKeys.load(dev.state / "node").current,
            keylist.read_published(json.loads((dev.state / RECEIPT_KEYS).read_text()), root.public_key),
        )
        seen = client.get(f"/v1/runs/{run_id}").raise_for_status().json()
    for status, told in answers(signed, root, seen).items():
        for path, answer, words in told:
            page.route(f"**/{path}", saying(answer))
            page.reload()
            expect(panel.locator(".status")).to_have_text(status)
            expect(panel).to_contain_text(words)
            expect(panel.locator(".evidence")).to_have_count(int(status != "refused"))
            if status != "refused":
                expect(page.get_by_text("something else")).to_have_count(0)
            page.unroute(f"**/{path}")
    evil = seen["steps"]["evil"]
    evil |= {"status": "completed", "output": evil["error"]["details"], "error": None}
    page.route(f"**/{run_id}", saying(seen))
    page.goto(f"{visit.url}/ui/runs/{run_id}?step=evil")
    expect(panel.get_by_role("alert")).to_contain_text("outcome_mismatch")
    page.unroute(f"**/{run_id}")
    page.goto(f"{visit.url}/ui/runs/{run_id}?step=evil")
    expect(panel.locator(".status")).to_have_text("verified")
    page.goto(f"{visit.url}/ui/runs/{run_id}?step=say")
    page.evaluate("localStorage.setItem('fumehood-receipt-root', '{')")
    page.reload()
    expect(panel.locator(".status")).to_have_text("signed, root not compared")


def test_the_output_of_a_step_is_followed_and_searched(visit_to_dev: Visit, dev: Dev, base_image: str) -> None:
    visit, page = visit_to_dev, visit_to_dev.page
    visit.sign_in(dev.facts["tokens"]["admin"])
    panel, output = page.get_by_role("region", name="Receipt"), page.get_by_role("region", name="Output", exact=True)
    log = output.get_by_role("log")
    with dev.client() as client:

        def started(name: str, script: str) -> str:
            sandbox = {"image": base_image, "command": ["bash", "-c", script], "must_succeed": True}
            definition = {"name": name, "steps": [{"id": "box", "sandbox": sandbox}]}
            client.put(f"/v1/workflows/{name}", json=definition).raise_for_status()
            return str(client.post(f"/v1/workflows/{name}/runs", json={}).raise_for_status().json()["run_id"])

        visit.open(started("waits", "echo begun; exec sleep 600"))
        page.locator(".react-flow__node[data-id=box]").click()
        expect(log).to_have_text("begun")
        visit.status("running")
        page.get_by_role("button", name="Stop").click()
        visit.status("cancelled")
        expect(log).to_contain_text("begun")

        run_id = started("fails", r"seq -f 'line %g' 3000; echo; echo -e '\e[31mno such thing\r' >&2; exit 3")
        visit.open(run_id)
        visit.status("failed")
        page.locator(".react-flow__node[data-id=box]").click()
        expect(output.get_by_text("3002 lines")).to_be_visible()
        expect(log.locator(".stderr")).to_have_text("stderr: no such thing")
        expect(panel).to_contain_text("byte for byte")
        expect(log.get_by_text("line 2", exact=True)).to_have_count(0)
        output.get_by_role("button", name="earlier lines").click()
        output.get_by_role("button", name="earlier lines").click()
        output.get_by_role("button", name="earlier lines").click()
        expect(log.get_by_text("line 2", exact=True)).to_have_count(1)
        output.get_by_role("searchbox").fill("LINE 29")
        expect(output.get_by_role("status")).to_have_text("111 of 3002 lines")
        expect(log.locator("mark")).to_have_count(111)
        check(page)
        step = client.get(f"/v1/runs/{run_id}").raise_for_status().json()["steps"]["box"]
        assert step["error"]["details"]["stderr_tail"] == "\x1b[31mno such thing\r\n"
        logs = client.get(f"/v1/runs/{run_id}/steps/box/logs", params={"tail_lines": 2}).raise_for_status().json()
        assert logs["stdout"] == "line 3000\n\n"


def test_no_key_is_asked_for_where_it_would_cross_a_network_in_clear(visit: Visit) -> None:
    visit.page.goto(visit.url.replace("127.0.0.1", "elsewhere.test"))
    expect(visit.page.get_by_role("alert")).to_contain_text("Use HTTPS")
    expect(visit.page.get_by_label("API key")).to_have_count(0)
    visit.wrong.clear()  # it is another host
