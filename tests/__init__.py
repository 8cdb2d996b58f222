"""The tests, and what they share in ``helpers``."""

import pytest

pytest.register_assert_rewrite("tests.helpers")
