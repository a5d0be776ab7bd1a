"""Fumehood runs what agents write: untrusted code in locked-down containers, with results that can be checked.

The names exported here are the SDK's public surface; everything else may move between releases.
"""

from importlib.metadata import version

__version__ = version("fumehood")

__all__ = ["__version__"]
