"""Row-sparse training: only the rows of a table that a step uses are read, differentiated, updated and written.

The gradient of a gather is in JAX a dense array as large as the table, and a dense optimizer step rewrites every row.
Here a lookup carries its own gradient (``lookups``), ``value_and_grad`` returns row gradients (``gradients``), and any
elementwise optax transformation acts on the rows that a step has used, alone (``by_rows``).
"""

from candax.rows.adding import adding_sgd
from candax.rows.averaging import averaged
from candax.rows.by_rows import RowUpdate, Rowwise, rowwise
from candax.rows.draws import Draw, update_sampler
from candax.rows.exact import exact_adam, exact_adamw, exact_momentum, exact_rmsprop
from candax.rows.gradients import RowGradients, UniqueRows, gather_rows, scatter_rows, unique_rows
from candax.rows.lookups import TableView, lookup
from candax.rows.pytrees import value_and_grad
from candax.rows.slots import settle
from candax.rows.tables import Constant, Lagging, Table, replicate, shard

__all__ = [
    "Constant",
    "Draw",
    "Lagging",
    "RowGradients",
    "RowUpdate",
    "Rowwise",
    "Table",
    "TableView",
    "UniqueRows",
    "adding_sgd",
    "averaged",
    "exact_adam",
    "exact_adamw",
    "exact_momentum",
    "exact_rmsprop",
    "gather_rows",
    "lookup",
    "replicate",
    "rowwise",
    "scatter_rows",
    "settle",
    "shard",
    "unique_rows",
    "update_sampler",
    "value_and_grad",
]
