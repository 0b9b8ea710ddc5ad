"""gp.memory.MemoryPool and eviction: quotas, blocks, what is refused, and random use against a model."""

import os
import threading

import hypothesis
import hypothesis.stateful as hs
import numpy as np
import pytest
from hypothesis import strategies as st

import pygpukit as gp

MIB = 1 << 20
BLOCK = 2 * MIB  # what the device maps at once


@pytest.fixture
def _no_eviction_after():
    yield
    gp.memory.set_eviction(False)
    gp.memory.set_limit(None)


def test_a_pool_counts_its_own():
    pool = gp.memory.MemoryPool(quota="8MiB", name="mine")
    other = gp.memory.MemoryPool()
    block = pool.allocate(1000)
    assert block.nbytes == 1000
    assert block.alive
    assert block.on_device
    with pool:
        x = gp.ones(1000, "uint8")
    stats = pool.stats()
    assert stats["quota"] == 8 * MIB
    assert stats["live_blocks"] == 2
    assert stats["live_bytes"] == 2000
    assert stats["used_bytes"] == 2 * 1024
    assert other.stats()["live_blocks"] == 0
    assert {each["tenant"] for each in pool.snapshot()} == {"mine"}
    assert sorted(each["bytes"] for each in pool.snapshot()) == [1000, 1000]
    assert int(gp.sum(x)) == 1000
    del x
    pool.free(block)
    assert pool.stats()["used_bytes"] == 0
    assert pool.stats()["peak_bytes"] >= 2048
    assert "mine" in repr(pool)


def test_write_and_read():
    pool = gp.memory.MemoryPool()
    block = pool.allocate(100)
    pool.write(block, bytes(100))
    pool.write(block, b"hello", offset=10)
    pool.write(block, np.arange(4, dtype=np.uint16), 92)
    assert pool.read(block, 5, 10) == b"hello"
    assert pool.read(block, offset=92) == np.arange(4, dtype=np.uint16).tobytes()
    assert pool.read(block)[:10] == bytes(10)
    assert pool.read(block, 0, 100) == b""
    for data, offset in [(b"12", 99), (b"1", 100), (b"", 101), (b"1", 2**70), (bytes(101), 0)]:
        with pytest.raises(gp.OutOfBoundsError):
            pool.write(block, data, offset)
    for nbytes, offset in [(2, 99), (1, 100), (None, 101), (2**70, 0), (2**63, 2**63)]:
        with pytest.raises(gp.OutOfBoundsError):
            pool.read(block, nbytes, offset)
    with pytest.raises(gp.InvalidValueError):
        pool.read(block, -1)
    with pytest.raises(gp.InvalidValueError):
        pool.write(block, b"1", -1)
    for data in ["text", 5, None, np.ones((4, 4))[:, ::2]]:
        with pytest.raises(gp.InvalidTypeError):
            pool.write(block, data)
    assert pool.read(block, 5, 10) == b"hello"


def test_wrong_sizes_and_arguments():
    pool = gp.memory.MemoryPool(quota=MIB)
    for size in (0, -1, -(2**70)):
        with pytest.raises(gp.InvalidValueError):
            pool.allocate(size)
    for size in (2**63, 2**64, 2**63 - 1, 2**40, MIB + 1):
        with pytest.raises(gp.OutOfMemoryError):
            pool.allocate(size)
    for size in (1.5, "1", None, True):
        with pytest.raises(gp.InvalidTypeError):
            pool.allocate(size)
    assert pool.stats()["used_bytes"] == 0
    for quota in (0, -1, 2**64, "lots"):
        with pytest.raises(gp.InvalidValueError):
            gp.memory.MemoryPool(quota)
    with pytest.raises(gp.InvalidTypeError):
        gp.memory.MemoryPool(1.5)
    with pytest.raises(gp.InvalidValueError):
        gp.memory.MemoryPool(qos="best")


def test_over_quota_names_the_holders():
    pool = gp.memory.MemoryPool(quota=MIB, name="tight")
    kept = [pool.allocate(300_000), pool.allocate(500_000)]
    with pytest.raises(MemoryError) as caught:
        pool.allocate(400_000)
    assert isinstance(caught.value, gp.OutOfMemoryError)
    message = str(caught.value)
    assert "'tight'" in message
    assert "500000 ('tight'), 300000 ('tight')" in message
    assert "eviction is off" in message
    assert all(block.alive for block in kept)


