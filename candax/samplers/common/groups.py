"""Groups: runs of consecutive examples that share one candidate set."""

from candax.base import Query


def count_groups(num_groups: int | None, query: Query) -> int:
    """The number of groups of this batch: ``num_groups``, or one per example where that is None."""
    batch_size = query.embeddings.shape[0]
    groups = batch_size if num_groups is None else num_groups
    if batch_size % max(groups, 1):
        raise ValueError(
            f"expected num_groups to divide the batch size, got num_groups={groups} for a batch of {batch_size}. "
            "Change either, or pass num_groups=None for one candidate set per example."
        )
    return groups
