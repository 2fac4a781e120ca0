"""Two recordings of the same clients compared: what one broker did otherwise than the other."""

from wireyard.shadow.compare import CLASSES, Difference, differences

__all__ = ["CLASSES", "Difference", "differences"]
