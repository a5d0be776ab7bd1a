"""The MCP server: what agent programs use Fumehood through. It asks as any other caller does, through the SDK."""
