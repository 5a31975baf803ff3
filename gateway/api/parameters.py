"""Read the parameters of a request by name, from the query string, a JSON body or a form.

Clients of this API were written after several documents. So a parameter may be in the query string
or the body with every method, a GET with a body included, and under each of its names; numbers may
be written as digits. A body is a JSON object or a form, recognized by its first bytes: programs
name the wrong Content-Type too often to trust it. The same parameter may be given twice if both
values are the same. Everything else is refused with the name of the parameter, what was wrong with
it, and what it takes.

A parameter that an operation does not know is never dropped where that could change the meaning of
the request: see `ParameterSet`.

A `Parameter` is also a row of the OpenAPI document (`openapi.py`): what is documented is what is
checked. Pure: text and bytes in, plain values out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from reprlib import repr as brief
from typing import Any, Final
from urllib.parse import parse_qsl

from myqueue.errors import InvalidName, InvalidRequest, Malformed
from myqueue.gateway.api.large_json import loads

FIELDS_MAX: Final = 100
IGNORED, REFUSED, HANDED_ON = "ignored", "refused", "handed on"  # see `ParameterSet`
OPEN_BRACE: Final = ord("{")
INT_MAX: Final = (1 << 63) - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_DIGITS = re.compile(r"[0-9]{1,19}")
_FORM = re.compile(rb"[^\s={}\[\]\"<>&]{1,200}=")  # JSON never begins like this
# How similar an unknown name has to be to a known one to count as a typing error (SLIP), or to be
# suggested (ANY_LIKENESS).
SLIP, ANY_LIKENESS = 0.85, 0.6
Schema = dict[str, Any]
Read = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter: its names, how it is read, and its description."""

    name: str
    read: Read  # (name, value as given) -> value; raises InvalidRequest
    schema: Schema
    about: str
    also: tuple[str, ...] = ()  # other names that are accepted
    default: Any = None
    required: bool = False
    example: Any = None
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", (self.name, *self.also))


# -- kinds of values ------------------------------------------------------------------------------


def refuse(name: str, value: Any, wanted: str) -> InvalidRequest:
    """Make the error for a value that does not fit."""
    return InvalidRequest(f"{name} is {brief(value)}; it has to be {wanted}")


def text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise refuse(name, value, "a text")
    return value


def topic_name(name: str, value: Any) -> str:
    if type(value) is not str or _NAME.fullmatch(value) is None:
        raise InvalidName(f"{name} is {brief(value)}, not a name of 1 to 200 of A-Z a-z 0-9 . _ -")
    return value


def number(low: int = 0, high: int = INT_MAX) -> Read:
    """Make a reader of whole numbers; digits are accepted too."""

    def read(name: str, value: Any) -> int:
        if type(value) is str and _DIGITS.fullmatch(value):
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            is_small = high == INT_MAX and not (type(value) is int and value > high)
            limits = f"of at least {low}" if is_small else f"from {low} to {high}"
            raise refuse(name, value, f"a whole number {limits}")
        return value

    return read


def signed(name: str, value: Any) -> int:
    """Read a whole number, with or without a minus."""
    is_negative = type(value) is str and value[:1] == "-"
    if is_negative and _DIGITS.fullmatch(value[1:]):
        value = -int(value[1:])
    return int(number(-INT_MAX)(name, value))


def flag(name: str, value: Any) -> bool:
    if type(value) is bool:
        return value
    if value in (0, 1, "0", "1", "true", "false") and type(value) in (int, str):
        return value in (1, "1", "true")
    raise refuse(name, value, "true or false")