def test_blocks_that_are_gone():
    pool, other = gp.memory.MemoryPool(enable_eviction=True), gp.memory.MemoryPool()
    freed, cleared, foreign = pool.allocate(10), pool.allocate(10), other.allocate(10)
    pool.free(freed)
    pool.clear()
    assert [block.alive for block in (freed, cleared, foreign)] == [False, False, True]
    for block, why in [(freed, "freed"), (cleared, "cleared"), (foreign, "another pool")]:
        for use in (pool.free, pool.touch, pool.restore, pool.evict, pool.read, lambda b: pool.write(b, b"")):
            with pytest.raises(gp.InvalidValueError, match=why):
                use(block)
    assert pool.stats()["live_blocks"] == 0
    assert other.stats()["live_blocks"] == 1
    with pytest.raises(gp.InvalidValueError):
        pool.__exit__()


def test_a_block_goes_with_its_object():
    pool = gp.memory.MemoryPool()
    block = pool.allocate(1000)
    del block
    assert pool.stats()["live_blocks"] == 0


def test_a_capture_refuses():
    pool = gp.memory.MemoryPool(enable_eviction=True)
    block = pool.allocate(10)
    pool.write(block, b"0123456789")
    with gp.Graph():
        for use in (
            lambda: pool.allocate(1),
            lambda: pool.free(block),
            lambda: pool.read(block),
            lambda: pool.evict(block),
            pool.clear,
            pool.__enter__,
        ):
            with pytest.raises(gp.UnsupportedError):
                use()
    assert pool.read(block) == b"0123456789"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_refuses():
    pool = gp.memory.MemoryPool()
    block = pool.allocate(10)
    pool.write(block, b"0123456789")
    child = os.fork()
    if child == 0:
        try:
            pool.read(block)
        except gp.UnsupportedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pool.read(block) == b"0123456789"


def test_eviction_at_the_quota():
    pool = gp.memory.MemoryPool(quota=4 * BLOCK, enable_eviction=True)
    blocks = []
    for i in range(12):
        blocks.append(pool.allocate(BLOCK))
        pool.write(blocks[i], bytes([i]) * BLOCK)
    stats = pool.stats()
    assert stats["used_bytes"] <= 4 * BLOCK
    assert stats["live_blocks"] == 12
    assert stats["evicted_blocks"] >= 8
    assert {each["state"] for each in pool.snapshot()} <= {"live", "leaving", "evicted"}
    for i in [*range(12), *range(11, -1, -1), 3, 7, 1]:
        assert pool.read(blocks[i], 100, BLOCK - 100) == bytes([i]) * 100
    pool.touch(blocks[5])
    assert blocks[5].on_device
    assert pool.evict(blocks[5])
    assert not blocks[5].on_device
    pool.restore(blocks[5])
    assert blocks[5].on_device
    assert pool.read(blocks[5]) == bytes([5]) * BLOCK
    for block in blocks:
        pool.free(block)
    assert pool.stats()["used_bytes"] == 0


def test_a_pool_without_eviction_refuses_to_evict():
    pool = gp.memory.MemoryPool()
    with pytest.raises(gp.UnsupportedError):
        pool.evict(pool.allocate(BLOCK))
    small = gp.memory.MemoryPool(enable_eviction=True)
    assert not small.evict(small.allocate(1000))  # too small to move


