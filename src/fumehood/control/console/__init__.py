"""The console: whom workers dial in to, and what is asked of them."""
