"""`python -m fumehood` is `fumehood`."""

from fumehood.cli.main import main

main()
