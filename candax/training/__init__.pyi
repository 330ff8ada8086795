from .checkpoints import Checkpoints as Checkpoints
from .evaluation import embed as embed, evaluate as evaluate, evaluate_dataset as evaluate_dataset
from .feed import BatchSource as BatchSource
from .links import evaluate_links as evaluate_links
from .loop import fit as fit
from .processes import class_mesh as class_mesh, connect as connect
from .program import Program as Program, TrainState as TrainState, build as build, fit_program as fit_program
from .retrieval import (
    evaluate_retrieval as evaluate_retrieval,
    exact_search as exact_search,
    index_search as index_search,
)
from .run import Fitted as Fitted
from .saved import Loaded as Loaded, export as export, load as load
from .stopping import Interrupted as Interrupted
from .validation import Validation as Validation, mean_over as mean_over
from .verifying import Verification as Verification, cosines as cosines, rank_1 as rank_1, verification as verification
from .word2vec import (
    Trained as Trained,
    train_word2vec as train_word2vec,
    word2vec_batches as word2vec_batches,
    word2vec_loss as word2vec_loss,
    word2vec_program as word2vec_program,
)
from .word_scores import (
    Analogies as Analogies,
    Similarity as Similarity,
    word_analogies as word_analogies,
    word_similarity as word_similarity,
)
