"""The field: the engine bare, the floor below it, this system and its peers, in one run. `bench/README.md` says what is
compared."""
