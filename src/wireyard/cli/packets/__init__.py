"""Commands about packets and the files that hold them."""
