"""The order of classes whose data do not give one."""

import re
from decimal import Decimal


def class_order(name: str) -> tuple[bool, Decimal, str]:
    """A key for sorting the names of classes: numbers by value, 2 before 10, and then others as text."""
    is_number = re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", name, re.ASCII) is not None
    return not is_number, Decimal(name if is_number else 0), name
