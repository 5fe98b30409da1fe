"""What PyTorch's allocator gives back to the driver before it empties its whole cache, where a setting asks for it."""

from bisect import bisect_left


def garbage_collect_cached_blocks(allocator, pool) -> None:
    """With `garbage_collection_threshold`: give back whole cached segments of the large pool, the oldest first.

    Only when more is reserved than that fraction of the driver's capacity. A block's age is how often a block was
    looked for since it was cached. All that are at least as old as the average go, also beyond what is needed, and
    again, until reserved is below the threshold or nothing whole is left.
    """
    settings = allocator.settings
    wanted = allocator.reserved - int(settings.garbage_collection_threshold * allocator.driver.capacity)
    whole = [] if settings.expandable_segments else [block for *_, block in pool.free if block.is_whole_segment()]
    while wanted > 0 and whole:
        ages = [pool.searches - block.cached_at for block in whole]
        average = sum(ages) / len(ages)
        for block, age in zip(whole, ages, strict=True):
            if age >= average:
                wanted -= block.size
                allocator.release_block(block)
        whole = [block for block, age in zip(whole, ages, strict=True) if age < average]


def release_available_cached_blocks(allocator, pool, size: int) -> bool:
    """With `max_split_size`: give back one cached block that is large enough, else several from the largest down.

    Only blocks of at least max_split_size, which are whole segments since nothing splits them. Whether enough went.
    """
    limit = allocator.settings.max_split_size
    if limit is None or allocator.settings.expandable_segments:
        return False
    wanted = max(size, limit)
    index = bisect_left(pool.free, (wanted,))
    if index < len(pool.free):
        allocator.release_block(pool.free[index][2])
        return True
    released = 0
    while pool.free and released < wanted and pool.free[-1][0] >= limit:
        block = pool.free[-1][2]
        released += block.size
        allocator.release_block(block)
    return released >= wanted
