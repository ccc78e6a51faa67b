"""The compile cache: what is trusted, what is rebuilt, and that the disk may fail."""

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from isthmus.runtime import cache
from isthmus.runtime.cache import Cache, digest, pack, unpack

KEY = digest("kernel", "text")


def entry_file(directory: Path) -> Path:
    (path,) = directory.glob("??/*.bin")
    return path


def test_digest_separates_its_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert digest("ab", b"c") == digest("ab", "c")


def test_pack_and_unpack() -> None:
    sections = {"meta": b"{}", "größe": b"\0" * 100, "empty": b""}
    assert unpack(pack(sections)) == sections


def test_memory_then_disk(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"object"

    first = Cache(tmp_path / "c")
    assert first.get_or_make(KEY, make) == b"object"
    assert first.get_or_make(KEY, make) == b"object"
    second = Cache(tmp_path / "c")
    assert second.get_or_make(KEY, make) == b"object"
    assert len(made) == 1
    assert (first.counters.misses, first.counters.memory_hits, first.counters.written) == (1, 1, 1)
    assert (second.counters.misses, second.counters.disk_hits) == (0, 1)
    assert oct(os.stat(tmp_path / "c").st_mode & 0o777) == "0o700"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign key", "old format"])
def test_damaged_entry_is_rebuilt_silently(tmp_path: Path, damage: str) -> None:
    Cache(tmp_path).put(KEY, b"object" * 10)
    path = entry_file(tmp_path)
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-3])
    elif damage == "flip":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "old format":
        path.write_bytes(b"isthmus-cache-0\n" + data[16:])
    else:
        other = Cache(tmp_path / "other")
        other.put(digest("something else"), b"object" * 10)
        path.write_bytes(entry_file(tmp_path / "other").read_bytes())
    again = Cache(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert again.get_or_make(KEY, lambda: b"rebuilt") == b"rebuilt"
    assert again.counters.damaged == 1
    assert Cache(tmp_path).get(KEY) == b"rebuilt"


def test_entry_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    Cache(tmp_path).put(KEY, b"object")
    entry_file(tmp_path).chmod(0o666)
    assert Cache(tmp_path).get(KEY) is None


def test_entry_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    Cache(tmp_path / "c").put(KEY, b"object")
    path = entry_file(tmp_path / "c")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert Cache(tmp_path / "c").get(KEY) is None


def test_folder_that_others_may_write_is_refused_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    unsafe = Cache(tmp_path)
    with pytest.warns(RuntimeWarning, match="written by others") as caught:
        assert unsafe.get_or_make(KEY, lambda: b"a") == b"a"
        assert unsafe.get_or_make(KEY, lambda: b"b") == b"a"
    assert len(caught) == 1
    assert not list(tmp_path.iterdir())


def test_unwritable_folder_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Cache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be made") as caught:
        for key in (KEY, digest("another")):
            assert broken.get_or_make(key, lambda: b"a") == b"a"
    assert len(caught) == 1


def test_full_disk_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Cache(tmp_path)

    def no_space(*_: object, **__: object) -> tuple[int, str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.tempfile, "mkstemp", no_space)
    with pytest.warns(RuntimeWarning, match="No space left") as caught:
        for key in (KEY, digest("another")):
            assert full.get_or_make(key, lambda: b"a") == b"a"
    assert len(caught) == 1 and full.get(KEY) == b"a"


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", refuse)
    with pytest.warns(RuntimeWarning):
        Cache(tmp_path).put(KEY, b"object")
    monkeypatch.undo()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_clear_and_forget(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put(KEY, b"object")
    store.forget_memory()
    assert store.get(KEY) == b"object"
    store.clear()
    assert store.get(KEY) is None


def test_directory_is_chosen_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "a"))
    assert cache.current().directory == tmp_path / "a"
    assert cache.current() is cache.current()
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", "")
    assert cache.current().directory is None
    assert cache.current().get_or_make(KEY, lambda: b"m") == b"m"
    monkeypatch.delenv("ISTHMUS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_directory() == tmp_path / "isthmus"


WORKER = """
import sys
from pathlib import Path
from isthmus.runtime.cache import Cache, digest
store = Cache(Path(sys.argv[1]))
for k in range(200):
    entry = store.get_or_make(digest(str(k % 20)), lambda: (b"%d" % (k % 20)) * 5000)
    assert entry == (b"%d" % (k % 20)) * 5000
    store.forget_memory()
print(store.counters.damaged, store.counters.misses)
"""


@pytest.mark.row("R2")
def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [w.communicate()[0].split() for w in workers]
    assert [w.returncode for w in workers] == [0, 0]
    assert [o[0] for o in outputs] == ["0", "0"]
    third = subprocess.run(command, capture_output=True, text=True, check=True)
    assert third.stdout.split() == ["0", "0"]


def test_threads_share_a_cache(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    wrong: list[int] = []

    def work() -> None:
        for k in range(100):
            data = b"%d" % (k % 10)
            if store.get_or_make(digest(data), lambda data=data: data) != data:
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    total = store.counters
    assert not wrong
    assert total.memory_hits + total.disk_hits + total.misses == 400
