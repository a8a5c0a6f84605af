"""Pictures of one colour."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image


def save_picture(path: Path, colour: Sequence[int], size: tuple[int, int] = (12, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(colour)).save(path)
