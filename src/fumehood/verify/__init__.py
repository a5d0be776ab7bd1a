"""What can be checked afterwards: receipts, the keys that they are checked with, and what several answers come to."""
