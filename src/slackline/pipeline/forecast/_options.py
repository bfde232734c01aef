"""Thresholds of the forecasts: the size of a change, and the evidence for a model."""

from dataclasses import dataclass, fields

from slackline.errors import UsageError

__all__ = ["ForecastOptions"]


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """Thresholds of the forecasts of a link's delay.

    Raises UsageError for a value that is not positive, or a fraction that is not below 1.
    """

    memory: int = 512
    """The number of the latest readings of a link to which models are fitted."""
    judged: int = 256
    """The number of the latest forecasts by which a model is judged."""
    least_change_ms: float = 2.0
    """The least difference in ms between delays of a link for which models are fitted."""
    most_error: float = 0.7
    """The largest allowed ratio of a model's errors to the errors of the simple forecasts."""
    doubt: float = 0.02
    """The significance level of the sign test of a model against persistence."""
    block: int = 5
    """The number of consecutive forecasts that the sign test counts as one.

    Errors of neighbouring forecasts depend on each other, because one change of the delay causes
    the errors of several forecasts.
    """
    coverage: float = 0.8
    """The fraction of past errors that the interval of a forecast covers."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise UsageError(f"{field.name} must be positive, not {value}")
        for name in ("most_error", "doubt", "coverage"):
            if getattr(self, name) >= 1:
                raise UsageError(f"{name} must be below 1, not {getattr(self, name)}")
