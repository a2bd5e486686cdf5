import pytest

import varve


@pytest.fixture
def path(tmp_path):
    return tmp_path / "db"


@pytest.fixture
def db(path):
    with varve.open(path, cache="16M", lock_timeout="300ms") as db:
        yield db


@pytest.fixture
def ks(db):
    return db.keyspace("k")
