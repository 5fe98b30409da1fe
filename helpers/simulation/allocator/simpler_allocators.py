"""Allocators that leave out a part of PyTorch's, to see what the part is worth. No real card works like this."""

from helpers.simulation.allocator.caching_allocator import CachingAllocator


class WithoutRounding(CachingAllocator):
    """A block has exactly the bytes that were asked for: no multiples of 512, no tail that stays with its block."""

    _block_size = staticmethod(lambda nbytes: nbytes)

    def _should_split(self, block, size):
        return block.size > size


class WithoutCaching(CachingAllocator):
    """Every tensor is a segment of its own, and goes back to the driver at once: reserved is what is allocated."""

    _segment_size = staticmethod(lambda size: size)

    def free(self, block):
        super().free(block)
        self.empty_cache()
