"""PyTorch's CUDA caching allocator for one stream.

`malloc` is the list of attempts that it is in c10/cuda/CUDACachingAllocator.cpp, with the same names in the same order,
so the two can be read side by side. Left out, since the series uses none of it: streams and events, CUDA graphs and
memory pools. All sizes are bytes.
"""

from bisect import bisect_left
from dataclasses import dataclass

from helpers.simulation.allocator.blocks import LARGE_BUFFER, SMALL_BUFFER, Block, Pool
from helpers.simulation.allocator.expandable_segments import ExpandableSegments, expandable_size
from helpers.simulation.allocator.giving_back import garbage_collect_cached_blocks, release_available_cached_blocks
from helpers.simulation.allocator.settings import MIN_BLOCK, Settings

SMALL_SIZE = 2**20  # kSmallSize: the largest request that goes to the small pool
MIN_LARGE_ALLOC = 10 * 2**20  # kMinLargeAlloc: from here on a new segment is as large as the request, ...
ROUND_LARGE = 2 * 2**20  # kRoundLarge: ... rounded up to a multiple of this


class AllocationFailed(MemoryError):
    """There is no room, although the cache was given back.

    requested: bytes asked for. segment: bytes of the segment for them, the "Tried to allocate" of PyTorch's message.
    """

    def __init__(self, requested: int, segment: int):
        super().__init__(f"no room for {requested} bytes in a segment of {segment} bytes")
        self.requested, self.segment = requested, segment


class SimulatedDriver:
    """cudaMalloc and cudaFree of a card with `capacity` bytes. Addresses only grow; none is handed out twice."""

    def __init__(self, capacity: int):
        self.capacity, self.used = capacity, 0
        self._sizes, self._next = {}, 2**40

    def malloc(self, nbytes: int) -> int | None:
        """The address of `nbytes` bytes, or None where they do not fit."""
        if self.used + nbytes > self.capacity:
            return None
        address, self._next = self._next, self._next + nbytes
        self._sizes[address] = nbytes
        self.used += nbytes
        return address

    def free(self, address: int) -> None:
        self.used -= self._sizes.pop(address)


@dataclass(frozen=True)
class Segment:
    """Reserved memory in one piece. blocks: (address, size, is_free) in order, without gaps."""

    address: int
    size: int
    blocks: list[tuple[int, int, bool]]
    is_small: bool = False  # of the small pool


