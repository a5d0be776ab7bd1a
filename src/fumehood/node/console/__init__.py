"""What a worker of the console does: commands, and calls to its sessions."""
