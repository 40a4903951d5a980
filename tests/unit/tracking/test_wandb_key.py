"""W&B's key is known where W&B finds it: with W&B's own writers of the files, and its own hosts."""

import pytest
import wandb
from wandb.sdk.lib.wbauth import write_netrc_auth

from coterie.tracking.wandb_key import api_key_known

KEY = "0" * 40
DEFAULT_BASE_URL = wandb.Settings.model_fields["base_url"].default


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(folder, text):
    folder.mkdir()
    (folder / "settings").write_text(text)


def test_without_anything_there_is_none():
    assert not api_key_known()


@pytest.mark.parametrize("host", sorted({DEFAULT_BASE_URL, "https://api.wandb.ai"}))
def test_the_public_servers_key_is_that_of_wandb_login(host):
    write_netrc_auth(host=host, api_key=KEY)
    assert api_key_known()


def test_a_server_of_ones_own_has_its_own_key_by_name_and_port(monkeypatch):
    write_netrc_auth(host=DEFAULT_BASE_URL, api_key=KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://localhost:8080")
    assert not api_key_known()
    write_netrc_auth(host="http://localhost:8080", api_key=KEY)
    assert api_key_known()
    monkeypatch.setenv("WANDB_BASE_URL", "http://localhost:8081")
    assert not api_key_known()


def test_a_server_given_to_wandb_login_is_remembered(home):
    settings(home / "config", "[default]\nbase_url = https://wandb.example.org\n")
    assert not api_key_known()
    write_netrc_auth(host="https://wandb.example.org", api_key=KEY)
    assert api_key_known()
    settings(home / "wandb", "[default]\nbase_url = https://other.example.org\n")
    assert not api_key_known()


def test_a_key_in_the_settings_and_a_token_file_count(home, monkeypatch):
    settings(home / "wandb", f"[default]\napi_key = {KEY}\n")
    assert api_key_known()
    (home / "wandb" / "settings").write_text("nonsense")
    assert not api_key_known()
    monkeypatch.setenv("WANDB_IDENTITY_TOKEN_FILE", "token")
    assert api_key_known()
