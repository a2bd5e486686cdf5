"""Exceptions, one for each kind of failure. The native module finds them by their names."""


class Error(Exception):
    """Anything that Varve fails with. The text says what happened, where, and what helps."""

    #: Whether the same transaction may succeed when it is run again from its beginning.
    retryable = False


class Conflict(Error):
    """Another transaction stood in the way: run this one again. ``Db.transact`` does it by itself."""


class Deadlock(Error):
    """The thread would wait for its own transaction: make the change through that transaction."""


class Timeout(Error, TimeoutError):
    """A lock was waited for longer than the option ``lock_timeout``."""


class SnapshotTooOld(Error):
    """The snapshot lost its old values: open a new one."""


class TooLarge(Error, ValueError):
    """A key, a value or a transaction is too large."""


class OutOfMemory(Error, MemoryError):
    """There is no memory for it."""


class Invalid(Error, ValueError):
    """An argument, an option or a call that makes no sense here."""


class NotFound(Error, LookupError):
    """No such keyspace or database. (A key that is not there is a ``KeyError``.)"""


class Exists(Error):
    """There is one already."""


class Busy(Error):
    """Another process, or another handle of this one, has the database open."""


class ReadOnly(Error):
    """What was to be changed can only be read."""


class Permission(Error, PermissionError):
    """The operating system does not permit it."""


class Closed(Error):
    """The database, the snapshot or the iterator was closed, or the transaction has ended."""


class Damaged(Error):
    """Bytes on a device are not what was written there; the text names the page."""


class Version(Error):
    """Written by a newer release."""


class Mismatch(Error):
    """Files that do not belong together."""


class Poisoned(Error):
    """A write that durability rests on failed: reads go on, writes are refused; open the database again."""


class NoSpace(Error, OSError):
    """A device is full."""


class Io(Error, OSError):
    """A device failed."""


class DeviceMissing(Error):
    """A device of the database is not at its place."""


class Backup(Error):
    """A backup cannot be made."""


class Forked(Error):
    """The handle is of the process that this one was forked from, or a database was open there."""


class Internal(Error):
    """A fault of Varve's own: please report it. Close the database and open it again."""
