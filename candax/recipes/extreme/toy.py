"""A data set that is learned in seconds, for ``--quick``."""

import numpy as np
from scipy.sparse import csr_array

from candax.data import Dataset, Examples

_EXAMPLES, _FEATURES, _CLASSES = 64, 30, 20


def toy() -> Dataset:
    """64 examples of 30 features and 20 classes; the first of an example's two classes can be read off a feature."""
    row = np.arange(_EXAMPLES)
    features = np.zeros((_EXAMPLES, _FEATURES), np.float32)
    features[row, row % _CLASSES] = 1
    features[row, _CLASSES + row % (_FEATURES - _CLASSES)] = 0.5
    labels = np.zeros((_EXAMPLES, _CLASSES), bool)
    labels[row, row % _CLASSES] = labels[row, (7 * row + 1) % _CLASSES] = True
    examples = Examples(csr_array(features), csr_array(labels))
    return Dataset("toy", examples, examples)
