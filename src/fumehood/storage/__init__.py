"""What a process keeps on the disk of its machine: SQLite files with a thread each, and folders that are one's own."""
