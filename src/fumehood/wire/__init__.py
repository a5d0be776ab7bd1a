"""The outer contracts as typed models: no I/O, and nothing of ours but the errors is imported."""
