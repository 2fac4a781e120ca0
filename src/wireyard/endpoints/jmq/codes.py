"""Statuses of replies, and reasons of GOODBYE, by name."""

from __future__ import annotations

from typing import Final

NOT_MODIFIED: Final = 304
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
NO_CLIENT_ID: Final = 412
BAD_LOGIN: Final = 413
FULL: Final = 414
TOO_LARGE: Final = 423
ERROR: Final = 500
NOT_IMPLEMENTED: Final = 501
BAD_VERSION: Final = 505

SHUTTING_DOWN: Final = 1
FATAL: Final = 4
CLIENT_CLOSED: Final = 5
