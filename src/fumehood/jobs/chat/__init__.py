"""Job types done by a model behind any endpoint that speaks the OpenAI protocol."""
