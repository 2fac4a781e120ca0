"""Facts: tables that layers derive from packets."""
