"""Tests of logic do not wait for the real clock."""

from tests.virtual_time import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
