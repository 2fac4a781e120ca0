"""Protocols that carry a stream: proxy headers, TLS, WebSocket."""
