"""Keyspaces are mappings, in the order of their keys."""

from collections.abc import MutableMapping

import pytest

import varve


def test_rows_are_there_and_survive(path):
    with varve.open(path) as db:
        ks = db.keyspace("k")
        ks["a"] = b"1"
        ks[b"b"] = bytearray(b"2")
        ks[memoryview(b"c")] = "drei"
        assert ks["a"] == b"1" and ks["c"] == b"drei" and len(ks) == 3
    with varve.open(path, create=False) as db:
        assert list(db.keyspace("k", create=False).items()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"drei")]


def test_it_is_a_mapping(ks):
    assert isinstance(ks, MutableMapping) and not ks
    ks.update({"a": "1", "b": "2"}, c="3")
    ks.update([("d", "4")])
    assert dict(ks.items()) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"} == dict(ks)
    assert list(ks) == list(ks.keys()) == [b"a", b"b", b"c", b"d"] and list(reversed(ks)) == [b"d", b"c", b"b", b"a"]
    assert list(ks.values(reverse=True)) == [b"4", b"3", b"2", b"1"]
    assert "a" in ks and "x" not in ks and ks and len(ks) == 4
    assert ks.get("x") is None and ks.get("x", 7) == 7 and ks.get("a") == b"1"
    with pytest.raises(KeyError, match="x"):
        ks["x"]
    with pytest.raises(KeyError):
        del ks["x"]
    del ks["a"]
    assert ks.pop("b") == b"2" and ks.pop("b", None) is None
    with pytest.raises(KeyError):
        ks.pop("b")
    assert ks.setdefault("c", "9") == b"3" and ks.setdefault("e", "5") == b"5"
    assert ks.popitem() == (b"e", b"5") and ks.delete("d") and not ks.delete("d")
    ks.clear()
    with pytest.raises(KeyError):
        ks.popitem()


def test_ranges(ks):
    ks.update((f"{n:03}", str(n)) for n in range(300))
    keys = lambda rows: [int(key) for key, _ in rows]
    assert keys(ks.range("010", "013")) == [10, 11, 12] == keys(ks["010":"013"])
    assert keys(ks.range("297")) == [297, 298, 299] and keys(ks.range(stop="002")) == [0, 1]
    assert keys(ks.range("010", "013", reverse=True)) == [12, 11, 10]
    assert keys(ks.prefix("29", reverse=True)) == list(range(299, 289, -1)) and keys(ks.prefix(b"\xff")) == []
    assert ks.first() == (b"000", b"0") and ks.last() == (b"299", b"299")
    assert ks.pop_first() == (b"000", b"0") and ks.pop_last() == (b"299", b"299")
    ks.delete_range("001", "299")
    assert ks.pop_first() is None and ks.first() is None and ks.last() is None


def test_an_iterator_sees_the_moment_of_its_making(ks):
    ks.update((f"{n:04}", "x") for n in range(5000))
    rows = iter(ks)
    assert next(rows) == b"0000"
    ks.clear()
    ks["new"] = "1"
    assert sum(1 for _ in rows) == 4999 and list(rows) == []


def test_one_step_changes(ks):
    assert ks.insert_if_absent("a", "1") and not ks.insert_if_absent("a", "2") and ks["a"] == b"1"
    assert ks.compare_and_swap("a", "1", "2") and not ks.compare_and_swap("a", "1", "3") and ks["a"] == b"2"
    assert ks.compare_and_swap("b", None, "1") and ks.compare_and_swap("b", "1", None) and "b" not in ks
    assert ks.multi_get(["b", "a"]) == [None, b"2"]


def test_large_values(ks):
    value = bytes(range(256)) * 160_000  # 41 MB, with a cache of 16 MB
    ks["large"] = value
    assert ks["large"] == value and list(ks.values()) == [value]
    with pytest.raises(varve.TooLarge, match="key of"):
        ks["k" * 100_000] = "v"
    assert "k" * 100_000 not in ks


def test_keyspaces(db):
    logs = db.keyspace("logs", kind="lsm", compression="zstd")
    logs["a"] = "1"
    db.rename_keyspace("logs", "journal")
    assert db.keyspaces() == ["journal"] and logs.name == "journal" and "journal" in repr(logs)
    db.drop_keyspace("journal")
    with pytest.raises(varve.NotFound) as failure:
        db.keyspace("journal", create=False)
    assert isinstance(failure.value, LookupError) and isinstance(failure.value, varve.Error)


def test_upkeep(db, ks, tmp_path):
    ks["a"] = "1"
    db.sync()
    db.checkpoint()
    assert db.check() == []
    db.backup(tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size > 0
    with pytest.raises(varve.Exists):
        db.backup(tmp_path / "copy")
    assert "varve_transactions_committed_total" in db.metrics()


@pytest.mark.parametrize("wrong", [5, 1.5, None, object(), ["a"]])
def test_what_is_no_bytes_is_refused(ks, wrong):
    with pytest.raises(TypeError, match="bytes, or text"):
        ks["a"] = wrong
    with pytest.raises(TypeError, match="bytes, or text"):
        ks[wrong]


def test_text_that_has_no_utf8_is_refused(ks):
    with pytest.raises(UnicodeEncodeError):
        ks["\ud800"] = "1"
    assert not ks


def test_options():
    for options, text in [
        ({"cash": "1M"}, "cache"),
        ({"lock_timeout": "soon"}, "a time with"),
        ({"pool.replacement": "newest"}, "2q"),
        ({"cache": object()}, "give text"),
    ]:
        with pytest.raises(varve.Invalid, match=text):
            varve.open(**options)
    with varve.open(cache=16 << 20, cleaners=True, lock_timeout=None, **{"pool.replacement": "2q"}) as db:
        assert db.keyspaces() == []
        for refused in [dict(kind="heap"), dict(kind="lsm", comprission="zstd"), dict(compression="zstd")]:
            with pytest.raises(varve.Invalid):
                db.keyspace("x", **refused)
