"""Who took what, in which order."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from candax.checks import check_positive, checked


class Row(NamedTuple):
    """One interaction."""

    user: str
    item: str
    time: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Interactions:
    """The items of every user, in order.

    Args:
        name: what tables and pictures call it.
        user_names: one name per user.
        item_names: one name per item, the most frequent first.
        items: the items of all users, user by user.
        offsets: where each user's items begin in ``items``, and where those of the last user end.
        left_out: interactions, and users, without an item that occurs often enough.
    """

    name: str
    user_names: tuple[str, ...]
    item_names: tuple[str, ...]
    items: Int32[np.ndarray, " N"]
    offsets: Int64[np.ndarray, " num_users_plus_1"]
    left_out: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        """The number of interactions."""
        return len(self.items)

    @property
    def num_items(self) -> int:
        """The number of items, each of which is a class."""
        return len(self.item_names)


@checked
def interactions_of(name: str, rows: Iterable[Row], *, min_count: int = 1) -> Interactions:
    """Makes interactions from rows: a user's items by their times, at equal times and without any in the rows' order.

    Args:
        name: of the data set.
        rows: in any order of users.
        min_count: items that occur less often are left out, and so are users left without an item.

    Raises:
        ValueError: if nothing is left; if only some rows have a time, or one that is not finite.

    Example:
        >>> shop = interactions_of("shop", [Row("ann", "tea"), Row("ann", "milk"), Row("bob", "tea")], min_count=2)
        >>> shop.item_names, shop.user_names
        (('tea',), ('ann', 'bob'))
    """
    check_positive("min_count", min_count)
    every = list(rows)
    counts = Counter(row.item for row in every)
    kept = [row for row in every if counts[row.item] >= min_count]
    if not kept:
        raise ValueError(
            f"{name}: expected interactions with items that occur {min_count} times or more, found none among "
            f"{len(every)}. Give more, or lower the minimum count."
        )
    timed = {row.time is not None for row in kept}
    if len(timed) > 1:
        raise ValueError(f"{name}: expected all interactions to have a time, or none; got both.")
    user_ids = {user: i for i, user in enumerate(dict.fromkeys(row.user for row in kept))}
    item_names = sorted({row.item for row in kept}, key=lambda item: (-counts[item], item))
    item_ids = {item: i for i, item in enumerate(item_names)}
    users = np.array([user_ids[row.user] for row in kept], np.int64)
    items = np.array([item_ids[row.item] for row in kept], np.int32)
    times = np.array([row.time for row in kept], np.float64) if timed == {True} else None
    if times is not None and not np.isfinite(times).all():
        raise ValueError(f"{name}: expected times that are finite numbers, got {times[~np.isfinite(times)][0]}.")
    order = np.lexsort((users,) if times is None else (times, users))  # stable: equals stay in the order of the rows
    offsets = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=len(user_ids)))]).astype(np.int64)
    left_out = len(every) - len(kept), len({row.user for row in every}) - len(user_ids)
    return Interactions(name, tuple(user_ids), tuple(item_names), items[order], offsets, left_out)
