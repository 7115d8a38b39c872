"""The dates of a forecast's steps, where those of the rows before them follow a rule."""

import calendar
import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

from longmix.data_prep.tasks.series_files import DATE_FORMATS

_ISO = re.compile(
    r"\d{4}-\d\d-\d\d((?P<mark>.)(?P<clock>\d\d(:\d\d){1,2})(?P<part>[.,]\d+)?(?P<offset>[+-][\d:]+|[Zz])?)?"
)
_DAY = timedelta(days=1)
# Of the steps between working days, those that may pass over one: a holiday.
_HOLIDAYS = 0.1


def dates_ahead(texts: list[str], count: int) -> list[str] | None:
    """The dates of `count` more rows, written as the last one is.

    The rule is the first that holds for all rows: the same number of months from one to the next (on the same day, or
    on the last of each), the same time, working days from Monday to Friday.

    Args:
        texts: dates of the rows before, as `series_files.moment_of` reads one, the newest last.

    Returns:
        None where no rule holds.
    """
    if len(texts) < 3:
        return None  # two rows follow any rule
    texts = [text.strip() for text in texts]
    written = [_read(text) for text in texts]
    last = written[-1]
    if len({moment.utcoffset() for moment in written}) == 1:
        rules = (_by_months, _by_the_clock, _by_working_days)
        moments = [moment.replace(tzinfo=None) for moment in written]
    elif all(moment.tzinfo is not None for moment in written):
        # Clocks were changed on the way: when they are next is not known, but how much time passes is.
        rules, offset = (_by_the_clock,), last.tzinfo
        moments = [moment.astimezone(offset).replace(tzinfo=None) for moment in written]
    else:
        return None
    try:
        made = next((ahead for rule in rules if (ahead := rule(moments)) is not None), None)
        return None if made is None else [_write(moment, last, texts[-1]) for moment in itertools.islice(made, count)]
    except (OverflowError, ValueError):
        return None  # beyond the years that there are


def _by_the_clock(moments: list[datetime]) -> Iterator[datetime] | None:
    steps = {later - before for before, later in itertools.pairwise(moments)}
    step = steps.pop()
    if steps or not step:
        return None
    return (moments[-1] + number * step for number in itertools.count(1))


def _by_months(moments: list[datetime]) -> Iterator[datetime] | None:
    months = [12 * moment.year + moment.month - 1 for moment in moments]
    steps = set(np.diff(months).tolist())
    at_the_end = all(moment.day == _days(month) for moment, month in zip(moments, months, strict=True))
    is_same_day = len({moment.day for moment in moments}) == 1
    if (
        min(steps) < 1
        or len(steps) > 1
        or len({moment.time() for moment in moments}) > 1
        or not (at_the_end or is_same_day)
    ):
        return None
    day, step, time = 31 if at_the_end else moments[-1].day, steps.pop(), moments[-1].time()
    ahead = itertools.count(months[-1] + step, step)
    return (datetime.combine(datetime(m // 12, m % 12 + 1, min(day, _days(m))), time) for m in ahead)


def _days(month: int) -> int:
    """Of a month, counted from year 0."""
    return calendar.monthrange(month // 12, month % 12 + 1)[1]


def _by_working_days(moments: list[datetime]) -> Iterator[datetime] | None:
    days = np.array([moment.date() for moment in moments], dtype="datetime64[D]")
    steps = np.busday_count(days[:-1], days[1:])
    is_working = bool(np.is_busday(days).all()) and len({moment.time() for moment in moments}) == 1
    if not is_working or steps.min() < 1 or np.count_nonzero(steps > 1) > _HOLIDAYS * len(steps):
        return None
    later = (moments[-1] + number * _DAY for number in itertools.count(1))
    return (moment for moment in later if moment.weekday() < 5)


# -----------------------------------------------------------------------------
# As dates are written.


def _read(text: str) -> datetime:
    form = _form_of(text)
    return datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)


def _form_of(text: str) -> str | None:
    """Of DATE_FORMATS; None: ISO 8601."""
    for form in DATE_FORMATS:
        try:
            datetime.strptime(text, form)
        except ValueError:
            continue
        return form
    return None


def _write(moment: datetime, last: datetime, text: str) -> str:
    """A date in the form of `text`, which says `last`."""
    form = _form_of(text)
    if form is not None:
        return moment.strftime(form)
    moment, found = moment.replace(tzinfo=last.tzinfo), _ISO.fullmatch(text)
    if found is None:
        return moment.isoformat()
    if found["clock"] is None:
        return moment.date().isoformat()
    precision = ("minutes", "seconds")[min(found["clock"].count(":"), 2) - 1] if found["part"] is None else "auto"
    made = moment.isoformat(found["mark"], precision)
    return f"{made.removesuffix('+00:00')}Z" if found["offset"] in ("Z", "z") else made
