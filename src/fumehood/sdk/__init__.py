"""What people write against: the worker that takes tasks over NATS. Public names are those of `fumehood` itself."""
