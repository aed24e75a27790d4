"""The conformance suite over each of the package's families."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from ferrule_renderer_prime.families import FAMILIES
from ferrule_testkit import RendererSuite


class Suite(RendererSuite):
    use = "prime"
    real: ClassVar[bool] = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _tokenizer(cls, folder: Any) -> None:
        cls.model = folder(cls.options["family"], cls.real)


for _family in FAMILIES:
    if _family != "default":
        _name = "Test_" + _family.replace("-", "_").replace(".", "_")
        globals()[_name] = type(_name, (Suite,), {"options": {"family": _family}, "__module__": __name__})
del Suite, RendererSuite
