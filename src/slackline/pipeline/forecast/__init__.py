"""Forecasts of a link's delay from its history; needs the extra `forecast`.

    _history      past delays, at the times of their measurement and on a regular grid
    _options      thresholds
    _periodic     congestion that comes back after a fixed time, by autocorrelation
    _drift        a delay that rises or falls steadily: Theil and Sen's slope
    _bursts       slow times of similar lengths, by their survival function (Kaplan-Meier)
    _models       the table of the models
    _skill        the test whether a model foretells better than the latest delay
    _forecaster   readings in, forecasts out

Each model is fitted to the past and forecasts the delay some time ahead. Later the forecasts are
compared with the measured delays. A model is used only while its past forecasts were clearly better
than two simple ones: the latest delay (persistence), and the median of the past. Otherwise nothing
can be foretold.

The package reads no clock and starts no thread: the same readings always give the same forecasts.
Sources: Theil, 1950, and Sen, 1968 (slope); Kaplan and Meier, 1958 (survival); Tashman, *Out-of-
sample tests of forecasting accuracy*, 2000 (rolling origin).
"""

from slackline.pipeline.forecast._forecaster import Forecast, changes, foresee, observe
from slackline.pipeline.forecast._history import Reading
from slackline.pipeline.forecast._options import ForecastOptions
from slackline.pipeline.forecast._skill import LinkHistory

__all__ = ["Forecast", "ForecastOptions", "LinkHistory", "Reading", "changes", "foresee", "observe"]
