"""Every kind of object and file that torch.save can leave behind: the rows of docs/reference/objects.md."""

from kinds import dense, files, foreign, layouts, releases, subclasses, training, values
from kinds.kind import REPACKED, Group, Kind

CATALOG: tuple[Group, ...] = (
    dense.DTYPES,
    dense.SHAPES,
    dense.TIES,
    subclasses.FLAGS,
    layouts.SPARSE,
    layouts.QUANTIZED,
    layouts.NESTED,
    layouts.WITHOUT_DATA,
    subclasses.SUBCLASSES,
    values.PLAIN,
    values.CLASSES,
    foreign.NUMPY,
    foreign.TORCH,
    training.STATE,
    training.MODULES,
    files.ZIP,
    files.OTHER,
    releases.RELEASES,
)

__all__ = ["CATALOG", "REPACKED", "Group", "Kind"]
