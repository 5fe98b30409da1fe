"""The pieces that PyTorch's caching allocator cuts memory into, and the pools of free ones."""

from bisect import bisect_left, insort

SMALL_BUFFER = 2 * 2**20  # kSmallBuffer: bytes of a segment, or of a page, of the small pool
LARGE_BUFFER = 20 * 2**20  # kLargeBuffer: bytes of a segment for a middling request, or of a page, of the large pool


class Block:
    """A piece of a segment, linked to its neighbours there. Addresses and sizes are bytes.

    is_free: cached, and nobody uses it. is_mapped: there is memory behind it; only expandable segments have blocks
    without, which count neither as free nor as used.
    """

    __slots__ = ("address", "cached_at", "is_free", "is_mapped", "next", "pool", "previous", "size")

    def __init__(self, address: int, size: int, pool, previous=None, following=None, is_mapped: bool = True):
        self.address, self.size, self.pool = address, size, pool
        self.previous, self.next = previous, following
        self.is_free, self.is_mapped, self.cached_at = False, is_mapped, 0

    def split(self, size: int) -> "Block":
        """Keep the first `size` bytes; the rest, as a new block behind this one."""
        rest = Block(self.address + size, self.size - size, self.pool, self, self.next, self.is_mapped)
        if rest.next is not None:
            rest.next.previous = rest
        self.next, self.size = rest, size
        return rest

    def is_whole_segment(self) -> bool:
        return self.previous is None and self.next is None

    def absorb_next(self) -> None:
        """Take in the next block. The left one stays, so the first block of a segment is always the same object."""
        self.size += self.next.size
        self.next = self.next.next
        if self.next is not None:
            self.next.previous = self


class Pool:
    """Free blocks ordered by (size, address): the first one large enough fits best, ties go to the lowest address.

    unmapped: blocks of expandable segments with no memory behind them, by address. page: bytes these map at a time.
    searches: how often a block was looked for here, the clock by which garbage collection tells a block's age.
    """

    def __init__(self, is_small: bool):
        self.is_small, self.page = is_small, SMALL_BUFFER if is_small else LARGE_BUFFER
        self.free, self.unmapped, self.searches = [], [], 0

    def insert(self, block: Block) -> None:
        block.is_free, block.cached_at = True, self.searches
        insort(self.free, (block.size, block.address, block))

    def erase(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]

    def insert_merged(self, block: Block) -> Block:
        """Insert `block`, made one with its free neighbours; the block that results."""
        before, after = block.previous, block.next
        if after is not None and after.is_free:
            self.erase(after)
            block.absorb_next()
        if before is not None and before.is_free:
            self.erase(before)
            block.is_free = True  # its bytes belong to `before` now; to free it once more is an error
            block = before
            block.absorb_next()
        self.insert(block)
        return block
