"""All ports over one connection to NATS."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets

from fumehood.broker import names
from fumehood.broker.audit import NatsAuditLog
from fumehood.broker.blobs import NatsBlobs
from fumehood.broker.connection import Connection, ConnectionOptions
from fumehood.broker.feed import NatsFeed
from fumehood.broker.keys import NatsKeyValue
from fumehood.broker.logs import NatsRunLogs
from fumehood.broker.ports import Bucket
from fumehood.broker.queue import NatsTaskQueue
from fumehood.broker.runs import NatsHistories, NatsJournal, NatsMailboxes, NatsTimers
from fumehood.broker.switchboard import NatsSwitchboard
from fumehood.broker.topology import BUCKET_SPECS, Report, Shape, ensure
from fumehood.errors import BrokerDeniedError, BrokerUnavailableError, KeyConflictError, TopologyError


class NatsBroker:
    """One process's connection. `open` for our own processes, `open_worker` for outsiders."""

    def __init__(self, connection: Connection, shape: Shape, *, outsider: bool = False) -> None:
        self.connection = connection
        self.shape = shape
        self.report = Report((), ())
        """What `open` found and made."""
        self._outsider = outsider
        self.journal = NatsJournal(connection, shape)
        self.mailboxes = NatsMailboxes(connection, shape)
        self.histories = NatsHistories(connection)
        self.feed = NatsFeed(connection, shape)
        self.tasks = NatsTaskQueue(connection, shape, makes_consumers=not outsider)
        self.timers = NatsTimers(connection, shape)
        self.audit = NatsAuditLog(connection)
        self.logs = NatsRunLogs(connection)
        self.switchboard = NatsSwitchboard(connection)

    @classmethod
    async def open(cls, options: ConnectionOptions, shape: Shape) -> NatsBroker:
        """Connect and make sure that everything declared is there. Any number may do so at once."""
        broker = cls(await Connection.open(options), shape)
        try:
            broker.report = await ensure(broker.connection, shape)
            await _fix_partitions(broker.bucket(Bucket.CLUSTER), shape.partitions)
            await broker.unlock()
        except BaseException:
            await broker.connection.close()
            raise
        return broker

    @classmethod
    async def open_worker(cls, options: ConnectionOptions) -> NatsBroker:
        """Connect as a worker: history, tasks, its registration, leases, checkpoints and blobs. Everything else is
        there and answers `BrokerDeniedError` or `BrokerUnavailableError`."""
        return cls(await Connection.open(options), Shape(), outsider=True)

    async def unlock(self) -> None:
        """Learn the cell's secret. Without it every journal is empty, and what is appended is nobody's."""
        self.journal.secret = await _secret(self.bucket(Bucket.CLUSTER))
        self.audit.unlock(self.journal.secret)
        self.switchboard.unlock(self.journal.secret)

    @property
    def partitions(self) -> int:
        return self.shape.partitions

    def bucket(self, name: Bucket) -> NatsKeyValue:
        return NatsKeyValue(self.connection, BUCKET_SPECS[name], direct=self._outsider)

    def blobs(self, tenant: str = names.DEFAULT_TENANT) -> NatsBlobs:
        return NatsBlobs(self.connection, tenant, direct=self._outsider)

    def partition_of(self, run_id: str) -> int:
        return names.partition_of(run_id, self.shape.partitions)

    def derived_key(self, label: str) -> bytes:
        if not self.journal.secret:
            raise BrokerDeniedError("this connection does not know the cell's secret")
        # A label is one line, which what is sealed with the secret itself never is.
        return hmac.digest(self.journal.secret, label.encode(), "sha256")

    async def close(self) -> None:
        """Give back what was fetched ahead, send what is to be sent, leave."""
        try:
            await self.feed.close()
        finally:
            await self.connection.close()


async def _secret(cluster: NatsKeyValue) -> bytes:
    return await _agreed(cluster, "secret", secrets.token_hex(32).encode())


async def _fix_partitions(cluster: NatsKeyValue, partitions: int) -> None:
    """The number decides where runs are stored, so it cannot change."""
    stored = await _agreed(cluster, "partitions", json.dumps({"partitions": partitions}).encode())
    try:
        known = int(json.loads(stored)["partitions"])
    except (ValueError, KeyError, TypeError):
        raise TopologyError("this cluster does not know its number of partitions") from None
    if known != partitions:
        raise TopologyError(f"this cluster was made with {known} partitions, not {partitions}; the number is fixed")


async def _agreed(cluster: NatsKeyValue, key: str, proposal: bytes) -> bytes:
    """The value that the first server to start stored under this key. It is read from the leader: a replica that has
    just joined may not have it yet."""
    entry = await cluster.get(key)
    if entry is None:
        with contextlib.suppress(KeyConflictError):
            await cluster.create(key, proposal)
        entry = await cluster.get(key)
    if entry is None:
        raise BrokerUnavailableError(f"the cluster's {key} was not stored")
    return entry.value
