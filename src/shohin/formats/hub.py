"""Where a model is: a file, a folder, or a repository on Hugging Face, downloaded or found in its cache.

Downloads, resuming, tokens, mirrors and the cache are huggingface-hub's. ``HF_HUB_OFFLINE`` is obeyed: nothing is
asked of the network then, only the cache is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shohin.errors import BadFile, BadRequest, ShohinError

# How long the hub may take to say which files a repository holds.
HUB_SECONDS = 15

_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:/(?P<file>[^:]+\.gguf)|:(?P<quant>[\w.-]+))?", re.ASCII)
_PART = re.compile(r"-(?P<no>\d{5})-of-(?P<count>\d{5})$")


@dataclass(frozen=True)
class HubId:
    """``org/name`` with, at most, one of: a file in it, or the format wanted (``Q1_0``)."""

    repo: str
    file: str | None = None
    quant: str | None = None


def locate(model: str, *, offline: bool | None = None, progress: bool = True) -> Path:
    """The path of the model file, or of the first of its parts.

    model: a file; a folder with one model; ``org/repo`` with one model; ``org/repo:Q1_0``; ``org/repo/file.gguf``.
    A path that exists comes before an id. offline: True never uses the network; None takes HF_HUB_OFFLINE.
    progress: whether huggingface-hub may draw its bars on standard error.

    BadRequest (``model_not_found``, ``model_ambiguous``) where nothing or too much fits, with the files to choose from;
    BadFile when a download fails.
    """
    path = _local(model)
    if path is not None:
        return path
    wanted = parse_id(model)
    if wanted is None:
        raise _missing(f"{model!r}: there is no such file or folder, and it is no Hugging Face id (org/repo, "
                       f"org/repo:Q1_0 or org/repo/file.gguf)")  # fmt: skip
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE if offline is None else offline
    return _cached(wanted) if offline else _downloaded(wanted, progress)


def parse_id(model: str) -> HubId | None:
    """``org/repo[:quant]`` or ``org/repo/file.gguf`` taken apart; None when the text has neither form."""
    found = _ID.fullmatch(model)
    if found is None or found["repo"].startswith(".") or (model.endswith(".gguf") and found["file"] is None):
        return None
    return HubId(found["repo"], found["file"], found["quant"])


def choose(files: Iterable[str], quant: str | None, where: str) -> str:
    """The one model among file names, the first part standing for a split set; BadRequest lists them otherwise.

    Projectors (``mmproj``) are no models of their own. quant: the format a name must end in, in any case.
    """
    models = sorted(f for f in files if f.lower().endswith(".gguf") and not _stem(f).lower().startswith("mmproj"))
    whole = [f for f in models if (part := _PART.search(_stem(f))) is None or int(part["no"]) == 1]
    fitting = [f for f in whole if quant is None or _has_quant(f, quant)]
    if len(fitting) == 1:
        return fitting[0]
    listed = "\n".join(f"  {f}" for f in (fitting or whole or models)) or "  (no .gguf files)"
    if not fitting:
        asked = "no GGUF model" if quant is None else f"no GGUF model in {quant}"
        raise _missing(f"{where}: {asked}; it holds\n{listed}")
    raise BadRequest(
        f"{where}: {len(fitting)} models fit, name one of them:\n{listed}", param="model", code="model_ambiguous"
    )


def _stem(file: str) -> str:
    return PurePosixPath(file).name.removesuffix(".gguf")


def _has_quant(file: str, quant: str) -> bool:
    stem = _PART.sub("", _stem(file))
    return re.search(rf"(^|[-._]){re.escape(quant)}$", stem, re.IGNORECASE) is not None


def _missing(message: str) -> BadRequest:
    return BadRequest(message, param="model", code="model_not_found")


def _local(model: str) -> Path | None:
    if not model or "\0" in model:
        raise _missing(f"{model!r} is no model: give a file, a folder or a Hugging Face id")
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return path / choose((p.name for p in path.iterdir() if p.is_file()), None, str(path))
        return path if path.exists() else None
    except OSError as error:
        raise _missing(f"{model!r}: cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:  # a home folder that nobody has, or a loop of links
        raise _missing(f"{model!r}: {error}; give the folder in full") from error


def _parts(first: str, files: Sequence[str]) -> list[str]:
    """``first`` and, when it begins a split set, its partners."""
    part = _PART.search(_stem(first))
    if part is None:
        return [first]
    begin = first.removesuffix(".gguf")[: -len(part[0])]
    names = [f"{begin}-{number:05d}-of-{part['count']}.gguf" for number in range(1, int(part["count"]) + 1)]
    absent = next((name for name in names if name not in files), None)
    if absent is not None:
        raise _missing(f"{first}: {absent}, one of its {len(names)} parts, is missing")
    return names


def _cached(wanted: HubId) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    name = f"{wanted.repo}{'' if wanted.file is None else '/' + wanted.file}"
    hint = "it is looked for only in the cache, since HF_HUB_OFFLINE is set or offline was asked for; go online once"
    try:
        if wanted.file is not None:
            return Path(huggingface_hub.hf_hub_download(wanted.repo, wanted.file, local_files_only=True))
        folder = Path(huggingface_hub.snapshot_download(wanted.repo, local_files_only=True, allow_patterns="*.gguf"))
    except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise _missing(f"{name} is not in the Hugging Face cache ({_first_line(error)}); {hint}") from error
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*.gguf")]
    if not files:
        raise _missing(f"{name} has no GGUF file in the Hugging Face cache; {hint}")
    chosen = choose(files, wanted.quant, f"the cache of {wanted.repo}")
    return folder / _parts(chosen, files)[0]


def _downloaded(wanted: HubId, progress: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        files = [
            entry.rfilename for entry in huggingface_hub.model_info(wanted.repo, timeout=HUB_SECONDS).siblings or ()
        ]
        if wanted.file is not None and wanted.file not in files:
            listed = "\n".join(f"  {f}" for f in sorted(files) if f.endswith(".gguf")) or "  (no .gguf files)"
            raise _missing(f"{wanted.repo} has no file {wanted.file}; it holds\n{listed}")
        chosen = wanted.file or choose(files, wanted.quant, wanted.repo)
        with _Bars(progress):
            paths = [Path(huggingface_hub.hf_hub_download(wanted.repo, name)) for name in _parts(chosen, files)]
        return paths[0]
    except GatedRepoError as error:
        raise _missing(
            f"{wanted.repo} is gated: accept its terms on the web and log in ({_first_line(error)})"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise _missing(
            f"{wanted.repo}: there is no such file or folder here and no such repository on Hugging Face, or it is "
            f"private ({_first_line(error)})"
        ) from error
    except ShohinError:
        raise
    except Exception as error:
        # The hub's transport has changed its library, and with it its errors, between versions.
        raise BadFile(
            f"{wanted.repo}: there is no such file or folder here, and it could not be downloaded: "
            f"{_first_line(error)}; run it again to resume"
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class _Bars:
    """Switches huggingface-hub's progress bars off for a while, if they were on."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._restore = False

    def __enter__(self) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars

        if not self._wanted and not are_progress_bars_disabled():
            disable_progress_bars()
            self._restore = True

    def __exit__(self, *_: object) -> None:
        from huggingface_hub.utils.tqdm import enable_progress_bars

        if self._restore:
            enable_progress_bars()
