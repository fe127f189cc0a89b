"""Clean documents from the sources: scenes of plays, chapters, poems, and talks cut out of the plays.

Whole plays are held out: two to choose by, two that are looked at once, in the end.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from train import sources

VALIDATION = ("the-comedy-of-errors", "king-john")
TEST = ("timon-of-athens", "two-gentlemen-of-verona")
# What a document is: "play" and "talk" from Shakespeare's plays, then the rest.
KINDS = ("play", "renamed", "talk", "poem", "milton", "king-james", "world-english", "austen")
SPLITS = ("train", "validation", "test")
TALKS = 6  # different ways to cut each scene into talks
CASTS = 6  # copies of each scene with its characters under other names
LONGEST_TALK = 7  # exchanges

_CURLY = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--", "–": "-", "\ufeff": None, "\u00a0": " "})
_SPEAKER = re.compile(r"\*\*(.+?)\*\*\s*$")
_HEADING = re.compile(r"#+\s+(.*)$")


@dataclass(frozen=True)
class Document:
    """split: "train", "validation" or "test"."""

    kind: str
    name: str
    split: str
    text: str


@dataclass(frozen=True)
class Speech:
    """speaker None: a stage direction."""

    speaker: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    """heading: title, act and scene, with the place where it is told."""

    play: str
    heading: str
    speeches: tuple[Speech, ...]


def documents(folder: Path) -> list[Document]:
    """Everything, in a fixed order; the same bytes every time."""
    return [*_plays(folder), *_verse(folder), *_bibles(folder), *_austen(folder)]


def save(path: Path, found: list[Document]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(asdict(d), ensure_ascii=False) + "\n" for d in found), encoding="utf-8")


def load(path: Path) -> list[Document]:
    """What ``save`` wrote."""
    with path.open(encoding="utf-8") as file:
        return [Document(**json.loads(line)) for line in file]


def clean(text: str) -> str:
    """Straight quotes, no trailing blanks, at most one empty line in a row."""
    lines = (line.rstrip() for line in text.translate(_CURLY).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def _plays(folder: Path) -> Iterator[Document]:
    everyone = _names(folder)
    for play, markdown in sources.plays(folder):
        split = "validation" if play in VALIDATION else "test" if play in TEST else "train"
        for number, scene in enumerate(scenes(play, markdown)):
            name = f"{play} {number}"
            yield Document("play", name, split, script(scene))
            for way in range(CASTS if split == "train" else 0):
                text = renamed(script(scene), everyone, random.Random(f"{name} cast {way}"))
                yield Document("renamed", f"{name} {way}", split, text)
            for way in range(TALKS if split == "train" else 1):
                for talk in talks(scene, random.Random(f"{name} {way}")):
                    yield Document("talk", f"{name} {way}", split, talk)


def _names(folder: Path) -> list[str]:
    """Proper names of speaking characters in the training plays: words that are never written in small letters."""
    trained = [(play, text) for play, text in sources.plays(folder) if play not in (*VALIDATION, *TEST)]
    small = set(re.findall(r"\b[a-z]{3,}\b", " ".join(text for _, text in trained)))
    speakers = {
        s.speaker for play, text in trained for scene in scenes(play, text) for s in scene.speeches if s.speaker
    }
    words = {word for speaker in speakers for word in re.findall(r"\b[A-Z]{4,}\b", speaker)}
    return sorted(word for word in words if word.lower() not in small)


def renamed(text: str, everyone: list[str], draw: random.Random) -> str:
    """Characters trade names with strangers, everywhere in the scene: who speaks has to be read, not remembered."""
    there = set(re.findall(r"\b[A-Z]{4,}\b", text))
    here = [name for name in everyone if name in there]
    others = draw.sample([name for name in everyone if name not in here], len(here))
    trade = dict(zip(here, others, strict=True))
    trade |= {a.capitalize(): b.capitalize() for a, b in trade.items()}
    return re.sub(r"\b[A-Z][A-Za-z]{3,}\b", lambda found: trade.get(found.group(), found.group()), text)


def scenes(play: str, markdown: str) -> Iterator[Scene]:
    """A play's Markdown as scenes; headings of acts join the scene's own."""
    title, act, heading = "", "", ""
    speeches: list[Speech] = []
    for block in re.split(r"\n\s*\n", markdown.translate(_CURLY)):
        lines = [_plain(line) for line in block.strip("\n").split("\n")]
        found = _HEADING.match(lines[0])
        if found:
            if len([s for s in speeches if s.speaker]) > 1:
                yield Scene(play, heading, tuple(speeches))
                speeches = []
            text = found.group(1).strip()
            title = title or text
            act = text if text.startswith("ACT") else act
            heading = f"{title}. {act}. {text}" if text != act else f"{title}. {act}."
            lines = lines[1:]
        speech = _speech(lines, speeches)
        if speech is not None:
            speeches.append(speech)
    if speeches:
        yield Scene(play, heading, tuple(speeches))


def _plain(line: str) -> str:
    line = re.sub(r"\\(.)", r"\1", line.rstrip()).replace("__[", "_[")
    return re.sub(r"(?<!\*)\*([^*]+)\*(?!\*)", r"_\1_", line)


def _speech(lines: list[str], before: list[Speech]) -> Speech | None:
    lines = [line for line in lines if line]
    if not lines:
        return None
    speaker = _SPEAKER.match(lines[0])
    if speaker:
        spoken = tuple(_directions(line) for line in lines[1:])
        return Speech(speaker.group(1).strip().upper(), spoken) if spoken else None
    if lines[0].startswith("_"):
        return Speech(None, (_directions(" ".join(lines)),))
    # A speech that an empty line or a direction interrupted goes on.
    name = next((s.speaker for s in reversed(before) if s.speaker), None)
    return Speech(name, tuple(map(_directions, lines))) if name else None


def _directions(line: str) -> str:
    return re.sub(r"_+\[?\s*([^_\]]+?)\s*\]?_+", r"[\1]", line).replace("_", "")


def script(scene: Scene) -> str:
    """The scene as a reader sees it: names on lines of their own, directions in brackets."""
    parts = [scene.heading]
    last = None
    for speech in scene.speeches:
        if speech.speaker is None:
            parts.append("\n".join(speech.lines))
            continue
        again = speech.speaker == last and parts[-1][:1] != "["
        parts.append("\n".join(speech.lines if again else (speech.speaker, *speech.lines)))
        last = speech.speaker
    return clean("\n\n".join(parts))


def talks(scene: Scene, draw: random.Random) -> Iterator[str]:
    """Exchanges between one character, who is the assistant, and whoever spoke just before, who is the user."""
    spoken = [s for s in scene.speeches if s.speaker]
    counts: dict[str, int] = {}
    for speech in spoken:
        counts[speech.speaker or ""] = counts.get(speech.speaker or "", 0) + 1
    able = [name for name, count in counts.items() if count > 1]
    if not able or len(counts) < 2:
        return
    chosen = draw.choices(able, [counts[name] for name in able])[0]
    pairs = [(a, b) for a, b in itertools.pairwise(spoken) if b.speaker == chosen and a.speaker != chosen]
    at = 0
    while at < len(pairs):
        size = draw.randint(1, LONGEST_TALK)
        scene_told = f"<|im_start|>system\n{scene.heading}<|im_end|>\n" if draw.random() < 0.25 else ""
        turns = (
            f"<|im_start|>user\n{_said(a)}<|im_end|>\n<|im_start|>assistant\n{_said(b)}<|im_end|>\n"
            for a, b in pairs[at : at + size]
        )
        yield scene_told + "".join(turns)
        at += size


def _said(speech: Speech) -> str:
    return clean("\n".join(speech.lines))


def _verse(folder: Path) -> Iterator[Document]:
    for name, text in sources.verse(folder):
        kind = "poem" if name in sources.POEMS else "milton"
        prose = name == "areopagitica"
        body = clean("\n".join(line.strip() for line in text.split("\n")))
        for number, part in enumerate(_parts(_unwrapped(body) if prose else body)):
            yield Document(kind, f"{name} {number}", "train", part)


def _parts(text: str, about: int = 12_000) -> Iterator[str]:
    """Long works in pieces of some pages, cut between paragraphs."""
    piece: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        piece.append(paragraph)
        size += len(paragraph)
        if size > about:
            yield "\n\n".join(piece)
            piece, size = [], 0
    if piece:
        yield "\n\n".join(piece)


def _bibles(folder: Path) -> Iterator[Document]:
    for kind, chapters in (("king-james", sources.king_james), ("world-english", sources.world_english)):
        for name, text in chapters(folder):
            yield Document(kind, name, "train", clean(text if kind == "world-english" else f"{name}\n\n{text}"))


def _austen(folder: Path) -> Iterator[Document]:
    for number, novel in enumerate(sources.novels(folder)):
        text = clean(re.sub(r"_(\w[^_]*)_", r"\1", novel))
        for part, chapter in enumerate(re.split(r"\n\n(?=CHAPTER |Chapter )", text)):
            if len(chapter) > 500:
                yield Document("austen", f"novel {number} {part}", "train", _unwrapped(chapter))


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))
