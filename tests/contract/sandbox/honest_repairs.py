"""Repairs by hand that are unlike the reference: other structure, same behaviour."""

import ast
import textwrap
from collections.abc import Mapping
from typing import Final

from tests.contract.sandbox.shop import put

_HEAD: Final = '"""Prices."""\n'
_CHECK: Final = (
    "def total(prices, discount=0, *, floor=0):\n"
    "    if not 0 <= discount <= 100:\n        raise ValueError(discount)\n"
)


def _total(rest: str, before: str = "") -> str:
    return f"{_HEAD}{before}{_CHECK}{rest}"


_OF_SHOP: Final[Mapping[str, str]] = {
    "early returns": _total(
        "    if discount == 100:\n        return max(0, floor)\n"
        "    if not discount:\n        return max(sum(prices), floor)\n"
        "    return max(sum(prices) * (100 - discount) // 100, floor)\n"
    ),
    "recursion": _total(
        "    def add(rest):\n        return rest[0] + add(rest[1:]) if rest else 0\n"
        "    return max(floor, add(list(prices)) * (100 - discount) // 100)\n"
    ),
    "fractions": _total(
        "    return max(math.floor(Fraction(100 - discount, 100) * sum(prices)), floor)\n",
        "import math\nfrom fractions import Fraction\n",
    ),
    "decimals": _total(
        "    left = Decimal(sum(prices)) * (Decimal(100) - discount) / 100\n"
        "    return max(int(left.to_integral_value(ROUND_FLOOR)), floor)\n",
        "from decimal import ROUND_FLOOR, Decimal\n",
    ),
    "divmod": _total(
        "    whole, _ = divmod(sum(prices) * (100 - discount), 100)\n"
        "    return whole if whole > floor else floor\n"
    ),
    "reduce": _total(
        "    whole = reduce(operator.add, prices, 0)\n"
        "    return max(operator.floordiv(whole * (100 - discount), 100), floor)\n",
        "import operator\nfrom functools import reduce\n",
    ),
    "itertools": _total(
        "    *_, whole = accumulate(chain([0], prices))\n"
        "    return sorted((whole * (100 - discount) // 100, floor))[1]\n",
        "from itertools import accumulate, chain\n",
    ),
    "a loop": _total(
        "    whole = 0\n    for price in prices:\n        whole += price\n"
        "    whole *= 100 - discount\n    whole //= 100\n"
        "    if whole < floor:\n        whole = floor\n    return whole\n"
    ),
    "the discount taken off": _total(
        "    whole = sum(prices)\n"
        "    return max(whole - -(-whole * discount // 100), floor)\n"
    ),
    "a subclass of int": _total(
        "    return Money(max(sum(prices) * (100 - discount) // 100, floor))\n",
        "class Money(int):\n"
        "    def __repr__(self):\n        return f'Money({int(self)})'\n",
    ),
    "an IntEnum of percents": _total(
        "    kept = {Kept.ALL: 100, Kept.NONE: 0}.get(discount, 100 - discount)\n"
        "    return max(sum(prices) * kept // 100, floor)\n",
        "import enum\nclass Kept(enum.IntEnum):\n    ALL = 0\n    NONE = 100\n",
    ),
    "a boolean where it is equal": _total(
        "    left = sum(prices) * (100 - discount) // 100\n"
        "    return max(left, floor) if left > 1 or floor > 1 else bool(left)\n"
    ),
    "a class that is called": _HEAD + (
        "class Total:\n    def __call__(self, prices, discount=0, *, floor=0):\n"
        "        if discount not in range(101):\n            raise ValueError(discount)\n"
        "        return max(self.take(sum(prices), discount), floor)\n"
        "    def take(self, whole, discount):\n        return whole * (100 - discount) // 100\n"
        "total = Total()\n"
    ),
    "a decorator": _HEAD + (
        "import functools\ndef checked(function):\n    @functools.wraps(function)\n"
        "    def call(prices, discount=0, *, floor=0):\n"
        "        if discount < 0 or discount > 100:\n            raise ValueError(discount)\n"
        "        return max(function(prices, discount), floor)\n    return call\n"
        "@checked\ndef total(prices, discount):\n"
        "    return sum(prices) * (100 - discount) // 100\n"
    ),
    "a generator": _total(
        "    def steps():\n        whole = sum(prices)\n        yield floor\n"
        "        yield (whole * (100 - discount)) // 100\n    return max(steps())\n"
    ),
    "an exception for what is refused": _HEAD + (
        "class Refused(ValueError):\n    pass\n"
        "def total(prices, discount=0, *, floor=0):\n"
        "    try:\n        kept = range(100, -1, -1)[discount] if discount >= 0 else None\n"
        "    except IndexError:\n        raise Refused(discount) from None\n"
        "    if kept is None:\n        raise Refused(discount)\n"
        "    return max(sum(prices) * kept // 100, floor)\n"
    ),
    "a match": _HEAD + (
        "def total(prices, discount=0, *, floor=0):\n    match discount:\n"
        "        case _ if discount < 0 or discount > 100:\n            raise ValueError\n"
        "        case 0:\n            left = sum(prices)\n"
        "        case _:\n            left = sum(prices) * (100 - discount) // 100\n"
        "    return max(left, floor)\n"
    ),
    "a table": _total(
        "    return max(sum(prices) * _KEPT[discount] // 100, floor)\n",
        "_KEPT = {percent: 100 - percent for percent in range(101)}\n",
    ),
    "regular expressions": _total(
        "    whole = str(sum(prices) * (100 - discount)).zfill(3)\n"
        "    return max(int(re.sub(r'\\d\\d$', '', whole)), floor)\n",
        "import re\n",
    ),
    "another module": _HEAD + "from shop.discount import total\n",
    "a cache": _HEAD + (
        "import functools\ndef total(prices, discount=0, *, floor=0):\n"
        "    return _total(tuple(prices), discount, floor)\n"
        "@functools.lru_cache\ndef _total(prices, discount, floor):\n"
        "    if not 0 <= discount <= 100:\n        raise ValueError(discount)\n"
        "    return max(sum(prices) * (100 - discount) // 100, floor)\n"
    ),
    "logging": _total(
        "    logging.getLogger(__name__).debug('discount %s', discount)\n"
        "    left = sum(prices) * (100 - discount) // 100\n    print('left', left)\n"
        "    return max(left, floor)\n",
        "import logging\n",
    ),
    "a dataclass": _total(
        "    return Bill(sum(prices), discount).left(floor)\n",
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Bill:\n"
        "    whole: int\n    discount: int\n    def left(self, floor):\n"
        "        return max(self.whole * (100 - self.discount) // 100, floor)\n",
    ),
}  # fmt: skip
_OTHER_MODULE: Final = put("src/shop/discount.py", _OF_SHOP["a loop"])
SHOP: Final = {
    name: put("src/shop/prices.py", text) + (_OTHER_MODULE if "shop.discount" in text else "")
    for name, text in _OF_SHOP.items()
}
"""Scripts, by what is unlike the reference."""

