"""A module whose import starts a thread, so that its process cannot be forked without harm."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
