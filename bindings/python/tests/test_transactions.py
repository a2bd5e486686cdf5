"""Transactions, snapshots, what a close does."""

import gc
import threading

import pytest

import varve


def test_a_transaction_commits_or_rolls_back(db, ks):
    with db.transaction() as tx:
        tx[ks]["a"] = "1"
        assert "a" not in ks and tx[ks]["a"] == b"1"
    assert ks["a"] == b"1"
    with pytest.raises(ZeroDivisionError):
        with db.transaction(durability="async") as tx:
            tx[ks]["a"] = "2"
            1 / 0
    assert ks["a"] == b"1"
    with db.transaction() as tx:
        tx[ks]["a"] = "3"
        tx.rollback()
    assert ks["a"] == b"1"
    with db.transaction() as tx:
        tx[ks]["a"] = "4"
        mark = tx.savepoint()
        tx[ks].clear()
        assert not tx[ks]
        tx.rollback_to(mark)
        tx.commit()
    assert ks["a"] == b"4"
    for late in (tx.commit, tx.rollback_to.__call__, lambda: tx[ks]["a"], lambda: list(tx[ks])):
        with pytest.raises((varve.Closed, TypeError)):
            late()
    with pytest.raises(varve.Invalid, match="sync, async"):
        db.transaction(durability="soon")


def test_rows_are_deleted_while_a_transaction_goes_over_them(db, ks):
    ks.update((f"{n:04}", "x") for n in range(3000))
    with db.transaction() as tx:
        for key in tx[ks]:
            if int(key) % 3:
                del tx[ks][key]
        assert len(tx[ks]) == 1000
        assert sum(1 for _ in tx[ks].items(reverse=True)) == 1000
    assert len(ks) == 1000


def test_transact_repeats_on_conflicts(db, ks):
    ks.update(n="0", m="0")
    runs = []

    def add(tx):
        runs.append(1)
        rows = tx[ks]
        n = int(rows["n"])  # shared first, so two of them conflict
        rows["n"] = str(n + 1)
        return n

    def work():
        for _ in range(50):
            db.transact(add)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert ks["n"] == b"200" and len(runs) >= 200
    assert db.transact(lambda tx: tx[ks].get_for_update("n")) == b"200"

    def fails(tx):
        tx[ks]["n"] = "lost"
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        db.transact(fails)
    assert ks["n"] == b"200"
    kept = []
    db.transact(kept.append)
    with pytest.raises(varve.Closed):
        kept[0][ks]["n"]
    with pytest.raises(varve.Invalid, match="ends it"):
        db.transact(lambda tx: tx.commit())


def test_a_deadlock_with_itself_is_told(db, ks):
    def puts_beside(tx):
        tx[ks]["a"] = "1"
        ks["a"] = "2"

    with pytest.raises(varve.Deadlock):
        db.transact(puts_beside)
    with pytest.raises(varve.Timeout) as failure:
        with db.transaction() as tx:
            tx[ks]["a"] = "1"
            ks["a"] = "2"
    assert isinstance(failure.value, TimeoutError) and not failure.value.retryable


def test_a_conflict_is_an_exception_that_may_be_retried(db, ks):
    ks.update(a="0", b="0")
    first, second = db.transaction(), db.transaction()
    first[ks]["a"], second[ks]["b"] = "1", "1"
    failed = []

    def cross():
        try:
            second[ks]["a"] = "2"
            second.commit()
        except varve.Conflict as e:
            failed.append(e)
            second.rollback()

    thread = threading.Thread(target=cross)
    thread.start()
    try:
        first[ks]["b"] = "2"
        first.commit()
    except varve.Conflict as e:
        failed.append(e)
        first.rollback()
    thread.join()
    assert len(failed) == 1 and failed[0].retryable


def test_snapshots(db, ks):
    ks["a"] = "1"
    with db.snapshot() as s:
        ks["a"] = "2"
        assert s[ks]["a"] == b"1" and list(s[ks].items()) == [(b"a", b"1")] and len(s[ks]) == 1
        for write in (lambda: s[ks].clear(), lambda: s[ks].update(a="3"), lambda: s[ks].__setitem__("a", "3")):
            with pytest.raises(varve.ReadOnly):
                write()
    with pytest.raises(varve.Closed):
        s[ks]["a"]
    with pytest.raises(varve.Invalid, match="transaction"):
        ks.get_for_update("a")


def test_a_close_ends_what_is_open(path):
    db = varve.open(path)
    ks = db.keyspace("k")
    ks.update((f"{n:04}", "x") for n in range(3000))
    tx, snapshot, rows, tx_rows = db.transaction(), db.snapshot(), ks.items(), None
    tx[ks]["lost"] = "1"
    tx_rows = tx[ks].items()
    next(rows), next(tx_rows)
    with pytest.raises(varve.Busy):
        varve.open(path)
    db.close()
    db.close()
    for late in (
        lambda: ks["0001"],
        lambda: len(ks),
        lambda: snapshot[ks]["0001"],
        lambda: list(rows),
        lambda: list(tx_rows),
        tx.commit,
        db.snapshot,
        db.transaction,
        db.check,
        db.sync,
        db.metrics,
        lambda: db.keyspace("new"),
        lambda: db.transact(lambda tx: None),
    ):
        with pytest.raises(varve.Closed):
            late()
    with varve.open(path, read_only=True) as again:  # it was closed cleanly
        ks = again.keyspace("k")
        assert "lost" not in ks and len(ks) == 3000
        with pytest.raises(varve.ReadOnly):
            ks["a"] = "1"


def test_handles_outlive_the_database_object(path):
    ks = varve.open(path).keyspace("k")
    gc.collect()
    ks["a"] = "1"
    rows = ks.items()
    del ks
    gc.collect()
    assert list(rows) == [(b"a", b"1")]
    del rows
    gc.collect()
    with varve.open(path) as db:  # recovered: it was not closed
        assert db.keyspace("k")["a"] == b"1"


def test_keyspaces_of_another_database(db, ks):
    with varve.open() as other:
        with db.transaction() as tx, pytest.raises(varve.Invalid, match="another database"):
            tx[other.keyspace("k")]
        with db.snapshot() as s, pytest.raises(varve.Invalid, match="another database"):
            s[other.keyspace("k")]


def test_no_database(path):
    with pytest.raises(varve.NotFound, match="create one first"):
        varve.open(path, create=False)
