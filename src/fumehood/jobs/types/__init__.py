"""One module for each job type; `jobs/registry.py` finds them."""
