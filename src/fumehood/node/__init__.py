"""A node: takes jobs, runs each in a sandbox of its own, and answers once, whatever happens to the process."""
