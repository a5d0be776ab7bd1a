"""How the usual agent programs are told about an MCP server: where their configuration lies, and what stands in it.

No key is ever part of it: over stdio `fumehood mcp` finds it as every command does, over HTTP the program reads it from
its environment or asks its user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NAME = "fumehood"
VARIABLE = "FUMEHOOD_API_KEY"


@dataclass(frozen=True, slots=True)
class Way:
    """How the server is reached: a program to start, or an address."""

    words: Sequence[str] = ()
    url: str | None = None

    def entry(self, key: str, address: str = "url", **more: Any) -> dict[str, Any]:
        """`key`: how the program names a variable of its environment. `address`: its word for a URL."""
        if self.url is None:
            return {**more, "command": self.words[0], "args": list(self.words[1:])}
        return {**more, address: self.url, "headers": {"Authorization": f"Bearer {key}"}}

    @property
    def kind(self) -> str:
        return "stdio" if self.url is None else "http"


@dataclass(frozen=True, slots=True)
class Program:
    title: str
    place: str
    """Where its configuration lies, for people."""
    document: Callable[[Way], dict[str, Any]]
    note: str = ""
    is_toml: bool = False

    def text(self, way: Way) -> str:
        """What stands in its configuration."""
        document = self.document(way)
        if not self.is_toml:
            return json.dumps(document, indent=2, ensure_ascii=False)
        ((table, servers),) = document.items()
        # Strings and lists of strings are the same in TOML as in JSON.
        entries = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in servers[NAME].items()]
        return "\n".join([f"[{table}.{NAME}]", *entries])


def _servers(key: str, address: str = "url") -> Callable[[Way], dict[str, Any]]:
    return lambda way: {"mcpServers": {NAME: way.entry(key, address)}}


def _claude_code(way: Way) -> dict[str, Any]:
    return {"mcpServers": {NAME: way.entry(f"${{{VARIABLE}}}", type=way.kind)}}


def _vs_code(way: Way) -> dict[str, Any]:
    servers = {"servers": {NAME: way.entry("${input:fumehood-key}", type=way.kind)}}
    if way.url is None:
        return servers
    asked = {"type": "promptString", "id": "fumehood-key", "description": "Fumehood API key", "password": True}
    return {"inputs": [asked], **servers}


def _zed(way: Way) -> dict[str, Any]:
    return {"context_servers": {NAME: way.entry("YOUR_KEY") | ({"env": {}} if way.url is None else {})}}


def _codex(way: Way) -> dict[str, Any]:
    """It takes no header with a key, but the name of a variable that has it."""
    by_url = {"url": way.url, "bearer_token_env_var": VARIABLE}
    return {"mcp_servers": {NAME: way.entry("") if way.url is None else by_url}}


def _claude_desktop(way: Way) -> dict[str, Any]:
    """It starts programs only; a server elsewhere is reached through ours."""
    return {"mcpServers": {NAME: Way(way.words).entry("")}}


PROGRAMS: dict[str, Program] = {
    "claude-desktop": Program(
        "Claude Desktop",
        "~/Library/Application Support/Claude/claude_desktop_config.json (macOS), "
        "%APPDATA%\\Claude\\claude_desktop_config.json (Windows)",
        _claude_desktop,
        "it starts programs only: a server elsewhere is reached with `fumehood login`",
    ),
    "claude-code": Program(
        "Claude Code",
        ".mcp.json in the project, or `claude mcp add fumehood -- fumehood mcp`",
        _claude_code,
    ),
    "codex": Program(
        "Codex",
        "~/.codex/config.toml, or `codex mcp add fumehood -- fumehood mcp`",
        _codex,
        is_toml=True,
    ),
    "gemini-cli": Program(
        "Gemini CLI",
        "~/.gemini/settings.json, or .gemini/settings.json in the project",
        _servers(f"${{{VARIABLE}}}", "httpUrl"),
    ),
    "cursor": Program(
        "Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in the project", _servers(f"${{env:{VARIABLE}}}")
    ),
    "windsurf": Program(
        "Windsurf", "~/.codeium/windsurf/mcp_config.json", _servers(f"${{env:{VARIABLE}}}", "serverUrl")
    ),
    "vscode": Program("VS Code", ".vscode/mcp.json in the project, or `MCP: Open User Configuration`", _vs_code),
    "zed": Program(
        "Zed", "~/.config/zed/settings.json", _zed, "over HTTP its settings hold the key itself: prefer stdio"
    ),
    "json": Program("any other", "wherever the program keeps its MCP servers", _servers(f"${{{VARIABLE}}}")),
}
