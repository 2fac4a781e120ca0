"""Startup code of the Python processes of our sessions; see `sitecustomize`."""