def get_allocation_size(size: int) -> int:
    """The size of the segment that the driver is asked for when no cached block holds `size` bytes."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class CachingAllocator:
    """`malloc`, `free` and `empty_cache` as PyTorch does them, with its counters.

    driver: `malloc(bytes)` gives an address or None, `free(address)` takes one back. With expandable segments it gives
    and takes pages, and has to say its `capacity`; see `ExpandableSegments`.

    allocated, reserved, peak_allocated, peak_reserved: what `torch.cuda.memory_allocated()` and its relatives count. A
    block counts whole, including a tail that was too small to split off. driver_calls: how often the driver gave
    memory. retries: how often `malloc` gave the cache back and asked again. tell: called with the name of each action
    as a memory snapshot names it ("alloc", "free", "segment_alloc", ...), an address and bytes, while it is not None.
    """

    def __init__(self, driver, expandable_segments: bool = False, settings: Settings | None = None):
        self.driver, self.settings, self.tell = driver, settings or Settings(expandable_segments), None
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.driver_calls = self.retries = 0
        self._small, self._large = Pool(is_small=True), Pool(is_small=False)
        self._heads = {}  # address of a segment -> its first block
        grow = self.settings.expandable_segments
        self._expandable = ExpandableSegments(driver, self._heads, self._mapped) if grow else None

    # What helpers/simulation/allocator/simpler_allocators.py leaves out.
    def _block_size(self, nbytes: int) -> int:
        return self.settings.round_size(nbytes)

    _segment_size = staticmethod(get_allocation_size)

    def malloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes.

        Zero bytes get no memory, as in PyTorch (a null pointer): a block at address 0 of size 0, in no segment.
        Raises AllocationFailed where neither the cache nor the driver has room, ValueError for what is no size.
        """
        if not isinstance(nbytes, int) or nbytes < 0:
            raise ValueError(f"malloc takes a number of bytes, 0 or more; got {nbytes!r}")
        if nbytes == 0:
            return Block(0, 0, None)
        size = self._block_size(nbytes)
        pool = self._small if size <= SMALL_SIZE else self._large

        block = self._get_free_block(pool, size)  # a cached one,
        if block is None:
            if self.settings.garbage_collection_threshold:
                garbage_collect_cached_blocks(self, self._large)  # (what is old goes back first)
            block = self._alloc_block(pool, size)  # else new memory,
        if block is None and release_available_cached_blocks(self, pool, size):  # else a large one goes back,
            block = self._alloc_block(pool, size)
        if block is None:
            self.empty_cache()  # else the whole cache goes back to the driver,
            self.retries += 1
            block = self._alloc_block(pool, size)  # and once more
        if block is None:
            self._tell("oom", 0, size)
            raise AllocationFailed(nbytes, self._segment_size(size))

        if self._should_split(block, size):
            pool.insert(block.split(size))
        block.is_free = False
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        self._tell("alloc", block.address, nbytes)
        return block

    def free(self, block: Block) -> None:
        """Put a block back into its pool. The driver gets nothing back. Raises ValueError where it is free already."""
        if block.is_free or not block.is_mapped:
            raise ValueError(f"the block at {block.address:#x} is free already")
        if block.size:
            self._tell("free", block.address, block.size)
            self.allocated -= block.size
            block.pool.insert_merged(block)

    def empty_cache(self) -> None:
        """Give cached memory back to the driver: whole free segments, or whole free pages of expandable segments."""
        for pool in (self._large, self._small):
            for _, _, block in list(pool.free):
                if self._expandable is not None:
                    self._expandable.release(block)
                elif block.is_whole_segment():
                    self.release_block(block)

    def release_block(self, block: Block) -> None:
        """Give a whole free segment back to the driver."""
        block.pool.erase(block)
        del self._heads[block.address]
        self.driver.free(block.address)
        self._count(-block.size, 0)
        self._tell("segment_free", block.address, block.size)

    def reset_peaks(self) -> None:
        """Let both peaks start anew from what is held now."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def segments(self) -> list[Segment]:
        """What is reserved, by address. An expandable segment gives one entry for each stretch that is mapped."""
        segments = []
        for _, block in sorted(self._heads.items()):
            blocks, is_small = [], block.pool.is_small
            while block is not None:
                if block.is_mapped:
                    blocks.append((block.address, block.size, block.is_free))
                block = block.next
                if blocks and (block is None or not block.is_mapped):
                    segments.append(Segment(blocks[0][0], sum(size for _, size, _ in blocks), blocks, is_small))
                    blocks = []
        return segments

    def _get_free_block(self, pool: Pool, size: int) -> Block | None:
        pool.searches += 1
        free = pool.free
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        if self._expandable is not None:
            # A block that can grow counts with the size it can grow to, so that one that cannot is used first.
            while index + 1 < len(free) and expandable_size(free[index + 1][2]) < expandable_size(free[index][2]):
                index += 1
        limit, found = self.settings.max_split_size, free[index][0]
        if limit is not None and (found >= limit if size < limit else found >= size + LARGE_BUFFER):
            return None  # it is not split, so it would be wasted on this request
        return free.pop(index)[2]

    def _alloc_block(self, pool: Pool, size: int) -> Block | None:
        if self._expandable is not None:
            return self._expandable.allocate(pool, size)
        nbytes = self._segment_size(size)
        address = self.driver.malloc(nbytes)
        if address is None:
            return None
        self._count(nbytes, 1)
        self._tell("segment_alloc", address, nbytes)
        block = self._heads[address] = Block(address, nbytes, pool)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small or self._expandable is not None:
            return rest >= MIN_BLOCK
        limit = self.settings.max_split_size
        return rest > SMALL_SIZE and (limit is None or size < limit)

    def _tell(self, action: str, address: int, nbytes: int) -> None:
        if self.tell is not None:
            self.tell(action, address, nbytes)

    def _mapped(self, change: int, calls: int, action: str = "", address: int = 0) -> None:
        """An expandable segment took pages or gave them back."""
        self._count(change, calls)
        if action:
            self._tell(action, address, abs(change))

    def _count(self, change: int, calls: int) -> None:
        self.reserved += change
        self.driver_calls += calls
        self.peak_reserved = max(self.peak_reserved, self.reserved)
