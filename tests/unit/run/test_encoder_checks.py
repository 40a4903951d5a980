"""An encoder that cannot be built is refused before the run."""

import pytest

from coterie import compose
from coterie.errors import ConfigError
from coterie.networks.encoders import EncoderConfig
from coterie.run.setup import assemble


class Hub(EncoderConfig):
    """An encoder that asks a hub which it cannot reach."""

    def build(self, shape):
        raise OSError("We couldn't connect to 'https://huggingface.co'.\nCheck your connection.")


def test_a_hub_that_is_out_of_reach_is_told_in_a_sentence():
    words = ("experiment=fedavg_digits", "cluster=serial", f"encoder.target={__name__}:Hub")
    with pytest.raises(ConfigError, match=r"^encoder: Hub cannot be built \(We couldn't conn") as e:
        assemble(compose(*words))
    assert str(e.value).endswith("give what it loads as a file or folder that is here.")
    assert "\n" not in str(e.value)
