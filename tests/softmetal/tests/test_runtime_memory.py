"""The arena below every mps tensor: addresses, reuse, threads, and what it knows of written bytes."""

import ctypes
import random
import threading

import pytest
from softmetal import runtime

GUARD = 64 * 1024


@pytest.fixture(scope="module")
def library():
    return runtime.load()


def first_unwritten(library, address, count, itemsize=1, stride=1):
    sizes, strides = (ctypes.c_int64 * 1)(count), (ctypes.c_int64 * 1)(stride)
    return library.smr_first_unwritten(address, itemsize, 1, sizes, strides)


class TestArena:
    def test_alignment(self, library):
        for size, alignment in [(1, 256), (100, 256), (16 * 1024 - 1, 256), (16 * 1024, 4096), (10**6, 4096)]:
            blocks = [library.smr_arena_alloc(size) for _ in range(20)]
            assert all(block % alignment == 0 for block in blocks)
            for block in blocks:
                library.smr_arena_free(block)

    def test_guard_room(self, library):
        sizes = [1, 256, 5000, GUARD, GUARD + 1, 10**6]
        blocks = sorted((library.smr_arena_alloc(size), size) for size in sizes * 3)
        for (first, size), (second, _) in zip(blocks, blocks[1:], strict=False):
            assert second - (first + size) >= GUARD - 4096  # the second may start inside its first page
        for block, _ in blocks:
            library.smr_arena_free(block)

    def test_contains(self, library):
        block = library.smr_arena_alloc(10)
        assert library.smr_arena_contains(ctypes.c_void_p(block))
        assert not library.smr_arena_contains(ctypes.c_void_p(id(block)))
        library.smr_arena_free(block)

    def test_freed_ranges_are_used_again(self, library):
        seen = set()
        for _ in range(2000):
            block = library.smr_arena_alloc(10**6)
            seen.add(block)
            library.smr_arena_free(block)
        assert len(seen) < 10

    def test_a_large_freed_block_comes_back_as_zeros(self, library):
        """Its pages went back to the system: memory that tensors gave up does not count against the process."""
        block = library.smr_arena_alloc(10**6)
        ctypes.memset(block, 1, 10**6)
        library.smr_arena_free(block)
        again = library.smr_arena_alloc(10**6)
        assert again == block and not any(ctypes.string_at(again, 10**6))
        library.smr_arena_free(again)

    def test_no_room(self, library):
        assert library.smr_arena_alloc(2**60) is None
        assert library.smr_arena_alloc(2**64 - 1) is None

    def test_blocks_do_not_overlap(self, library):
        """Random allocations by four threads at once; each block holds its owner's mark until it is freed."""
        broken = []

        def work(mark):
            rng, mine = random.Random(mark), []
            for _ in range(2000):
                if mine and rng.random() < 0.5:
                    block, size = mine.pop(rng.randrange(len(mine)))
                    if size and ctypes.string_at(block, size) != bytes([mark]) * size:
                        broken.append(block)
                    library.smr_arena_free(block)
                else:
                    size = rng.choice([0, 1, 300, 5000, 70_000])
                    block = library.smr_arena_alloc(size)
                    ctypes.memset(block, mark, size)
                    mine.append((block, size))
            for block, _ in mine:
                library.smr_arena_free(block)

        workers = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2, 3, 4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not broken


class TestWrittenBytes:
    """What no kernel was bound to is nobody's business; the kernels' side is in test_checks_planted."""

    def test_unbound_memory_is_not_tracked(self, library):
        block = library.smr_arena_alloc(100)
        assert first_unwritten(library, block, 100) == -1
        library.smr_mark_written(block, 10)
        assert first_unwritten(library, block, 100) == -1
        assert library.smr_unwritten_kernel(block) == b""
        library.smr_arena_free(block)

    def test_outside_the_arena(self, library):
        buffer = ctypes.create_string_buffer(8)
        library.smr_mark_fresh(ctypes.addressof(buffer), 8)
        library.smr_mark_written(ctypes.addressof(buffer), 8)
        assert first_unwritten(library, ctypes.addressof(buffer), 8) == -1


class TestBuild:
    def test_the_name_is_the_content(self, library):
        path = runtime.library_path()
        assert path.exists() and path.parent == runtime.build_directory()
        before = path.stat().st_mtime_ns
        assert runtime.library_path() == path and path.stat().st_mtime_ns == before

    def test_the_cache_may_be_elsewhere(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path))
        assert runtime.build_directory().parent == tmp_path

    def test_no_compiler(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(RuntimeError, match="needs a C\\+\\+17 compiler"):
            runtime.library_path()

    def test_a_source_that_does_not_build(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path))
        monkeypatch.setenv("CXX", "false")
        with pytest.raises(RuntimeError, match="does not build"):
            runtime.library_path()
        assert not list(tmp_path.rglob("*.so"))
