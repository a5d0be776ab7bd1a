"""Sandboxes that were started before they are asked for."""
