"""Sandboxes in the web console: created, used by a terminal in the page, and their files, on a real `fumehood dev`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from tests.dev_process import Dev
from tests.e2e.web_visit import Visit, check
from tests.waiting import wait_until

PROMPT = "sandbox:"
STDIN = re.compile(r"/stdin\?")
OUTPUT = re.compile(r"/output\?")
PASTE = """(text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
    document.querySelector(".xterm-helper-textarea").dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def lab(api: httpx.Client, python_image: str) -> str:
    """A sandbox for tests that leave it there."""
    body = {"sandbox_id": "web-lab", "image": python_image, "lease_seconds": 1800}
    return str(api.post("/v1/sandboxes", json=body).raise_for_status().json()["sandbox_id"])


def content(api: httpx.Client, sandbox: str, path: str) -> str:
    return api.get(f"/v1/sandboxes/{sandbox}/files/content", params={"path": path}).text


def open_terminal(page: Page) -> str:
    """Waits for the shell, and returns the name of its command."""
    before = page.url
    page.get_by_role("button", name="Open a terminal").click()
    expect(page.locator(".xterm-rows")).to_contain_text(PROMPT)
    page.wait_for_url(lambda url: url != before)
    return str(re.findall(r"command=([\w-]+)", page.url)[0])


def type_line(page: Page, line: str) -> None:
    page.get_by_role("textbox", name="Terminal input").focus()
    page.keyboard.type(line)
    page.keyboard.press("Enter")


def test_a_sandbox_is_created_used_in_a_terminal_and_removed(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, python_image: str
) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Sandboxes").click()
    page.get_by_role("button", name="New sandbox").click()
    page.get_by_label("Image").fill(python_image)
    page.get_by_label("Name", exact=True).fill("made-in-the-page")
    page.get_by_label("Lease").select_option("10 minutes")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="made-in-the-page")).to_be_visible()
    expect(page.locator("dl")).to_contain_text(python_image.rpartition("@")[2])
    expect(page.locator("dl time").first).to_have_text(re.compile(r"^(10|[5-9]) min \d+ s$"))
    page.get_by_label("New lease").select_option("30 minutes from now")
    page.get_by_role("button", name="Extend").click()
    expect(page.locator("dl time").first).to_have_text(re.compile(r"^(30|2\d) min \d+ s$"))

    open_terminal(page)
    screen = page.locator(".xterm-rows")
    type_line(page, "echo $((6*7)) `tty`; stty size")
    expect(screen).to_contain_text(re.compile(r"42 /dev/pts/\d+"))
    type_line(page, r"printf '\033[38;2;255;120;0m%s\033[0m\n' or''ange")
    orange = screen.get_by_text("orange", exact=True)
    expect(orange).to_have_css("color", "rgb(255, 120, 0)")
    type_line(page, "while sleep 0.2; do stty size; done")
    expect(screen).to_contain_text(re.compile(r"\d+ 1\d\d(?!\d)"))
    page.set_viewport_size({"width": 800, "height": 900})
    expect(screen).to_contain_text(re.compile(r"\d+ [5-9]\d(?!\d)"))
    page.keyboard.press("Control+c")
    type_line(page, "echo be''fore")
    expect(screen).to_contain_text("before")

    page.reload()
    expect(screen).to_contain_text("before")
    type_line(page, "exit 3")
    expect(page.get_by_role("region", name="Chosen command")).to_contain_text("exit code 3")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    expect(page.get_by_role("link", name="made-in-the-page")).to_have_count(0)
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/made-in-the-page")
    expect(page.get_by_text("There is no such sandbox")).to_be_visible()


def test_what_was_typed_arrives_once_through_lost_answers_and_connections(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str
) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    open_terminal(page)
    lost: list[str] = []

    def lose_answer(route: Route) -> None:
        """The server takes the keys. First the page gets no answer, then one that is cut short."""
        if len(lost) == 2:
            route.continue_()
            return
        route.fetch()
        if lost:
            route.fulfill(body='{"stdin_by', content_type="application/json")
        else:
            route.abort()
        lost.append(route.request.url)

    page.route(STDIN, lose_answer)
    type_line(page, "echo $((3*14)) >> typed; wc -l < typed")
    expect(page.locator(".xterm-rows")).to_contain_text(re.compile(r"< typed\s*1\s*sandbox:"))
    wait_until(lambda: page.title() and len(lost) == 2)  # routes are called while the page is asked something
    page.unroute(STDIN)
    page.context.set_offline(True)
    type_line(page, "echo off''line | tee -a typed")
    page.context.set_offline(False)
    expect(page.locator(".xterm-rows")).to_contain_text("offline")
    assert content(api, lab, "typed") == "42\noffline\n"


