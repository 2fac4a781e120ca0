"""The compiled decoder of control packets, and their framing in many small streams.

``packets`` has the kernels over the frames of a window, with the passes over a block of rows
(``blocks``), ``properties`` and ``topics``. ``sessions`` checks packets that begin or acknowledge;
``fields`` fills their own columns. ``streams`` has the kernels over many streams in one call.
"""
