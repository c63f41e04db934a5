"""Parsing whole columns of text at once: numbers and time stamps from byte buffers, without a Python loop over rows.

A field is a slice buffer[start:end]; functions take arrays of starts and ends and return values with a mask of the
fields that they could read. What they cannot read, the caller hands to a slow, exact parser.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.spec.workload import IntArray

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
MAX_DIGITS = 15  # a float64 holds every integer of that many digits
NANOSECONDS = 1_000_000_000
_ZERO, _POINT = 48, 46
_SHORTEST_STAMP = len("2023-11-16 18:17:03")


def parse_integers(buffer: Bytes, start: IntArray, end: IntArray) -> tuple[IntArray, Mask]:
    """Unsigned decimal integers of up to 15 digits."""
    length = end - start
    readable = (length >= 1) & (length <= MAX_DIGITS)
    value = np.zeros(len(start), dtype=np.int64)
    last = len(buffer) - 1
    for offset in range(int(np.max(length, where=readable, initial=0))):
        active = readable & (offset < length)
        digit = buffer[np.minimum(start + offset, last)] - _ZERO
        value = np.where(active, value * 10 + digit, value)
        readable &= ~active | (digit <= 9)
    return value, readable


def parse_decimals(buffer: Bytes, start: IntArray, end: IntArray) -> tuple[NDArray[np.float64], Mask]:
    """Unsigned decimal numbers with an optional point, of up to 15 digits, correctly rounded."""
    length = end - start
    readable = (length >= 1) & (length <= MAX_DIGITS + 1)
    value = np.zeros(len(start), dtype=np.int64)
    point = np.full(len(start), -1, dtype=np.int64)
    last = len(buffer) - 1
    for offset in range(int(np.max(length, where=readable, initial=0))):
        active = readable & (offset < length)
        character = buffer[np.minimum(start + offset, last)]
        is_point = active & (character == _POINT)
        readable &= ~is_point | (point < 0)
        point[is_point] = offset
        digit = character - _ZERO
        value = np.where(active & ~is_point, value * 10 + digit, value)
        readable &= ~active | is_point | (digit <= 9)
    decimals = np.where(point < 0, 0, length - 1 - point)
    readable &= (length > 1) | (point < 0)
    readable &= (length <= MAX_DIGITS) | (point >= 0)
    return value / 10.0 ** np.clip(decimals, 0, MAX_DIGITS), readable


def parse_stamps(buffer: Bytes, start: IntArray, end: IntArray) -> tuple[IntArray, Mask]:
    """Time stamps such as `2023-11-16 18:17:03.9799600` or `2024-05-10T00:00:00.009930+00:00` in ns since 1970 (UTC).

    The fraction may have 0 to 9 digits; the zone may be missing (UTC is assumed), `Z`, or `+hh:mm`.
    """
    nanoseconds = np.zeros(len(start), dtype=np.int64)
    readable = np.zeros(len(start), dtype=np.bool_)
    length = end - start
    for size in np.unique(length):
        if not _SHORTEST_STAMP <= size <= _SHORTEST_STAMP + 16:
            continue
        rows = np.flatnonzero(length == size)
        text = buffer[start[rows, None] + np.arange(size)]
        nanoseconds[rows], readable[rows] = _stamps_of_one_size(text)
    return nanoseconds, readable


def _stamps_of_one_size(text: Bytes) -> tuple[IntArray, Mask]:
    """Stamps of equal length as [rows, characters]."""
    zoned = np.isin(text[:, -6], (ord("+"), ord("-"))) & (text[:, -3] == ord(":"))
    utc = text[:, -1] == ord("Z")
    nanoseconds = np.zeros(len(text), dtype=np.int64)
    readable = np.zeros(len(text), dtype=np.bool_)
    for kind, cut in ((zoned, 6), (utc, 1), (~zoned & ~utc, 0)):
        rows = np.flatnonzero(kind)
        if len(rows) == 0 or text.shape[1] - cut < _SHORTEST_STAMP:
            continue
        nanoseconds[rows], readable[rows] = _local_time(text[rows, : text.shape[1] - cut])
        if cut == 6:
            hour, hour_ok = _digits(text[rows], text.shape[1] - 5, 2)
            minute, minute_ok = _digits(text[rows], text.shape[1] - 2, 2)
            sign = np.where(text[rows, -6] == ord("-"), -1, 1)
            nanoseconds[rows] -= sign * (hour * 60 + minute) * 60 * NANOSECONDS
            readable[rows] &= hour_ok & minute_ok & (hour < 24) & (minute < 60)
    return nanoseconds, readable


def _local_time(text: Bytes) -> tuple[IntArray, Mask]:
    readable = np.isin(text[:, 10], (ord(" "), ord("T")))
    for place, separator in ((4, "-"), (7, "-"), (13, ":"), (16, ":")):
        readable &= text[:, place] == ord(separator)
    fields = []
    for place, count, low, high in (
        (0, 4, 1970, 2261),
        (5, 2, 1, 12),
        (8, 2, 1, 31),
        (11, 2, 0, 23),
        (14, 2, 0, 59),
        (17, 2, 0, 60),
    ):
        number, ok = _digits(text, place, count)
        readable &= ok & (number >= low) & (number <= high)
        fields.append(number)
    year, month, day, hour, minute, second = fields
    nanoseconds = (((_days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * NANOSECONDS
    num_decimals = text.shape[1] - _SHORTEST_STAMP - 1
    if num_decimals >= 0:
        readable &= (text[:, _SHORTEST_STAMP] == _POINT) & (1 <= num_decimals <= 9)
        fraction, ok = _digits(text, _SHORTEST_STAMP + 1, min(num_decimals, 9))
        nanoseconds += fraction * 10 ** (9 - min(num_decimals, 9))
        readable &= ok
    return nanoseconds, readable


def _digits(text: Bytes, place: int, count: int) -> tuple[IntArray, Mask]:
    """The number in columns place … place + count − 1."""
    value = np.zeros(len(text), dtype=np.int64)
    readable = np.ones(len(text), dtype=np.bool_)
    for column in range(place, place + count):
        digit = text[:, column] - _ZERO
        readable &= digit <= 9
        value = value * 10 + digit
    return value, readable


def _days(year: IntArray, month: IntArray, day: IntArray) -> IntArray:
    """Days since 1970-01-01 in the Gregorian calendar: years that start in March put the leap day last."""
    shifted = year - (month <= 2)
    era_day = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400
    year_day = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return np.asarray(era_day + year_day - 719_468)
