"""Places of batches in a run: an epoch, and an index within it."""


def check_position(position: tuple[int, int], batches_per_epoch: int) -> tuple[int, int]:
    """The epoch and the index of a batch.

    Raises:
        IndexError: if there is no such batch.

    Example:
        >>> check_position((7, 2), 3)
        (7, 2)
    """
    epoch, index = position
    if epoch < 0 or not 0 <= index < batches_per_epoch:
        raise IndexError(
            f"expected an epoch of 0 or more and an index from 0 to {batches_per_epoch - 1}; "
            f"got epoch {epoch}, index {index}"
        )
    return epoch, index
