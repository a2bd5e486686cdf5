"""Threads, forks, signals."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import varve


def run(code, *args, **more):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True, timeout=60, **more
    )


def test_threads_share_a_database(ks):
    def work(worker):
        for n in range(100):
            ks[f"{worker}/{n}"] = str(n)
            assert ks[f"{worker}/{n}"] == str(n).encode()

    failed = []

    def guarded(worker):
        try:
            work(worker)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=guarded, args=(worker,)) for worker in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed and len(ks) == 400


def test_threads_share_an_iterator(ks):
    ks.update((f"{n:05}", "x") for n in range(20_000))
    rows, seen = iter(ks), [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(rows)) for mine in seen]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(sum(seen, [])) == [f"{n:05}".encode() for n in range(20_000)]


def test_the_gil_is_free_while_a_call_waits(db, ks):
    with db.transaction() as tx:
        tx[ks]["hot"] = "1"
        waits = threading.Thread(target=lambda: pytest.raises(varve.Timeout, ks.__setitem__, "hot", "2"))
        waits.start()
        turns, end = 0, time.monotonic() + 0.2
        while time.monotonic() < end:
            turns += 1
        assert waits.is_alive() and turns > 1000
        waits.join()


def test_a_transaction_has_one_thread_at_a_time(db, ks):
    with db.transaction() as first, db.transaction() as second:
        first[ks]["hot"] = "1"
        waits = threading.Thread(target=lambda: pytest.raises(varve.Timeout, second[ks].__setitem__, "hot", "2"))
        waits.start()
        time.sleep(0.1)
        with pytest.raises(varve.Invalid, match="one thread at a time"):
            second[ks]["cold"]
        waits.join()


def test_a_forked_child_is_refused(tmp_path):
    done = run(
        """
        import os, sys, varve
        db = varve.open(sys.argv[1], cache="16M")
        ks = db.keyspace("k")
        ks["a"] = "1"
        tx, snapshot, rows = db.transaction(), db.snapshot(), iter(ks)
        child = os.fork()
        if child == 0:
            wrong = 0
            for use in (lambda: ks["a"], lambda: ks.update(a="2"), lambda: len(ks), lambda: list(rows), tx.commit,
                        lambda: snapshot[ks]["a"], db.check, db.close, lambda: db.transact(print), varve.open,
                        lambda: varve.open(sys.argv[1])):
                try:
                    use()
                    wrong += 1
                except varve.Forked as e:
                    pass
            del db, ks, tx, snapshot, rows  # nothing is dropped for good, nothing waits
            sys.exit(wrong)
        _, status = os.waitpid(child, 0)
        tx[ks]["b"] = "2"
        tx.commit()
        assert list(ks.items()) == [(b"a", b"1"), (b"b", b"2")]
        db.close()
        child = os.fork()  # now nothing is open
        if child == 0:
            with varve.open(sys.argv[1]) as db:
                db.keyspace("k")["c"] = "3"
            sys.exit(0)
        _, after = os.waitpid(child, 0)
        with varve.open(sys.argv[1]) as db:
            assert len(db.keyspace("k")) == 3
        print(os.waitstatus_to_exitcode(status), os.waitstatus_to_exitcode(after))
        """,
        tmp_path / "db",
    )
    assert done.stdout == "0 0\n", done.stderr


INTERRUPTED = """
    import signal, sys, threading, time, varve
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with varve.open(cache="64M") as db:
        ks = db.keyspace("k")
        rows = ((b"%08d" % n, b"x" * 100) for n in range(10_000))
        ks.update(rows)
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        begun = time.monotonic()
        try:
            while True:
                {call}
        except KeyboardInterrupt:
            assert time.monotonic() - begun < 3, time.monotonic() - begun
            print("interrupted")
        assert len(ks) == 10_000
"""


@pytest.mark.parametrize("call", ["list(ks.items())", "len(ks)", "db.check()", "db.transact(lambda tx: len(tx[ks]))"])
def test_ctrl_c_ends_a_call(call):
    done = run(INTERRUPTED.replace("{call}", call))
    assert done.stdout == "interrupted\n", done.stderr


def test_one_call_is_interrupted_before_its_end():
    """Not merely between calls: the one call takes far longer than the signal does to come."""
    done = run(
        """
        import signal, threading, time, varve
        signal.signal(signal.SIGINT, signal.default_int_handler)
        db = varve.open(cache="64M")
        ks = db.keyspace("k")
        for part in range(3):
            ks.update((b"%d%08d" % (part, n), b"x" * 100) for n in range(20_000))
        begun = time.monotonic()
        db.check()
        whole = time.monotonic() - begun
        threading.Timer(whole / 10, signal.raise_signal, [signal.SIGINT]).start()
        begun = time.monotonic()
        try:
            db.check()
        except KeyboardInterrupt:
            print(time.monotonic() - begun < whole / 2 + 0.1)
        """
    )
    assert done.stdout == "True\n", done.stderr


def test_a_process_that_is_killed_loses_nothing(tmp_path):
    done = run(
        """
        import os, signal, sys, varve
        ks = varve.open(sys.argv[1]).keyspace("k")
        ks["kept"] = "1"
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "db",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with varve.open(tmp_path / "db") as db:
        assert db.keyspace("k")["kept"] == b"1"


def test_the_end_of_the_interpreter_is_clean(tmp_path):
    done = run(
        """
        import sys, varve
        db = varve.open(sys.argv[1])
        ks = db.keyspace("k")
        tx, rows, snapshot = db.transaction(), iter(ks), db.snapshot()
        tx[ks]["lost"] = "1"
        ks["kept"] = "1"
        """,
        tmp_path / "db",
    )
    assert (done.returncode, done.stderr) == (0, "")
