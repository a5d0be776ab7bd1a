"""The broker layer: the only home of `nats`. Others use `ports`, tests of logic use `memory`."""
