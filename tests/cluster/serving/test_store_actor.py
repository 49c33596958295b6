from __future__ import annotations

from pathlib import Path

import pytest

from lmr import LmrError
from lmr.cluster.serving.store_actor import StoreActor, name_files
from lmr.service.store.stored_types import Claim, StoredRecord, StreamChange, Transaction


def test_file_is_opened_again_by_the_next_process(tmp_path: Path) -> None:
    first = StoreActor(str(tmp_path / "s.sqlite"), {"model": "a"})
    claim, size = first.call("claim", "cam")
    assert (claim, size > 0) == (Claim(None, 1), True)
    change = StreamChange(StoredRecord("ok", 1, "r"))
    assert first.call("commit", Transaction({"cam": change}, epochs={"cam": 1}), 8)[0] == {}
    first.close()
    first.close()
    second = StoreActor(str(tmp_path / "s.sqlite"), {"model": "a"})
    assert second.call("claim", "cam")[0] == Claim(StoredRecord("ok", 1, "r"), 2)
    assert first._store is None
    with pytest.raises(LmrError, match="Another process uses the store"):
        first.call("claim", "cam")
    second.close()
    other = StoreActor(str(tmp_path / "s.sqlite"), {"model": "b"})
    with pytest.raises(LmrError, match="holds states of another model: a, not b"):
        other.call("claim", "cam")


def test_number_of_partitions_stays(tmp_path: Path) -> None:
    assert [path.name for path in name_files(tmp_path, 1)] == ["streams.sqlite"]
    files = name_files(tmp_path, 12)
    assert len(set(files)) == 12
    files[0].touch()
    assert name_files(tmp_path, 12) == files
    for wrong in (1, 3):
        with pytest.raises(LmrError, match=rf"are in 12 partitions, not in {wrong}; .* --partitions 12"):
            name_files(tmp_path, wrong)
    files[0].rename(tmp_path / "streams.sqlite")
    with pytest.raises(LmrError, match="are in 1 partition, not in 2"):
        name_files(tmp_path, 2)
