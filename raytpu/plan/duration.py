"""How long ago, and how long until, in words."""

from __future__ import annotations


def age_text(seconds: float) -> str:
    """Whole units, as many as matter for a wait: ``12 s``, ``4 min``, ``2 h 07 min``, ``3 d 4 h``."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def since_text(then_s: float, now_s: float) -> str:
    """``4 min ago``."""
    return f"{age_text(now_s - then_s)} ago"


def until_text(then_s: float, now_s: float) -> str:
    """``in 12 s``; what should be over is ``now``."""
    return f"in {age_text(then_s - now_s)}" if then_s > now_s else "now"
