"""The error tree: one root, every class documented and exported."""

import inspect

import pytest

from semistream import errors


def _classes() -> list[type[Exception]]:
    return [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, Exception)]


@pytest.mark.parametrize("cls", _classes(), ids=lambda c: c.__name__)
def test_every_error_stands_under_the_root_and_is_documented(cls: type[Exception]) -> None:
    assert issubclass(cls, errors.SemistreamError)
    assert cls.__doc__
    assert cls.__name__ in errors.__all__


def test_a_message_is_kept_as_given() -> None:
    with pytest.raises(errors.SemistreamError, match="found 1, expected 2"):
        raise errors.BudgetError("found 1, expected 2; raise memory=")


def test_all_names_exist() -> None:
    assert sorted(c.__name__ for c in _classes()) == sorted(errors.__all__)
