from . import (
    common as common,
)
from . import (
    extreme as extreme,
)
from . import (
    faces as faces,
)
from . import (
    links as links,
)
from . import (
    retrieval as retrieval,
)
from . import (
    words as words,
)
