"""Varve: an embeddable transactional store. ``varve.open(path)`` is where to begin; ``__init__.pyi`` has every call."""

from collections.abc import Mapping, MutableMapping

from . import _errors
from ._errors import *  # noqa: F403
from ._varve import Db, Keyspace, Rows, Savepoint, Snapshot, Transaction, __version__, open

MutableMapping.register(Keyspace)
assert issubclass(Keyspace, Mapping)

__all__ = ["Db", "Keyspace", "Rows", "Savepoint", "Snapshot", "Transaction", "__version__", "open"]
__all__ += [name for name in vars(_errors) if isinstance(getattr(_errors, name), type)]
