from . import (
    common as common,
    extreme as extreme,
    faces as faces,
    links as links,
    retrieval as retrieval,
    words as words,
)
