"""An embeddable transactional store: ordered keyspaces, serializable transactions, snapshots.

Keys and values are bytes. Where they are given, text is taken too (as UTF-8), and whatever ``memoryview`` takes.

Every call releases the GIL while the engine works. Databases, keyspaces and snapshots may be used by any number of
threads at once; a transaction by one at a time. A forked child gets ``Forked`` from its parent's handles, and cannot
open a database where one was open in the parent: start processes by ``spawn``, or close before the fork.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, Union, overload

_Bytes = Union[bytes, bytearray, memoryview, str]
_Row = tuple[bytes, bytes]
_Durability = Literal["sync", "async", "none"]
_Option = Union[str, int, float, bool, None]
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

__version__: str

def open(path: str | PathLike[str] | None = None, *, create: bool = True, **options: _Option) -> Db:
    """Opens the database in a directory, making it if there is none; ``None``: a new one in memory.

    Options are those of ``docs/options.md``: ``cache="256M"``, ``durability="async"``, ``read_only=True``,
    ``**{"pool.replacement": "2q"}``. A wrong name or value is ``Invalid``, and the text says what there is.
    """

class Db:
    """An open database. As a context it is closed at the end."""

    def __enter__(self) -> Db: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...
    def close(self) -> None:
        """Closes the database. What is open of it ends: transactions are rolled back, snapshots and iterators get
        ``Closed``. To close it again does nothing."""

    def keyspace(
        self, name: str, *, create: bool = True, kind: Literal["tree", "lsm"] = "tree", **options: _Option
    ) -> Keyspace:
        """A keyspace by its name, made if there is none. What is mostly written may be an LSM tree, with the options
        of ``docs/lsm.md`` (``compression="zstd"``)."""

    def keyspaces(self) -> list[str]:
        """The names of all keyspaces."""

    def drop_keyspace(self, name: str) -> None:
        """Drops a keyspace and everything in it, durably."""

    def rename_keyspace(self, old: str, new: str) -> None:
        """Gives a keyspace another name, durably."""

    def transaction(self, *, durability: _Durability | None = None) -> Transaction:
        """Begins a transaction: ``with db.transaction() as tx: tx[accounts]["alice"] = b"10"``."""

    def transact(
        self, function: Callable[[Transaction], _T], *, durability: _Durability | None = None, retries: int = 1000
    ) -> _T:
        """Runs a function in a transaction, commits it, and returns what the function returned; runs it again as long
        as other transactions stand in the way. An exception of the function rolls back."""

    def snapshot(self) -> Snapshot:
        """Opens a snapshot of the present state."""

    def sync(self) -> None:
        """Makes everything durable that was acknowledged so far, whatever its durability."""

    def checkpoint(self) -> None:
        """Writes every page that is dirty now, so that recovery has nothing older to redo."""

    def check(self) -> list[str]:
        """Reads the whole database and returns every damage found."""

    def backup(self, path: str | PathLike[str]) -> None:
        """Writes a backup to a new file while the database is in use. ``varve restore`` makes a database of it."""

    def metrics(self) -> str:
        """Counters and sizes since the opening, in the text format of Prometheus."""

class Keyspace(MutableMapping[bytes, bytes]):
    """An ordered mapping of bytes to bytes. That of the database reads what is committed, and each of its writes is a
    transaction of its own, durable when the call returns; ``tx[keyspace]`` and ``snapshot[keyspace]`` are the same
    keyspace within a transaction and as of a snapshot. Iterators see the rows of the moment when they were made."""

    @property
    def name(self) -> str: ...
    @overload
    def __getitem__(self, key: _Bytes) -> bytes: ...
    @overload
    def __getitem__(self, key: slice) -> Rows[_Row]: ...
    @overload
    def get(self, key: _Bytes) -> bytes | None: ...
    @overload
    def get(self, key: _Bytes, default: _T) -> bytes | _T: ...
    def get_for_update(self, key: _Bytes) -> bytes | None:
        """Within a transaction: reads a key that will be written, and locks it for that."""

    def multi_get(self, keys: Iterable[_Bytes]) -> list[bytes | None]:
        """The values of many keys, in their order; what is not in memory is read at once."""

    def __setitem__(self, key: _Bytes, value: _Bytes) -> None: ...
    def __delitem__(self, key: _Bytes) -> None: ...
    def delete(self, key: _Bytes) -> bool:
        """Removes a key; whether it was there."""

    def __contains__(self, key: object) -> bool: ...
    def __len__(self) -> int:
        """The number of rows. Counts them: reads every key, but no long value."""

    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __reversed__(self) -> Iterator[bytes]: ...
    def keys(self, *, reverse: bool = False) -> Rows[bytes]: ...  # type: ignore[override]
    def values(self, *, reverse: bool = False) -> Rows[bytes]: ...  # type: ignore[override]
    def items(self, *, reverse: bool = False) -> Rows[_Row]: ...  # type: ignore[override]
    def range(
        self, start: _Bytes | None = None, stop: _Bytes | None = None, *, reverse: bool = False
    ) -> Rows[_Row]:
        """The rows from ``start`` on, without ``stop``; ``reverse``: the same ones, descending."""

    def prefix(self, prefix: _Bytes, *, reverse: bool = False) -> Rows[_Row]:
        """The rows whose keys begin with ``prefix``."""

    def first(self) -> _Row | None: ...
    def last(self) -> _Row | None: ...
    def pop_first(self) -> _Row | None:
        """Removes the row with the lowest key and returns it. As a queue: each row goes to one caller."""

    def pop_last(self) -> _Row | None: ...
    def popitem(self) -> _Row: ...
    @overload
    def pop(self, key: _Bytes) -> bytes: ...
    @overload
    def pop(self, key: _Bytes, default: _T) -> bytes | _T: ...
    def setdefault(self, key: _Bytes, default: _Bytes) -> bytes: ...
    def insert_if_absent(self, key: _Bytes, value: _Bytes) -> bool:
        """Sets a key unless it is there; whether it did."""

    def compare_and_swap(self, key: _Bytes, old: _Bytes | None, new: _Bytes | None) -> bool:
        """Sets a key from one value to another (``None``: not there); whether it had the first one."""

    def update(self, other: Any = None, **more: _Bytes) -> None:  # type: ignore[override]
        """Sets all keys of a mapping, or of pairs, as one transaction."""

    def delete_range(self, start: _Bytes | None = None, stop: _Bytes | None = None) -> None:
        """Removes every key of a range as one change."""

    def clear(self) -> None: ...

class Rows(Generic[_T_co]):
    """Keys, values or rows in order. It keeps a snapshot open until its end, its close or its last reference."""

    def __iter__(self) -> Rows[_T_co]: ...
    def __next__(self) -> _T_co: ...
    def close(self) -> None:
        """Lets go of the snapshot, before the end."""

class Transaction:
    """An open transaction, serializable against all others. As a context it commits at the end, and rolls back when an
    exception leaves it."""

    def __getitem__(self, keyspace: Keyspace) -> Keyspace:
        """The keyspace within the transaction. Of rows that an iterator has read ahead it does not show changes."""

    def __enter__(self) -> Transaction: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def savepoint(self) -> Savepoint: ...
    def rollback_to(self, savepoint: Savepoint) -> None:
        """Undoes what was written since the savepoint, which can be used again."""

class Savepoint:
    """A state of a transaction, to return to."""

class Snapshot:
    """A view of the whole database as of one moment, which takes no locks. As a context it is closed at the end."""

    def __getitem__(self, keyspace: Keyspace) -> Keyspace:
        """The keyspace as of the snapshot, to be read only."""

    def __enter__(self) -> Snapshot: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...
    def close(self) -> None: ...

class Error(Exception):
    """Anything that Varve fails with."""

    retryable: bool

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
