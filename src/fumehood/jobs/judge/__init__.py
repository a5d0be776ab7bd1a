"""`oa.candidate_judge.v1` without a model service."""
