"""Where a model is: paths, folders, and Hugging Face ids against a hub that is made up."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import ModelInfo, constants
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from shohin.errors import BadFile, BadRequest
from shohin.formats import locate
from shohin.formats.hub import HubId, choose, parse_id

REPO = "prism-ml/Ternary-Bonsai-8B-gguf"
FILES = [
    ".gitattributes", "README.md", "Ternary-Bonsai-8B-Q2_0.gguf", "Ternary-Bonsai-8B-Q2_0_g64.gguf",
    "Ternary-Bonsai-8B-PQ2_0.gguf", "mmproj-F16.gguf", "big/Bonsai-F16-00001-of-00002.gguf",
    "big/Bonsai-F16-00002-of-00002.gguf",
]  # fmt: skip


class Hub:
    """Stands for the network and the cache; every call is written down."""

    def __init__(self, folder: Path, files: list[str], cached: list[str]) -> None:
        self.folder, self.files, self.calls = folder, files, []
        for name in cached:
            self.place(name)

    def place(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
        return path

    def model_info(self, repo: str, *, timeout: float) -> ModelInfo:
        assert 0 < timeout <= 60
        self.calls.append(("list", repo))
        return ModelInfo(id=repo, siblings=[{"rfilename": name} for name in self.files])

    def hf_hub_download(self, repo: str, name: str, local_files_only: bool = False) -> str:
        self.calls.append(("cached" if local_files_only else "download", name))
        if local_files_only and not (self.folder / name).exists():
            raise LocalEntryNotFoundError("Cannot find the requested files in the disk cache\nmore")
        return str(self.place(name))

    def snapshot_download(self, repo: str, local_files_only: bool = False, allow_patterns: str = "") -> str:
        assert local_files_only
        self.calls.append(("snapshot", repo))
        if not self.folder.exists():
            raise LocalEntryNotFoundError("Cannot find an appropriate cached snapshot folder")
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    made = Hub(tmp_path / "cache" / "snapshot", FILES, [])
    for name in ("model_info", "hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(made, name))
    return made


def test_paths_come_first(hub: Hub, tmp_path: Path) -> None:
    file = tmp_path / "org" / "repo"
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    assert locate(str(file)) == file
    assert locate("org/repo") == Path("org/repo")
    assert hub.calls == []


def test_folders(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    with pytest.raises(BadRequest, match="no GGUF model"):
        locate(str(folder))
    for name in ("m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "mmproj-F16.gguf", "notes.txt"):
        (folder / name).touch()
    assert locate(str(folder)) == folder / "m-00001-of-00002.gguf"
    (folder / "other.gguf").touch()
    with pytest.raises(BadRequest, match=r"2 models fit.*\n  m-00001-of-00002\.gguf\n  other\.gguf$") as caught:
        locate(str(folder))
    assert caught.value.code == "model_ambiguous" and caught.value.param == "model"
    assert hub.calls == []


@pytest.mark.parametrize(
    "model",
    [
        "",
        "\0",
        "nothing.gguf",
        "./no/such",
        "../up/there",
        "/abs/no.gguf",
        "plain",
        "a/b/c",
        "a b/c",
        "org/x.gguf",
        "org/repo:",
    ],
)
def test_neither_path_nor_id(hub: Hub, model: str) -> None:
    with pytest.raises(BadRequest) as caught:
        locate(model)
    assert caught.value.code == "model_not_found"
    assert hub.calls == []


def test_a_home_folder_that_nobody_has(hub: Hub) -> None:
    with pytest.raises(BadRequest, match=r"'~nobody-here-4711/x\.gguf': .*give the folder in full") as caught:
        locate("~nobody-here-4711/x.gguf")
    assert caught.value.code == "model_not_found" and hub.calls == []


def test_ids() -> None:
    assert parse_id("a/b") == HubId("a/b")
    assert parse_id("a/b.c-1:Q1_0") == HubId("a/b.c-1", quant="Q1_0")
    assert parse_id("a/b/c.gguf") == HubId("a/b", file="c.gguf")
    assert parse_id("a/b/sub/c.gguf") == HubId("a/b", file="sub/c.gguf")


@pytest.mark.parametrize(
    ("quant", "file"),
    [("Q2_0", FILES[2]), ("q2_0_g64", FILES[3]), ("PQ2_0", FILES[4]), ("F16", FILES[6])],
)
def test_formats_are_told_apart(quant: str, file: str) -> None:
    assert choose(FILES, quant, REPO) == file


def test_download_by_format(hub: Hub) -> None:
    assert locate(f"{REPO}:pq2_0", progress=False) == hub.folder / FILES[4]
    assert hub.calls == [("list", REPO), ("download", FILES[4])]


def test_download_of_a_split_set(hub: Hub) -> None:
    assert locate(f"{REPO}:F16") == hub.folder / FILES[6]
    assert hub.calls == [("list", REPO), ("download", FILES[6]), ("download", FILES[7])]
    hub.files = FILES[:-1]
    with pytest.raises(BadRequest, match=r"00002-of-00002\.gguf, one of its 2 parts, is missing"):
        locate(f"{REPO}:F16")


def test_download_of_a_file(hub: Hub) -> None:
    assert locate(f"{REPO}/{FILES[2]}") == hub.folder / FILES[2]
    with pytest.raises(BadRequest, match=r"has no file x\.gguf; it holds\n  Ternary"):
        locate(f"{REPO}/x.gguf")


def test_choices_are_listed(hub: Hub) -> None:
    with pytest.raises(BadRequest, match=r"4 models fit.*\n  Ternary-Bonsai-8B-PQ2_0\.gguf\n") as caught:
        locate(REPO)
    assert "mmproj" not in str(caught.value) and "00002-of" not in str(caught.value)
    with pytest.raises(BadRequest, match=r"no GGUF model in Q1_0; it holds\n"):
        locate(f"{REPO}:Q1_0")
    hub.files = ["README.md"]
    with pytest.raises(BadRequest, match=r"no \.gguf files"):
        locate(REPO)


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_offline_asks_only_the_cache(hub: Hub, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = True if by == "argument" else None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", by == "environment")
    for model in (REPO, f"{REPO}/{FILES[2]}"):
        with pytest.raises(BadRequest, match=r"only in the cache.*HF_HUB_OFFLINE"):
            locate(model, offline=offline)
    path = hub.place(FILES[2])
    assert locate(REPO, offline=offline) == locate(f"{REPO}/{FILES[2]}", offline=offline) == path
    hub.place(FILES[6])
    with pytest.raises(BadRequest, match="parts, is missing"):
        locate(f"{REPO}:F16", offline=offline)
    assert {kind for kind, _ in hub.calls} == {"snapshot", "cached"}


def test_failures_of_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> None:
        def call(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(huggingface_hub, "model_info", call)

    class TransportError(Exception):
        """As httpx's: neither an OSError nor a ValueError."""

    for kind in (ConnectionError, TransportError):
        fail(kind("no route to host"))
        with pytest.raises(BadFile, match=f"{REPO}: there is no such .* downloaded: no route to host; run it again"):
            locate(REPO)
    fail(HFValidationError("Repo id must be"))
    with pytest.raises(BadRequest, match="no such repository"):
        locate(REPO)
