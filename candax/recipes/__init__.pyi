from . import (
    common as common,
    extreme as extreme,
    faces as faces,
    language as language,
    links as links,
    predict as predict,
    retrieval as retrieval,
    sequences as sequences,
    words as words,
)
from .extreme.classifier import ExtremeClassifier as ExtremeClassifier
from .links.predictor import LinkPredictor as LinkPredictor
from .predict.loading import load as load
from .retrieval.recommender import TwoTowerRecommender as TwoTowerRecommender
from .sequences.recommender import SequenceRecommender as SequenceRecommender
