"""Sessions: sandboxes that are kept under a lease for several commands."""
