"""A program of one's own is configured as a run is: the same plugins, the same report of every mistake."""

from __future__ import annotations

import attrs
import pytest

from ferrule import ConfigError, ModelSpec, Renderer, SamplingParams, Use, load_config
from ferrule.plugins import Registry


@attrs.frozen
class Service:
    renderer: Use[Renderer]
    model: ModelSpec = ModelSpec()
    sampling: SamplingParams = SamplingParams()
    port: int = 0


@pytest.fixture
def service(site, tmp_path):
    site.toy()

    def load(text, *sets):
        (tmp_path / "service.toml").write_text(text)
        return load_config(Service, tmp_path / "service.toml", sets, Registry.discover([str(site.path)]))

    return load


def test_plugins_folders_and_overrides_work_as_in_a_run(service, tmp_path):
    (tmp_path / "weights").mkdir()
    found = service('renderer = { use = "toy", trim = true }\n[model]\npath = "weights"\n', "port=8000")
    assert (found.renderer.label, found.renderer.config.trim, found.port) == ("toy", True, 8000)
    assert found.model.path == str(tmp_path / "weights")


def test_every_mistake_is_reported_at_once(service):
    with pytest.raises(ConfigError) as error:
        service('prot = 1\n[renderer]\nuse = "toy"\nthinking = "keep"\n[sampling]\ntemperature = -1.0\n')
    assert [p.where for p in error.value.problems] == ["prot", "renderer.thinking", "sampling.temperature"]
    assert "cannot do 'keep'; it can do 'template'" in str(error.value)
