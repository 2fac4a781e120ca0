"""What the Python processes of a session of ours run before anything else; see `sitecustomize`."""
