"""What recipes and the papers' studies share: settings of a command, the runner, one table and one picture."""

from candax.recipes.common.heads import full_softmax_for as full_softmax_for, plain_head as plain_head
from candax.recipes.common.optimizers import averaged_adam as averaged_adam, row_adagrad as row_adagrad
from candax.recipes.common.report import (
    Column as Column,
    Line as Line,
    Panel as Panel,
    bars as bars,
    below as below,
    columns as columns,
    curves as curves,
    dots as dots,
    figure_of as figure_of,
    level as level,
    over as over,
    reached as reached,
    reaching as reaching,
    relative as relative,
    sweep as sweep,
)
from candax.recipes.common.results import folder_for as folder_for, kept_once as kept_once
from candax.recipes.common.settings import (
    Count as Count,
    NonNegative as NonNegative,
    NotNegative as NotNegative,
    Out as Out,
    Positive as Positive,
    Settings as Settings,
    Share as Share,
    model_folder as model_folder,
    new_folder as new_folder,
    writable_folder as writable_folder,
)
from candax.recipes.common.study import (
    Method as Method,
    Row as Row,
    Study as Study,
    command as command,
    first_finite as first_finite,
    run as run,
)
from candax.recipes.common.training import (
    MEASURED_AT as MEASURED_AT,
    Measure as Measure,
    Run as Run,
    Training as Training,
)
