"""Expandable segments, as in c10/cuda/CUDACachingAllocator.cpp: a pool keeps one segment, and the segment grows.

A segment is a stretch of virtual addresses, 9/8 of the card long. Memory is put behind it (mapped) page by page where a
request does not fit, and taken away (unmapped) in whole free pages. So a new request can use the free end of what is
mapped and only adds what is missing, where a plain segment of a fixed size would have to be large enough by itself.
"""

from bisect import insort
from operator import attrgetter

from helpers.simulation.allocator.blocks import LARGE_BUFFER, Block, Pool


def expandable_size(block: Block) -> int:
    """Bytes that a free block can grow to."""
    return block.size + (block.next.size if block.next is not None and not block.next.is_mapped else 0)


class ExpandableSegments:
    """The segments of both pools.

    driver: `malloc(pool.page)` gives one page of memory (cuMemCreate) or None, `free` takes it back. What it returns is
    only a handle here: blocks live at virtual addresses. heads: address of a segment -> its first block, kept up to
    date. count: called as `count(change of reserved bytes, calls of the driver that gave memory)`, with the action and
    the address where memory came or went.
    """

    def __init__(self, driver, heads: dict[int, Block], count):
        self.driver, self.heads, self.count = driver, heads, count
        self.pages = {}  # virtual address of a mapped page -> the driver's handle
        self.next_address = 2**20 * LARGE_BUFFER

    def allocate(self, pool: Pool, size: int) -> Block | None:
        """A block of at least `size` bytes, not in the pool, or None where the driver has no more pages.

        Pages mapped before the driver gave up stay mapped and cached.
        """
        block = self._find(pool, size)
        if not block.is_mapped:
            block = self._map(block, min(block.size, size))
        while block is not None and block.size < size:
            block = self._map(block.next, min(size - block.size, block.next.size))
        if block is not None:
            pool.erase(block)
        return block

    def _find(self, pool: Pool, size: int) -> Block:
        """The first of a row of free and unmapped blocks with room for `size`; of several rows the lowest address."""
        for block in pool.unmapped:
            if block.previous is not None and block.previous.is_free:
                block = block.previous
            room, end = 0, block
            while end is not None and room < size and (end.is_free or not end.is_mapped):
                room, end = room + end.size, end.next
            if room >= size:
                return block
        return self._reserve_addresses(pool)

    def _reserve_addresses(self, pool: Pool) -> Block:
        length = -(-self.driver.capacity * 9 // 8 // pool.page) * pool.page
        block = self.heads[self.next_address] = Block(self.next_address, length, pool, is_mapped=False)
        self.next_address += -(-length // LARGE_BUFFER) * LARGE_BUFFER  # keeps pages at multiples of their size
        self._insert_unmapped(block)
        return block

    def _map(self, block: Block, nbytes: int) -> Block | None:
        """Put memory behind the first `nbytes` of an unmapped block, in whole pages, all or none.

        The free block that they are now part of, or None.
        """
        page, handles = block.pool.page, {}
        for address in range(block.address, block.address + nbytes, page):
            handle = self.driver.malloc(page)
            if handle is None:
                self.count(0, len(handles))
                for handle in handles.values():
                    self.driver.free(handle)
                return None
            handles[address] = handle
        self.pages.update(handles)
        self.count(len(handles) * page, len(handles), "segment_map", block.address)
        block.pool.unmapped.remove(block)
        if block.size > len(handles) * page:
            self._insert_unmapped(block.split(len(handles) * page))
        block.is_mapped = True
        return block.pool.insert_merged(block)

    def release(self, block: Block) -> None:
        """Unmap the pages that lie whole inside a free block; what is left at its two ends stays cached."""
        pool, page = block.pool, block.pool.page
        begin, end = -(-block.address // page) * page, (block.address + block.size) // page * page
        if begin >= end:
            return
        pool.erase(block)
        if block.address + block.size > end:
            pool.insert(block.split(end - block.address))
        if block.address < begin:
            rest = block.split(begin - block.address)
            pool.insert(block)
            block = rest
        for address in range(begin, end, page):
            self.driver.free(self.pages.pop(address))
        self.count(begin - end, 0, "segment_unmap", begin)
        block.is_free = block.is_mapped = False
        before, after = block.previous, block.next
        if after is not None and not after.is_mapped:
            pool.unmapped.remove(after)
            block.absorb_next()
        if before is not None and not before.is_mapped:
            pool.unmapped.remove(before)
            block = before
            block.absorb_next()
        if block.previous is None and block.next is None:  # nothing is mapped any more: the addresses go back too
            del self.heads[block.address]
        else:
            self._insert_unmapped(block)

    def _insert_unmapped(self, block: Block) -> None:
        insort(block.pool.unmapped, block, key=attrgetter("address"))
