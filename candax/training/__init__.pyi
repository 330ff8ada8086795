from .checkpoints import Checkpoints as Checkpoints
from .evaluation import embed as embed
from .evaluation import evaluate as evaluate
from .evaluation import evaluate_dataset as evaluate_dataset
from .feed import BatchSource as BatchSource
from .links import evaluate_links as evaluate_links
from .loop import fit as fit
from .processes import class_mesh as class_mesh
from .processes import connect as connect
from .program import Program as Program
from .program import TrainState as TrainState
from .program import build as build
from .program import fit_program as fit_program
from .retrieval import (
    evaluate_retrieval as evaluate_retrieval,
)
from .retrieval import (
    exact_search as exact_search,
)
from .retrieval import (
    index_search as index_search,
)
from .run import Fitted as Fitted
from .saved import Loaded as Loaded
from .saved import export as export
from .saved import load as load
from .stopping import Interrupted as Interrupted
from .validation import Validation as Validation
from .validation import mean_over as mean_over
from .verifying import Verification as Verification
from .verifying import cosines as cosines
from .verifying import rank_1 as rank_1
from .verifying import verification as verification
from .word2vec import (
    Trained as Trained,
)
from .word2vec import (
    train_word2vec as train_word2vec,
)
from .word2vec import (
    word2vec_batches as word2vec_batches,
)
from .word2vec import (
    word2vec_loss as word2vec_loss,
)
from .word2vec import (
    word2vec_program as word2vec_program,
)
from .word_scores import (
    Analogies as Analogies,
)
from .word_scores import (
    Similarity as Similarity,
)
from .word_scores import (
    word_analogies as word_analogies,
)
from .word_scores import (
    word_similarity as word_similarity,
)
