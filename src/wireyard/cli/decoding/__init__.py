"""The selection, the reading and the outputs of ``wireyard decode``."""
