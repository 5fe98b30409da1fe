"""PyTorch's CUDA caching allocator, one stream (c10/cuda/CUDACachingAllocator.cpp)."""

import bisect

SMALL, SMALL_SEGMENT, LARGE_SEGMENT, HUGE, ROUND = 2**20, 2 * 2**20, 20 * 2**20, 10 * 2**20, 2 * 2**20


class AllocationFailed(MemoryError):
    def __init__(self, requested: int, segment: int):
        super().__init__(f"no room for a segment of {segment} bytes")
        self.requested, self.segment = requested, segment


class SimulatedDriver:
    """cudaMalloc and cudaFree of a card with `capacity` bytes."""

    def __init__(self, capacity: int):
        self.capacity, self.used, self.sizes, self.next = capacity, 0, {}, 1 << 40

    def malloc(self, nbytes: int) -> int | None:
        if self.used + nbytes > self.capacity:
            return None
        address, self.next = self.next, self.next + nbytes
        self.sizes[address] = nbytes
        self.used += nbytes
        return address

    def free(self, address: int) -> None:
        self.used -= self.sizes.pop(address)


class Block:
    __slots__ = ("address", "free", "next", "pool", "previous", "size")

    def __init__(self, address, size, pool, previous=None, following=None):
        self.address, self.size, self.pool = address, size, pool
        self.previous, self.next, self.free = previous, following, True


class CachingAllocator:
    def __init__(self, driver, expandable_segments: bool = False):
        if expandable_segments:
            raise ValueError("expandable segments are not modelled yet")
        self.driver, self.small, self.large = driver, [], []
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.driver_calls = self.retries = 0

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def malloc(self, nbytes: int) -> Block:
        size = max(512, -(-nbytes // 512) * 512)
        pool = self.small if size <= SMALL else self.large
        block = self._cached(pool, size) or self._segment(pool, size)
        rest = block.size - size
        if rest >= 512 if pool is self.small else rest > SMALL:
            tail = Block(block.address + size, rest, pool, block, block.next)
            if block.next:
                block.next.previous = tail
            block.next, block.size = tail, size
            self._insert(tail)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def _cached(self, pool, size):
        index = bisect.bisect_left(pool, (size, -1))
        return pool.pop(index)[2] if index < len(pool) else None

    def _segment(self, pool, size) -> Block:
        nbytes = SMALL_SEGMENT if size <= SMALL else LARGE_SEGMENT if size < HUGE else -(-size // ROUND) * ROUND
        address = self.driver.malloc(nbytes)
        if address is None:
            self.retries += 1
            self.empty_cache()
            address = self.driver.malloc(nbytes)
            if address is None:
                raise AllocationFailed(size, nbytes)
        self.driver_calls += 1
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block(address, nbytes, pool)

    def _insert(self, block) -> None:
        bisect.insort(block.pool, (block.size, block.address, block))

    def _remove(self, block) -> None:
        block.pool.pop(bisect.bisect_left(block.pool, (block.size, block.address)))

    def free(self, block: Block) -> None:
        self.allocated -= block.size
        block.free = True
        before, after = block.previous, block.next
        if before is not None and before.free:
            self._remove(before)
            block.address, block.size, block.previous = before.address, block.size + before.size, before.previous
            if block.previous:
                block.previous.next = block
        if after is not None and after.free:
            self._remove(after)
            block.size, block.next = block.size + after.size, after.next
            if block.next:
                block.next.previous = block
        self._insert(block)

    def empty_cache(self) -> None:
        """Give whole free segments back to the driver."""
        for pool in (self.small, self.large):
            whole = [entry for entry in pool if entry[2].previous is None and entry[2].next is None]
            pool[:] = [entry for entry in pool if entry[2].previous is not None or entry[2].next is not None]
            for size, address, _ in whole:
                self.driver.free(address)
                self.reserved -= size
