"""Jobs: runs of N executions on distinct providers, and a verdict over what they answered."""