def choice(*known: str) -> Read:
    def read(name: str, value: Any) -> str:
        if value not in known or type(value) is not str:
            raise refuse(name, value, f"one of {', '.join(known)}")
        return value

    return read


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Read an object; in the query string it is JSON."""
    value = _from_text(value)
    if type(value) is not dict:
        raise refuse(name, value, "an object")
    return value


def sequence(name: str, value: Any) -> list[Any]:
    value = _from_text(value)
    if type(value) is not list or not value:
        raise refuse(name, value, "a list that is not empty")
    return value


def _from_text(value: Any) -> Any:
    if type(value) is str:
        try:
            return loads(value)
        except ValueError:
            return value
    return value


# -- sources of parameters ------------------------------------------------------------------------


def from_body(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    if body[0] != OPEN_BRACE and _FORM.match(body):
        return dict(from_query(_decoded(body), "form"))
    try:
        document = loads(body)
    except ValueError as error:
        raise Malformed(
            f"the body is neither JSON nor a form: {error}",
            hint='Send an object, {"topic": "orders", …}, or a form, topic=orders&….',
        ) from None
    if type(document) is not dict:
        raise Malformed(f"the body is JSON, but not an object: {brief(document)}")
    return document


def _decoded(form: bytes) -> str:
    try:
        return form.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"the form is not text: {error}") from None


def from_query(query: str, source: str = "query string") -> dict[str, str]:
    if not query:
        return {}
    pairs: Iterable[tuple[str, str]]
    if "%" in query or "+" in query or query.count("&") >= FIELDS_MAX:
        try:
            pairs = parse_qsl(
                query, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
            )
        except ValueError as error:
            raise Malformed(f"the {source} can't be read: {error}") from None
    else:  # nothing to decode; this is four times as fast
        parts = [field.partition("=") for field in query.split("&") if field]
        pairs = [(name, value) for name, _, value in parts]
    values: dict[str, str] = {}
    for name, value in pairs:
        if values.setdefault(name, value) != value:
            raise InvalidRequest(f"{name} is in the {source} twice, with different values")
    return values


class ParameterSet(tuple[Parameter, ...]):
    """The parameters of one operation, found by each of their names.

    `others` says what happens to a parameter that is none of them. IGNORED: it is dropped, unless
    its name is so similar to a known one that it must be a typing error. REFUSED: it is an error,
    for operations that create or remove something. HANDED_ON: it means something to the operation
    itself.
    """

    by_name: dict[str, Parameter]
    _by_letters: dict[str, Parameter]
    needed: tuple[Parameter, ...]
    defaults: dict[str, Any]
    others: str

    def __new__(cls, parameters: Iterable[Parameter], others: str = IGNORED) -> ParameterSet:
        self = super().__new__(cls, parameters)
        self.by_name = {name: parameter for parameter in self for name in parameter.names}
        if len(self.by_name) != sum(len(parameter.names) for parameter in self):
            raise ValueError(
                f"two parameters share a name: {[parameter.names for parameter in self]}"
            )
        self._by_letters = {_letters(name): parameter for name, parameter in self.by_name.items()}
        self.needed = tuple(parameter for parameter in self if parameter.required)
        self.defaults = {parameter.name: parameter.default for parameter in self}
        self.others = others
        return self

    def find(self, name: str) -> Parameter | None:
        """Find a parameter by one of its names, however its words are joined: topicName is
        topic_name.
        """
        return self.by_name.get(name) or self._by_letters.get(_letters(name))

    def check_others(self, others: Iterable[str]) -> None:
        if self.others == HANDED_ON:
            return
        is_strict = self.others == REFUSED
        for name in others:
            like = nearest(name, self.by_name, ANY_LIKENESS if is_strict else SLIP)
            if like or is_strict:
                raise InvalidRequest(f"there is no parameter {brief(name)}{like}", hint=self._hint)

    @property
    def _hint(self) -> str:
        names = ", ".join(parameter.name for parameter in self)
        return f"It takes {names}." if names else "It takes no parameters."


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def nearest(name: str, known: Iterable[str], likeness: float = ANY_LIKENESS) -> str:
    """Return "; did you mean 'topic'?", or "" if no known name is similar."""
    matches = get_close_matches(name[:100].lower(), known, 1, likeness)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def read(
    wanted: ParameterSet, query: str, body: bytes, path: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of all wanted parameters, and the parameters that are not listed.

    Raises InvalidRequest.
    """
    given = from_body(body)
    for more in (from_query(query), path):
        for name, value in more.items():
            if name in given and not _same(given[name], value):
                raise InvalidRequest(f"{name} is given twice, as {brief(given[name])} and {value}")
            given.setdefault(name, value)
    values: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        parameter = wanted.by_name.get(name) or wanted.find(name)
        if parameter is None:
            others[name] = value
        elif value is not None:
            taken = parameter.read(name, value)
            if values.setdefault(parameter.name, taken) != taken:
                names = " and ".join(parameter.names)
                raise InvalidRequest(f"{names} mean the same, and are given with different values")
    if others:
        wanted.check_others(others)
    for parameter in wanted.needed:
        if parameter.name not in values:
            raise InvalidRequest(f"{parameter.name} is missing: {parameter.about}")
    return wanted.defaults | values, others


def _same(one: Any, other: Any) -> bool:
    return one == other or str(one) == str(other)


# -- settings, of a topic or of the cluster -------------------------------------------------------

DIGITS_MAX: Final = 18


def all_settings(more: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Merge settings given as parameters of their own with those in `settings`; digits become
    numbers.

    The managers know which settings exist and their limits.
    """
    return {name: _plain(value) for name, value in {**more, **settings}.items()}


def some_settings(more: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The same for a change: there must be at least one."""
    merged = all_settings(more, settings)
    if not merged:
        raise InvalidRequest("settings are missing: name at least one to change")
    return merged


def _plain(value: Any) -> Any:
    is_digits = isinstance(value, str) and value.isascii() and value.isdecimal()
    return int(value) if is_digits and len(value) <= DIGITS_MAX else value


# -- messages -------------------------------------------------------------------------------------

UTF8, BASE64 = "utf-8", "base64"


def to_bytes(name: str, value: Any, encoding: str) -> bytes:
    """Encode a message or key as a client wrote it. Raises InvalidRequest."""
    if type(value) is not str:
        raise refuse(name, value, "a text (base64, with encoding=base64, if it is not UTF-8)")
    try:
        if encoding == BASE64:
            return base64.b64decode(value, validate=True)
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} has half of a surrogate pair, which is not text") from None
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{name} is not base64: {error}") from None


def from_bytes(value: bytes | None, encoding: str) -> str | None:
    """Decode bytes for an answer. Raises UnicodeDecodeError if they are not UTF-8 and base64 was
    not asked for.
    """
    if value is None:
        return None
    if encoding == BASE64:
        return base64.b64encode(value).decode()
    return value.decode()  # raises UnicodeDecodeError: the caller uses base64 then
