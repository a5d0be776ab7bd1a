"""All tools, in the order in which a model reads of them."""

from __future__ import annotations

from fumehood.mcp import command_tools, file_tools, output_tools, receipt_tools, session_tools, workflow_tools
from fumehood.mcp.tool import Tool

TOOLS: tuple[Tool, ...] = (
    *command_tools.TOOLS,
    *output_tools.TOOLS,
    *file_tools.TOOLS,
    *session_tools.TOOLS,
    *workflow_tools.TOOLS,
    *receipt_tools.TOOLS,
)
