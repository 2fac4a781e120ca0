"""What packets do, apart from any socket: state machines and the ways between formats."""
