"""Job types: two models and a handler each, and the registry that knows them. No broker, no sandbox, no door."""