def test_keys_of_another_person_do_not_replace_those_of_the_page(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str
) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    path = f"/v1/sandboxes/{lab}/commands/{open_terminal(page)}"
    offset = api.get(path).raise_for_status().json()["stdin_bytes"]
    headers = {"content-type": "application/octet-stream"}
    api.post(f"{path}/stdin?offset={offset}", content=b"echo 1 >> both\n", headers=headers).raise_for_status()
    page.evaluate(PASTE, "echo 2 >> both; echo 3 >> both")
    page.keyboard.press("Enter")
    wait_until(lambda: content(api, lab, "both") == "1\n2\n3\n")


def test_keys_arrive_when_their_terminal_is_no_longer_shown(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str
) -> None:
    """Nor must its output have been shown before."""
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    open_terminal(page)
    page.route(OUTPUT, lambda route: route.abort())
    page.reload()
    expect(page.get_by_text("The connection is lost")).to_be_visible()
    page.route(STDIN, lambda route: route.abort())
    type_line(page, "echo late > late")
    expect(page.get_by_text("has not arrived yet")).to_be_visible()
    page.get_by_role("link", name="Sandboxes").click()
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    page.unroute(STDIN)
    wait_until(lambda: content(api, lab, "late") == "late\n")


def test_a_watched_terminal_keeps_its_sandbox(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, base_image: str
) -> None:
    body = {"sandbox_id": "web-short", "image": base_image, "lease_seconds": 200}
    api.post("/v1/sandboxes", json=body).raise_for_status()
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/web-short")
    expect(page.locator("dl time").first).to_have_text(re.compile(r"^[1-3] min \d+ s$"))
    open_terminal(page)
    expect(page.locator("dl time").first).to_have_text(re.compile(r"^4 min \d+ s$"))
    api.delete("/v1/sandboxes/web-short").raise_for_status()
    expect(page.get_by_text("There is no such sandbox")).to_be_visible()


def test_a_terminal_that_is_opened_again_does_not_answer_old_questions(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str
) -> None:
    """The program asks what the terminal is; its answer, given twice, would be taken for keys."""
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    command = open_terminal(page)
    type_line(page, r"printf '\033[c'; read -n 7 -s answer; echo ${#answer} byt''es")
    screen = page.locator(".xterm-rows")
    expect(screen).to_contain_text("7 bytes")

    def typed() -> int:
        return int(api.get(f"/v1/sandboxes/{lab}/commands/{command}").raise_for_status().json()["stdin_bytes"])

    before = typed()
    page.reload()
    expect(screen).to_contain_text("7 bytes")
    type_line(page, "echo a''gain")
    expect(screen).to_contain_text("again")
    assert typed() == before + len("echo a''gain\n")


def upload(page: Page, *files: Path) -> None:
    """Once the page has ended what it did before: until then it takes no files."""
    field = page.get_by_label("Upload")
    expect(field).to_be_enabled()
    field.set_input_files(files)


