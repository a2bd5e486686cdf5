#!/usr/bin/env python3
"""Varve from Python beside lmdb, rocksdict, plyvel (LevelDB) and sqlite3: those that can be imported.

    pip install lmdb rocksdict plyvel varve-*.whl && python compare.py [--rows N] [--rounds N] [--dir DIR]

The same rows for all: keys of 16 bytes in random order, values of 100 bytes. A commit is durable (fsync) when it
returns, with every store. Each round makes each database anew, in turns; what is printed are medians of the rounds, in
operations a second. Caches are 64 MB where there is such an option; lmdb maps the file, and the others but Varve read
through the cache of the operating system as well. Reads come after the load, in the same process: everything is warm.
"""

import argparse
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

CACHE = 64 << 20
BATCH = 1000


class Varve:
    def __init__(self, path):
        import varve

        self.db = varve.open(path, cache=CACHE)
        self.rows = self.db.keyspace("rows")

    def write(self, rows):
        self.rows.update(rows)

    def put(self, key, value):
        self.rows[key] = value

    def get(self, key):
        return self.rows[key]

    def scan(self):
        return sum(1 for _ in self.rows.items())

    def close(self):
        self.db.close()


class Lmdb:
    def __init__(self, path):
        import lmdb

        self.db = lmdb.open(str(path), map_size=4 << 30)

    def write(self, rows):
        with self.db.begin(write=True) as tx:
            tx.cursor().putmulti(rows)

    def put(self, key, value):
        with self.db.begin(write=True) as tx:
            tx.put(key, value)

    def get(self, key):
        with self.db.begin() as tx:
            return tx.get(key)

    def scan(self):
        with self.db.begin() as tx:
            return sum(1 for _ in tx.cursor())

    def close(self):
        self.db.close()


class Rocksdict:
    def __init__(self, path):
        import rocksdict as r

        options = r.Options(raw_mode=True)
        table = r.BlockBasedOptions()
        table.set_block_cache(r.Cache(CACHE))
        options.set_block_based_table_factory(table)
        self.r, self.db = r, r.Rdict(str(path), options)
        self.sync = r.WriteOptions()
        self.sync.sync = True
        self.db.set_write_options(self.sync)

    def write(self, rows):
        batch = self.r.WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value)
        self.db.write(batch, self.sync)

    def put(self, key, value):
        self.db.put(key, value, write_opt=self.sync)

    def get(self, key):
        return self.db[key]

    def scan(self):
        return sum(1 for _ in self.db.items())

    def close(self):
        self.db.close()


class Plyvel:
    def __init__(self, path):
        import plyvel

        self.db = plyvel.DB(str(path), create_if_missing=True, lru_cache_size=CACHE)

    def write(self, rows):
        with self.db.write_batch(sync=True) as batch:
            for key, value in rows:
                batch.put(key, value)

    def put(self, key, value):
        self.db.put(key, value, sync=True)

    def get(self, key):
        return self.db.get(key)

    def scan(self):
        return sum(1 for _ in self.db)

    def close(self):
        self.db.close()


class Sqlite:
    def __init__(self, path):
        path.mkdir()
        self.db = sqlite3.connect(path / "db", isolation_level=None)
        self.db.execute("pragma journal_mode = wal")
        self.db.execute("pragma synchronous = full")
        self.db.execute(f"pragma cache_size = -{CACHE >> 10}")
        self.db.execute("create table rows (key blob primary key, value blob) without rowid")

    def write(self, rows):
        self.db.execute("begin")
        self.db.executemany("insert or replace into rows values (?, ?)", rows)
        self.db.execute("commit")

    def put(self, key, value):
        self.db.execute("insert or replace into rows values (?, ?)", (key, value))

    def get(self, key):
        return self.db.execute("select value from rows where key = ?", (key,)).fetchone()[0]

    def scan(self):
        return sum(1 for _ in self.db.execute("select key, value from rows order by key"))

    def close(self):
        self.db.close()


STORES = {"varve": Varve, "lmdb": Lmdb, "rocksdict": Rocksdict, "plyvel": Plyvel, "sqlite3": Sqlite}


def measure(store, path, count, seed):
    """Operations a second of each workload."""
    rng = random.Random(seed)
    rows = [(rng.randbytes(16), rng.randbytes(100)) for _ in range(count)]
    figures = {}

    def timed(name, operations, work):
        begun = time.perf_counter()
        work()
        figures[name] = operations / (time.perf_counter() - begun)

    db = store(path)
    try:
        batches = [rows[n : n + BATCH] for n in range(0, count, BATCH)]
        timed(f"rows put, {BATCH} a commit", count, lambda: [db.write(batch) for batch in batches])
        rng.shuffle(rows)
        # New values: a write that changes nothing need not reach the device.
        singles = [(key, value[::-1]) for key, value in rows[:300]]
        timed("rows put, each its own commit", len(singles), lambda: [db.put(key, value) for key, value in singles])
        # Each answer is looked at, so that none is measured that is wrong.
        rows[:300] = singles
        timed("random gets", count, lambda: [value for key, value in rows if db.get(key) != value] and 1 / 0)
        timed("rows of a whole scan", count, lambda: db.scan() == count or 1 / 0)
    finally:
        db.close()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the databases are made; by default the current directory")
    args = parser.parse_args()
    results = {}
    work = Path(tempfile.mkdtemp(prefix="varve-compare-", dir=args.dir or "."))
    try:
        for seed in range(args.rounds):
            for name, store in STORES.items():
                try:
                    figures = measure(store, work / f"{name}-{seed}", args.rows, seed)
                except ImportError as e:
                    print(f"{name} is left out: {e}") if seed == 0 else None
                    continue
                finally:
                    shutil.rmtree(work / f"{name}-{seed}", ignore_errors=True)
                for workload, figure in figures.items():
                    results.setdefault(workload, {}).setdefault(name, []).append(figure)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    names = list(next(iter(results.values())))
    print(f"{args.rows} rows, medians of {args.rounds}, operations a second; {os.cpu_count()} cores\n")
    print("| | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for workload, figures in results.items():
        print(f"| {workload} | " + " | ".join(f"{statistics.median(figures[name]):,.0f}" for name in names) + " |")


if __name__ == "__main__":
    main()
