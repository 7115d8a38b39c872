"""The dates of a forecast's steps, where those of the rows before them follow a rule."""

import calendar
import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

from longmix.data_prep.tasks.series_files import date_of, form_of

_ISO = re.compile(
    r"\d{4}-\d\d-\d\d((?P<mark>.)(?P<clock>\d\d(:\d\d){1,2})(?P<part>[.,]\d+)?(?P<offset>[+-][\d:]+|[Zz])?)?"
)
_COMPACT = {8: "%Y%m%d", 13: "%Y%m%dT%H%M", 15: "%Y%m%dT%H%M%S"}
_DAY, _WEEK, _SHORTEST_NIGHT = timedelta(days=1), timedelta(days=7), timedelta(hours=4)
# Of the steps between working days, those that may pass over one: a holiday.
_HOLIDAYS = 0.1


def dates_ahead(texts: list[str], window: int, count: int) -> list[str] | None:
    """The dates of `count` more rows, in the form of the last one, or of the longest of the window.

    The rule is the first that holds: the same number of months from one of the last `window` rows to the next (on the
    same day, or on the last of each); the same time, unless the table has nights, weekends or other such gaps again and
    again; working days from Monday to Friday, in the whole table.

    Args:
        texts: dates of the rows before, as `series_files.moment_of` reads one, the newest last.

    Returns:
        None where no rule holds.
    """
    texts = [text.strip() for text in texts]
    if min(window, len(texts)) < 3:
        return None  # two rows follow any rule
    written = [date_of(text) for text in texts]
    last = written[-1]
    if len({moment.utcoffset() for moment in written[-window:]}) == 1:
        rules = (_by_months, _by_the_clock, _by_working_days)
        moments = [moment.replace(tzinfo=None) for moment in written]
    elif all(moment.tzinfo is not None for moment in written):
        # Clocks were changed on the way: when they are next is not known, but how much time passes is.
        rules, offset = (_by_the_clock,), last.tzinfo
        moments = [moment.astimezone(offset).replace(tzinfo=None) for moment in written]
    else:
        return None
    try:
        ahead = next((found for rule in rules if (found := rule(moments, window)) is not None), None)
        return None if ahead is None else _written(list(itertools.islice(ahead, count)), last, texts[-window:])
    except (OverflowError, ValueError):
        return None  # beyond the years that there are


def _by_the_clock(moments: list[datetime], window: int) -> Iterator[datetime] | None:
    steps = {later - before for before, later in itertools.pairwise(moments[-window:])}
    step = steps.pop()
    if steps or step <= timedelta(0) or _has_gaps_again_and_again(moments, step):
        return None
    return (moments[-1] + number * step for number in itertools.count(1))


def _has_gaps_again_and_again(moments: list[datetime], step: timedelta) -> bool:
    """Whether the rows keep a calendar: gaps that are longer than a lost row, one in two weeks or more."""
    others = [later - before for before, later in itertools.pairwise(moments)]
    is_daily = step >= _DAY
    gaps = [other for other in others if (other != step if is_daily else other > max(_SHORTEST_NIGHT, 2 * step))]
    return len(gaps) >= max(1, (moments[-1] - moments[0]) / (2 * _WEEK))


def _by_months(moments: list[datetime], window: int) -> Iterator[datetime] | None:
    moments = moments[-window:]
    months = [12 * moment.year + moment.month - 1 for moment in moments]
    steps = set(np.diff(months).tolist())
    at_the_end = all(moment.day == _days(month) for moment, month in zip(moments, months, strict=True))
    is_same_day = len({moment.day for moment in moments}) == 1
    is_same_time = len({moment.time() for moment in moments}) == 1
    if len(steps) > 1 or min(steps) < 1 or not is_same_time or not (at_the_end or is_same_day):
        return None
    day, step, time = 31 if at_the_end else moments[-1].day, steps.pop(), moments[-1].time()
    ahead = itertools.count(months[-1] + step, step)
    return (datetime.combine(datetime(m // 12, m % 12 + 1, min(day, _days(m))), time) for m in ahead)


def _days(month: int) -> int:
    """Of a month, counted from year 0."""
    return calendar.monthrange(month // 12, month % 12 + 1)[1]


def _by_working_days(moments: list[datetime], window: int) -> Iterator[datetime] | None:
    days = np.array([moment.date() for moment in moments], dtype="datetime64[D]")
    steps = np.busday_count(days[:-1], days[1:])
    is_working = bool(np.is_busday(days).all()) and len({moment.time() for moment in moments}) == 1
    if not is_working or steps.min() < 1 or np.count_nonzero(steps > 1) > _HOLIDAYS * len(steps):
        return None
    later = (moments[-1] + number * _DAY for number in itertools.count(1))
    return (moment for moment in later if moment.weekday() < 5)


# -----------------------------------------------------------------------------
# As dates are written.


def _written(moments: list[datetime], last: datetime, texts: list[str]) -> list[str] | None:
    """Dates in the form of the last text or, where that says less than they do, of the longest; None: neither does."""
    for text in (texts[-1], max(texts, key=len)):
        made = [_write(moment, last, text) for moment in moments]
        if [date_of(one).replace(tzinfo=None) for one in made] == moments:
            return made
    return None


def _write(moment: datetime, last: datetime, text: str) -> str:
    """A date in the form of `text`, with the offset of `last`."""
    form = form_of(text) or (_COMPACT.get(len(text)) if text[:8].isdigit() else None)
    if form is not None:
        return format(moment, form)
    moment, found = moment.replace(tzinfo=last.tzinfo), _ISO.fullmatch(text)
    if found is None:
        return moment.isoformat()
    if found["clock"] is None:
        return moment.date().isoformat()
    clock = format(moment, "%H:%M:%S" if found["clock"].count(":") > 1 else "%H:%M")
    part = found["part"] or ""
    part = part[:1] + f"{moment.microsecond:06}".ljust(len(part), "0")[: max(0, len(part) - 1)]
    offset = "" if last.tzinfo is None else moment.isoformat()[-6:]
    if found["offset"] in ("Z", "z"):
        offset = found["offset"]
    elif found["offset"] is not None and ":" not in found["offset"]:
        offset = offset.replace(":", "")
    return f"{moment.date().isoformat()}{found['mark']}{clock}{part}{offset}"