def test_files_are_uploaded_downloaded_and_deleted(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str, tmp_path: Path
) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    page.once("dialog", lambda dialog: dialog.accept("data"))
    page.get_by_role("button", name="New folder").click()
    page.get_by_role("link", name="data/", exact=True).click()
    expect(page).to_have_url(re.compile(r"folder=%2Fworkspace%2Fdata"))
    expect(page.get_by_text("This folder is empty")).to_be_visible()
    every_byte = bytes(range(256)) * 4096 * 3
    (tmp_path / "all bytes.bin").write_bytes(every_byte)
    (tmp_path / "empty").touch()
    upload(page, tmp_path / "all bytes.bin", tmp_path / "empty")
    expect(page.get_by_role("row", name="all bytes.bin")).to_contain_text("3.0 MiB")
    expect(page.get_by_role("row", name="empty")).to_contain_text("0 bytes")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="all bytes.bin", exact=True).click()
    assert downloading.value.suggested_filename == "all bytes.bin"
    assert downloading.value.path().read_bytes() == every_byte
    with page.expect_download() as downloading:
        page.get_by_role("button", name="empty", exact=True).click()
    assert downloading.value.path().read_bytes() == b""

    (tmp_path / "empty").write_text("not any more")
    asked: list[str] = []

    def refuse(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    written: list[str] = []
    page.on("request", lambda request: written.append(request.url) if request.method == "PUT" else None)
    page.once("dialog", refuse)
    with page.expect_event("dialog"):
        upload(page, tmp_path / "empty")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete all bytes.bin").click()
    expect(page.get_by_role("row", name="all bytes.bin")).to_have_count(0)
    expect(page.get_by_role("row", name="empty")).to_contain_text("0 bytes")
    assert (asked, written) == (["Replace empty?"], [])
    api.put(
        f"/v1/sandboxes/{lab}/files/content",
        params={"path": "data/\u202efdp\033[m.exe\n"},
        content=b"",
        headers={"content-type": "application/octet-stream"},
    ).raise_for_status()
    expect(page.get_by_role("button", name=r"\u{202e}fdp␛[m.exe␊", exact=True)).to_be_visible()


def test_an_image_that_is_not_admitted_is_refused_with_the_reason(visit_to_dev: Visit, dev: Dev) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes")
    page.get_by_role("button", name="New sandbox").click()
    page.get_by_label("Image").fill(f"registry.example/evil@sha256:{'0' * 64}")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("registry.example")
    expect(page.get_by_role("button", name="Create")).to_be_enabled()


def test_a_key_that_may_only_read_watches_a_terminal(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str
) -> None:
    body = {"command": "echo watched; read line; echo never", "terminal": {"rows": 24, "columns": 80}, "stdin": True}
    started = api.post(f"/v1/sandboxes/{lab}/commands", json={**body, "background": True}).raise_for_status().json()
    made = api.post("/v1/keys", json={"name": "reader", "scopes": ["sandboxes:read"]}).raise_for_status().json()
    page = visit_to_dev.page
    visit_to_dev.give(made["key"])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method != "GET" else None)
    page.get_by_role("link", name=lab).click()
    page.get_by_role("link", name="echo watched").click()
    expect(page.locator(".xterm-rows")).to_contain_text("watched")
    type_line(page, "typed")
    for name in ("Open a terminal", "Kill", "Extend", "Remove", "New folder"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_label("Upload")).to_have_count(0)
    expect(page.get_by_role("link", name="Runs")).to_have_count(0)
    path = f"/v1/sandboxes/{lab}/commands/{started['command_id']}"
    api.post(f"{path}:signal", json={"signal": "SIGKILL"}).raise_for_status()
    expect(page.get_by_role("region", name="Chosen command")).to_contain_text("signal 9")
    assert [url for url in asked if not url.endswith("/v1/sign-in")] == []
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_output_of_a_command_is_shown_with_both_streams(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, lab: str
) -> None:
    body = {"command": "printf 'caf\\303'; sleep 0.2; printf '\\251\\n'; echo wrong >&2; exit 7"}
    api.post(f"/v1/sandboxes/{lab}/commands", json=body).raise_for_status()
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    page.get_by_role("link", name="exit 7").click()
    expect(page.locator(".log .stdout")).to_have_text("café")
    expect(page.locator(".log .stderr")).to_contain_text("wrong")
    expect(page.get_by_role("region", name="Chosen command")).to_contain_text("exit code 7")
    gone = 'event: end\ndata: {"stdout_bytes": 5000, "stderr_bytes": 0}\n\n'
    page.route(re.compile(r"/output$"), lambda route: route.fulfill(body=gone, content_type="text/event-stream"))
    page.reload()
    expect(page.locator(".log")).to_have_text("5000 bytes of stdout are left out")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everyone_can_use_it(visit_to_dev: Visit, dev: Dev, lab: str, scheme: Any, width: int) -> None:
    """No serious finding of axe, nothing wider than the screen, and the keyboard leaves the terminal."""
    page = visit_to_dev.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/sandboxes")
    expect(page.get_by_role("link", name=lab)).to_be_visible()
    page.get_by_role("button", name="New sandbox").press("Enter")
    expect(page.get_by_label("Image")).to_be_focused()
    check(page)
    page.goto(f"{visit_to_dev.url}/ui/sandboxes/{lab}")
    open_terminal(page)
    expect(page.get_by_role("textbox", name="Terminal input")).to_be_focused()
    check(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("textbox", name="Terminal input")).to_be_focused()
    page.keyboard.press("Control+Shift+X")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Kill")).to_be_focused()
