"""`MemoryPool`: what batches of changing sizes allocate, and what is held between them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from support.runtimes.cuda_in_memory import CudaInMemory
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.device.memory_pool import BatchMemory, MemoryPool

SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40), min_size=1)


def held(cuda: CudaInMemory) -> int:
    return sum(size for size, _ in cuda.device.values())


@settings(deadline=None, max_examples=60)
@given(st.lists(SIZES, min_size=1, max_size=12))
def test_blocks_fit_and_take_no_more_than_the_largest_batch(batches: list[dict[str, int]]) -> None:
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    pool = MemoryPool(lambda name, nbytes: device.allocate(nbytes))
    for wanted in batches:
        wanted = dict.fromkeys("abcd", 1) | wanted
        fits = all(name in pool.blocks and pool.blocks[name].nbytes >= nbytes for name, nbytes in wanted.items())
        before = cuda.allocations
        blocks = pool.take(wanted)
        assert blocks.keys() == wanted.keys()
        assert all(blocks[name].nbytes >= nbytes for name, nbytes in wanted.items())
        assert len({block.address for block in blocks.values()}) == len(blocks)
        assert not fits or cuda.allocations == before
        pool.blocks |= blocks
        assert held(cuda) <= max(4 + sum(size - 1 for size in batch.values()) for batch in batches)


def test_a_batch_has_one_block_by_name_and_frees_what_it_does_not_return() -> None:
    cuda = CudaInMemory()
    device = CudaDevice(cuda)
    pools = [MemoryPool(lambda name, nbytes: device.allocate(nbytes))]
    pools.append(MemoryPool(lambda name, nbytes: device.allocate_host(nbytes)))
    first = BatchMemory(*pools, {"source": 100})
    host, memory = first.pair("step", 8)
    assert first.pair("step", 8) == (host, memory) and first.pair("step", 4) == (host, memory)
    larger = first.pair("step", 16)
    assert larger[0].nbytes == larger[1].nbytes == 16
    del host, memory
    assert len(cuda.host) == 1 and held(cuda) == 100 + 16
    first.put_back()
    second, third = (BatchMemory(*pools, {"source": 100}) for _ in range(2))
    assert second.pair("step", 16) == larger
    assert cuda.allocations == 1 + 2 + 2 + 1, "the third has its own"
    del first, larger
    del second
    assert held(cuda) == 100
    third.put_back()
