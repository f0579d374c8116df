from __future__ import annotations

from hypothesis import HealthCheck, settings

# Examples are bounded by number, never by time: a busy machine must not fail a law.
settings.register_profile("laws", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("laws"), max_examples=3000)
if settings.get_current_profile_name() == "default":
    settings.load_profile("laws")