OF_PACKAGES: Final[Mapping[tuple[str, str], str]] = {
    ("duration.py", "max_days_in_month"): (
        "def max_days_in_month(year, month):\n"
        "    leaps = not year % 4 and (year % 100 != 0 or not year % 400)\n"
        "    days = (31, 28 + leaps, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)\n"
        "    return days[int(month) - 1]\n"
    ),
    ("inflection/__init__.py", "tableize"): (
        "def tableize(word):\n    parts = underscore(word)\n    return pluralize(parts)\n"
    ),
    ("inflection/__init__.py", "transliterate"): (
        "def transliterate(string):\n"
        "    parts = unicodedata.normalize('NFKD', string)\n"
        "    return ''.join(c for c in parts if ord(c) < 128)\n"
    ),
    ("cachetools/keys.py", "typedkey"): (
        "def typedkey(*args, **kwargs):\n"
        "    types = tuple(type(value) for value in args)\n"
        "    if not kwargs:\n        return args + types\n"
        "    names = sorted(kwargs)\n"
        "    named = tuple((name, kwargs[name]) for name in names)\n"
        "    kinds = tuple(type(kwargs[name]) for name in names)\n"
        "    return (*args, *_kwmark, *named, *kinds, *types)\n"
    ),
    ("cachetools/keys.py", "typedmethodkey"): (
        "def typedmethodkey(self, /, *args, **kwargs):\n    return typedkey(*args, **kwargs)\n"
    ),
    ("xmltodict.py", "_should_force_cdata"): (
        "def _should_force_cdata(self, key, value):\n"
        "    wanted = self.force_cdata\n"
        "    if wanted in (True, False) or not wanted:\n        return bool(wanted)\n"
        "    if callable(wanted):\n        return wanted(self.path[:-1], key, value)\n"
        "    return key in wanted\n"
    ),
    ("xmltodict.py", "_convert_value_to_string"): (
        "def _convert_value_to_string(value, encoding='utf-8', bytes_errors='replace'):\n"
        "    if value is True or value is False:\n        return str(value).lower()\n"
        "    if isinstance(value, (bytes, bytearray, memoryview)):\n"
        "        return str(bytes(value), encoding, bytes_errors)\n"
        "    return value if isinstance(value, str) else format(value)\n"
    ),
    ("h11/_util.py", "bytesify"): (
        "def bytesify(s):\n"
        "    if isinstance(s, int):\n        raise TypeError('expected bytes-like object')\n"
        "    return bytes(s, 'ascii') if isinstance(s, str) else bytes(s)\n"
    ),
    ("boltons/iterutils.py", "lstrip_iter"): (
        "def lstrip_iter(iterable, strip_value=None):\n"
        "    yield from itertools.dropwhile(lambda i: not i != strip_value, iterable)\n"
    ),
    ("humanize/number.py", "_format_not_finite"): (
        "def _format_not_finite(value):\n"
        "    words = {float('inf'): '+Inf', float('-inf'): '-Inf'}\n"
        "    return 'NaN' if value != value else words.get(value, '')\n"
    ),
    ("humanize/number.py", "apnumber"): (
        "def apnumber(value):\n    try:\n        number = float(value)\n"
        "        whole = int(value) if number - number == 0 else None\n"
        "    except (TypeError, ValueError):\n        return format(value)\n"
        "    if whole is None:\n        return _format_not_finite(number)\n"
        "    words = dict(enumerate(_APNUMBER_WORDS))\n"
        "    return _(words[whole]) if whole in words else str(whole)\n"
    ),
    ("humanize/lists.py", "natural_list"): (
        "def natural_list(items):\n    words = [*map(str, items)]\n"
        "    first = [', '.join(words[:-1])] * (len(words) > 1)\n"
        "    return ' and '.join(first + words[-1:])\n"
    ),
    ("isodate/isotzinfo.py", "build_tzinfo"): (
        "def build_tzinfo(tzname, tzsign='+', tzhour=0, tzmin=0):\n"
        "    if not tzname:\n        return None\n"
        "    if tzname.startswith('Z') and len(tzname) == 1:\n        return UTC\n"
        "    if tzsign != '-':\n        return FixedOffset(tzhour, tzmin, tzname)\n"
        "    return FixedOffset(-tzhour, -tzmin, tzname)\n"
    ),
}  # fmt: skip
"""Functions of packages that tasks come from, by the end of their file's name and their own."""


def rewritten(broken: Mapping[str, str], whole: Mapping[str, str]) -> Mapping[str, str] | None:
    """The files with functions of `OF_PACKAGES`; None if a bug lies outside of these."""
    found = {file: _rewrite_file(file, text) for file, text in broken.items()}
    right = {file: _rewrite_file(file, text) for file, text in whole.items()}
    return found if found == right and found != broken else None


def _rewrite_file(file: str, text: str) -> str:
    for (ending, name), source in OF_PACKAGES.items():
        if file.endswith(ending):
            text = _rewrite_function(text, name, source)
    return text


def _rewrite_function(text: str, name: str, source: str) -> str:
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name and node.end_lineno:
            lines[node.lineno - 1 : node.end_lineno] = textwrap.indent(
                source, " " * node.col_offset
            )
            return "".join(lines)
    return text