@pytest.mark.usefixtures("_no_eviction_after")
def test_arrays_over_twice_the_limit():
    gp.memory.trim()
    gp.memory.set_limit(gp.memory.stats()["reserved_bytes"] + 8 * BLOCK)
    gp.memory.set_eviction(True)
    before = gp.memory.stats()["evictions"]
    arrays = [gp.full(BLOCK // 4, i, "int32") for i in range(16)]
    for _ in range(3):
        for i in range(16):
            arrays[i] += arrays[(i + 1) % 16]
    expected = [np.int64(i) for i in range(16)]
    for _ in range(3):
        for i in range(16):
            expected[i] += expected[(i + 1) % 16]
    for array, value in zip(arrays, expected, strict=True):
        assert int(array[0]) == int(array[-1]) == value
        assert int(gp.min(array)) == int(gp.max(array)) == value
    assert gp.memory.stats()["evictions"] > before + 16
    exposed = arrays[0]
    address = exposed.data_ptr
    for i in range(1, 16):
        arrays[i] += 1
    assert exposed.data_ptr == address
    states = {each["address"]: each["state"] for each in gp.memory.snapshot()}
    assert states[address] == "live"  # it may not leave


def test_threads_share_a_pool():
    pool = gp.memory.MemoryPool(quota=8 * BLOCK, enable_eviction=True)
    wrong = []

    def work(mark):
        blocks = [pool.allocate(BLOCK) for _ in range(4)]
        for _ in range(10):
            for block in blocks:
                pool.write(block, bytes([mark]) * 64, BLOCK - 64)
            for block in blocks:
                if pool.read(block, 64, BLOCK - 64) != bytes([mark]) * 64:
                    wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.stats()["live_blocks"] == 0


def test_classes_and_snapshot_of_the_device():
    x = gp.empty(3000, "uint8")
    classes = gp.memory.stats()["classes"]
    assert classes[3072]["live"] >= 1
    mine = [each for each in gp.memory.snapshot() if each["address"] == x.data_ptr]
    assert [(each["bytes"], each["class_bytes"], each["state"]) for each in mine] == [(3000, 3072, "live")]
    with pytest.raises(gp.InvalidValueError):
        gp.memory.set_limit(-1)


class PoolMachine(hs.RuleBasedStateMachine):
    """Random use of two pools that evict, against dictionaries of bytes: up to 1,000 steps."""

    QUOTA = 3 * BLOCK

    def __init__(self):
        super().__init__()
        self.pools = [
            gp.memory.MemoryPool(self.QUOTA, enable_eviction=True),
            gp.memory.MemoryPool(self.QUOTA, enable_eviction=True, qos="best_effort"),
        ]
        self.blocks = [{}, {}]  # block -> what its first and last 16 bytes are

    which = st.integers(0, 1)
    pick = st.integers(0, 1000)

    def any_block(self, pool, pick):
        blocks = list(self.blocks[pool])
        return blocks[pick % len(blocks)] if blocks else None

    @hs.rule(
        pool=which,
        nbytes=st.sampled_from([32, 5000, BLOCK, BLOCK + 1, 2 * BLOCK]),
        mark=st.binary(min_size=16, max_size=16),
    )
    def allocate(self, pool, nbytes, mark):
        if len(self.blocks[pool]) == 8:
            return
        block = self.pools[pool].allocate(nbytes)
        self.pools[pool].write(block, mark)
        self.pools[pool].write(block, mark, nbytes - 16)
        self.blocks[pool][block] = mark

    @hs.rule(pool=which, nbytes=st.integers(QUOTA + 1, 2**65))
    def allocate_too_much(self, pool, nbytes):
        with pytest.raises(gp.OutOfMemoryError):
            self.pools[pool].allocate(nbytes)

    @hs.rule(pool=which, pick=pick)
    def free(self, pool, pick):
        block = self.any_block(pool, pick)
        if block is not None:
            self.pools[pool].free(block)
            del self.blocks[pool][block]

    @hs.rule(pool=which, pick=pick, how=st.sampled_from(["evict", "touch", "restore"]))
    def move(self, pool, pick, how):
        block = self.any_block(pool, pick)
        if block is not None:
            getattr(self.pools[pool], how)(block)
            assert block.on_device or how == "evict"

    @hs.rule(pool=which, pick=pick, mark=st.binary(min_size=16, max_size=16))
    def write(self, pool, pick, mark):
        block = self.any_block(pool, pick)
        if block is not None:
            self.pools[pool].write(block, mark)
            self.pools[pool].write(block, mark, block.nbytes - 16)
            self.blocks[pool][block] = mark

    @hs.rule(pool=which, pick=pick)
    def read(self, pool, pick):
        block = self.any_block(pool, pick)
        if block is not None:
            assert self.pools[pool].read(block, 16) == self.blocks[pool][block]
            assert self.pools[pool].read(block, 16, block.nbytes - 16) == self.blocks[pool][block]

    @hs.rule(pool=which)
    def clear(self, pool):
        self.pools[pool].clear()
        self.blocks[pool] = {}

    @hs.rule()
    def trim(self):
        gp.memory.trim()

    @hs.invariant()
    def counts_agree(self):
        for pool, blocks in zip(self.pools, self.blocks, strict=True):
            stats = pool.stats()
            assert stats["live_blocks"] == len(blocks)
            assert stats["live_bytes"] == sum(block.nbytes for block in blocks)
            assert stats["used_bytes"] <= self.QUOTA

    def teardown(self):
        for pool in self.pools:
            pool.clear()
            assert pool.stats()["used_bytes"] == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = hypothesis.settings(max_examples=25, stateful_step_count=40)
