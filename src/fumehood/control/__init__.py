"""The server's use cases: start, decide, watch and end runs. The doors (`http/`, `rpc/`, `mcp/`) stand on it."""
