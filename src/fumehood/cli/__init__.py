"""The command line: one file for each group of commands. It is also where the parts are put together."""
