from .averages import averaged_model as averaged_model
from .checkpoints import Checkpoints as Checkpoints
from .evaluation import embed as embed, evaluate as evaluate, evaluate_dataset as evaluate_dataset
from .feed import BatchSource as BatchSource
from .launch import class_mesh as class_mesh, connect as connect
from .loop import Interrupted as Interrupted, fit as fit
from .run import Fitted as Fitted
from .saved import Loaded as Loaded, export as export, load as load
from .validation import Validation as Validation, mean_over as mean_over
from .verifying import Verification as Verification, cosines as cosines, rank_1 as rank_1, verification as verification
