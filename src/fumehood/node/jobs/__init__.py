"""The provider: takes executions of jobs, does each with a handler, and signs a receipt for what it found."""
