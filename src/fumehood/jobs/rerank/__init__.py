"""`oa.retrieval_rerank.v1` without a model service."""
