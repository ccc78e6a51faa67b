"""The cache's bound: what goes, what stays, what it costs, and that processes share it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isthmus.runtime import cache, cache_size
from isthmus.runtime.cache import Cache, digest
from isthmus.runtime.cache_size import BLOCK, Entry, entries

SHARES = 16


def key(k: int) -> str:
    """A key of share 0."""
    return "0" + digest(str(k))[1:]


def taken(directory: Path) -> int:
    return sum(e.bytes for e in entries(directory))


def file_of(directory: Path, name: str) -> Path:
    return directory / name[:2] / f"{name}.bin"


def age(directory: Path, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(file_of(directory, name), (then, then))


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    store = Cache(tmp_path, limit=SHARES * 10 * BLOCK)
    for k in range(10):
        store.put(key(k), b"x" * 3000)
        age(tmp_path, key(k), 1000 - k)
    assert Cache(tmp_path).get(key(0)) is not None  # a use makes it young
    store.put(key(10), b"x" * 3000)
    there = {k for k in range(11) if file_of(tmp_path, key(k)).exists()}
    assert there == {0, 4, 5, 6, 7, 8, 9, 10}  # of 11 blocks down to 8
    assert store.get(key(1)) is not None  # this process still has it


def test_the_bound_holds_after_each_entry(tmp_path: Path) -> None:
    limit = SHARES * 20 * BLOCK
    store = Cache(tmp_path, limit=limit)
    for k in range(600):
        store.put(digest(str(k)), b"x" * (500 + 40 * k % 20000))
        assert k % 50 or taken(tmp_path) <= limit
    assert limit // 2 < taken(tmp_path) <= limit


def test_files_are_listed_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), scan(path))[1])
    store = Cache(tmp_path, limit=SHARES * 100 * BLOCK)
    for k in range(300):
        store.put(key(k), b"x")
        store.forget_memory()
        assert store.get(key(k)) == b"x"
    assert 1 <= listed.count(tmp_path) <= 1 + 1 + 200 // 20  # the first entry, then each 20 of 100 blocks


def test_a_folder_that_was_never_counted_is(tmp_path: Path) -> None:
    before = Cache(tmp_path, limit=None)
    for k in range(30):
        before.put(key(k), b"x")
        age(tmp_path, key(k), 1000 - k)
    assert not list(tmp_path.glob("written-*"))
    Cache(tmp_path, limit=SHARES * 10 * BLOCK).put(key(30), b"x")
    assert taken(tmp_path) == 8 * BLOCK and file_of(tmp_path, key(30)).exists()


def test_an_entry_above_its_share_is_kept_in_memory(tmp_path: Path) -> None:
    store = Cache(tmp_path, limit=SHARES * 2 * BLOCK)
    store.put(key(0), b"x" * 3 * BLOCK)
    assert taken(tmp_path) == 0 and store.get(key(0)) is not None


def test_unfinished_files_stay_until_they_are_abandoned(tmp_path: Path) -> None:
    store = Cache(tmp_path, limit=SHARES * 2 * BLOCK)
    store.put(key(0), b"x")
    young, old = (file_of(tmp_path, key(0)).parent / name for name in (".new-a", ".new-b"))
    for file in (young, old):
        file.write_bytes(b"x" * BLOCK)
    os.utime(old, (0, 0))
    for k in range(1, 4):
        store.put(key(k), b"x")
    assert young.exists() and not old.exists()


def test_an_entry_that_is_being_read_survives_for_its_reader(tmp_path: Path) -> None:
    store = Cache(tmp_path, limit=SHARES * 2 * BLOCK)
    store.put(key(0), b"mine")
    with file_of(tmp_path, key(0)).open("rb") as reader:
        for k in range(1, 5):
            store.put(key(k), b"x")
        assert not file_of(tmp_path, key(0)).exists() and reader.read().endswith(b"mine")
    assert Cache(tmp_path).get_or_make(key(0), lambda: b"again") == b"again"


WORKER = """
import sys
from pathlib import Path
from isthmus.runtime.cache import Cache, digest
store = Cache(Path(sys.argv[1]), limit=16 * 8 * 4096)
for k in range(400):
    entry = store.get_or_make(digest(str(k)), lambda: b"%d" % k * 1500)
    assert entry == b"%d" % k * 1500
    store.forget_memory()
print(store.counters.damaged)
"""


@pytest.mark.row("R2")
def test_processes_share_the_bound(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", WORKER, str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [w.communicate()[0].strip() for w in workers] == ["0"] * 3
    assert 0 < taken(tmp_path) <= 16 * 9 * BLOCK  # one that finds another making room leaves its entry to the next


def test_the_bound_is_chosen_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    chosen = {"": 2 << 30, "500M": 500 << 20, "1.5 gib": 3 << 29, "4096": 4096, "0": None, "0.5": 1, "9" * 400: 10**400}
    for text, size in chosen.items():
        monkeypatch.setenv("ISTHMUS_CACHE_SIZE", text)
        assert cache.current().limit == size
    monkeypatch.setenv("ISTHMUS_CACHE_SIZE", "2 elephants")
    with pytest.warns(RuntimeWarning, match="'2 elephants' is no size: write 2G"):
        assert cache.current().limit == 2 << 30


def test_clear_says_what_it_removed(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    for k in range(3):
        store.put(digest(str(k)), b"x" * 5000)
    assert store.clear() == (3, 6 * BLOCK)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    assert list(entries(tmp_path)) == [] == list(entries(tmp_path / "nowhere"))
    store.put(key(0), b"x")
    assert [type(e) for e in entries(tmp_path)] == [Entry]


def test_files_that_are_no_entries_stay(tmp_path: Path) -> None:
    mine = [tmp_path / "0c" / "paper.tex", tmp_path / "de" / "paper.bin", tmp_path / "en" / f"{key(0)}.bin"]
    for file in mine:
        file.parent.mkdir()
        file.write_bytes(b"x" * 4 * BLOCK)
    store = Cache(tmp_path, limit=SHARES * 2 * BLOCK)
    for k in range(4):
        store.put(key(k), b"x")
    assert 0 < taken(tmp_path) <= 2 * BLOCK
    assert store.clear()[0] > 0 and all(file.exists() for file in mine)


def test_readable_sizes() -> None:
    assert [cache_size.readable(n) for n in (12, 2048, 3 << 29)] == ["12 bytes", "2.0 KiB", "1.5 GiB"]
