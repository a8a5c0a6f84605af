"""Files: tables of pictures, archives, weights; right ones with some of it changed."""

import functools
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.fuzzing.harness import Rng, command
from benchmarks.fuzzing.texts import mutated, odd, one_of
from feddiverse.data import open_federation
from feddiverse.models import checkpoint


@functools.cache
def _pictures() -> list[bytes]:
    made = []
    for kind, mode in (("PNG", "RGB"), ("PNG", "I;16"), ("JPEG", "RGB"), ("GIF", "P"), ("BMP", "L"), ("TIFF", "I;16")):
        held = io.BytesIO()
        size = np.zeros((9, 12), np.uint16) if mode == "I;16" else np.zeros((9, 12), np.uint8)
        (Image.fromarray(size) if mode == "I;16" else Image.fromarray(size).convert(mode)).save(held, kind)
        made.append(held.getvalue())
    huge = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(huge, "PNG")
    return [*made, huge.getvalue()]


def image_table(rng: Rng, folder: Path) -> None:
    """A table with pictures, opened, and its first client read."""
    os.environ["FEDDIVERSE_HOME"] = str(folder / "cache")
    rows = ["image,class,client,attribute,split"]
    for place in range(16):
        name = f"{place}.png"
        data = _pictures()[int(rng.integers(6))]
        if rng.random() < 0.05:
            data = mutated(rng, data)
        if rng.random() < 0.004:
            data = _pictures()[6]
        (folder / name).write_bytes(data)
        name = odd(rng) if rng.random() < 0.02 else name
        cells = [name, f"y{place % 2}", f"c{place % 3}", f"a{place // 2 % 2}", "test" if place > 11 else "train"]
        rows.append(",".join(odd(rng) if rng.random() < 0.003 else cell for cell in cells))
    data = "\n".join(rows).encode(errors="surrogatepass")
    (folder / "t.csv").write_bytes(mutated(rng, data, 1) if rng.random() < 0.2 else data)
    federation = open_federation(f"table:{folder / 't.csv'}", image_size=int(one_of(rng, [8, 16, 1, 5000])))
    federation.client(0)


def _member_names(rng: Rng) -> list[str]:
    usual = ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "metadata.csv", "a.png", "0/beach/corgi/x.png"]
    hostile = [
        "../out",
        "/etc/x.png",
        "a/../../x.png",
        "C:\\x.png",
        "a\\b.png",
        "x" * 300 + ".png",
        "a.png/",
        "metadata.csv",
    ]
    return [str(one_of(rng, usual if rng.random() < 0.7 else hostile)) for _ in range(int(rng.integers(1, 5)))]


def archive(rng: Rng, folder: Path) -> None:
    """`feddiverse fetch NAME --from ARCHIVE`."""
    os.environ["FEDDIVERSE_HOME"] = str(folder / "cache")
    held = io.BytesIO()
    kind = str(one_of(rng, ["zip", "gz", "bz2", "xz", ""]))
    content = rng.bytes(int(rng.integers(0, 3000))) if rng.random() < 0.9 else b"\0" * 3_000_000
    if kind == "zip":
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in _member_names(rng):
                packed.writestr(name, content)
    else:
        with tarfile.open(fileobj=held, mode=f"w:{kind}") as packed_tar:
            for name in _member_names(rng):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                if rng.random() < 0.1:
                    member.type, member.linkname = (
                        one_of(rng, [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE]),
                        "/etc",
                    )
                    member.size = 0
                packed_tar.addfile(member, io.BytesIO(content[: member.size]))
    data = held.getvalue()
    match int(rng.integers(3)):
        case 0:
            data = mutated(rng, data)
        case 1:
            data = data[: int(rng.integers(0, min(len(data), 200)))]
    file = folder / f"given.{kind or 'tar'}"
    file.write_bytes(data)
    command("fetch", str(one_of(rng, ["mnist", "mobilenet", "waterbirds", "spawrious"])), "--from", str(file))


@functools.cache
def _weights() -> tuple[bytes, bytes]:
    from safetensors.torch import save

    state = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3), "steps": torch.tensor(3)}
    held = io.BytesIO()
    torch.save(state, held)
    return held.getvalue(), save(state)


OPCODES = [
    b"(",
    b")",
    b"]",
    b"}",
    b"K\x01",
    b"\x86",
    b"s",
    b"a",
    b"e",
    b"u",
    b"q\x00",
    b"h\x00",
    b"0",
    b"N",
    b"R",
    b"b",
    b"X\x02\x00\x00\x00ab",
    b"ctorch\nTensor\n",
    b"cos\nsystem\n",
    b"cbuiltins\nlist\n",
    b"Q",
    b"\x8a\x01\x05",
]


def weights(rng: Rng, folder: Path) -> None:
    """Starting weights in a file."""
    pt, safetensors = _weights()
    match int(rng.integers(4)):
        case 0:
            file, data = folder / "w.safetensors", mutated(rng, safetensors)
        case 1:
            file, data = folder / "w.pt", mutated(rng, pt)
        case 2:
            file, data = folder / "w.pth", rng.bytes(int(rng.integers(0, 300)))
        case _:
            program = b"\x80\x02" + b"".join(one_of(rng, OPCODES) for _ in range(int(rng.integers(1, 60)))) + b"."
            held = io.BytesIO()
            with zipfile.ZipFile(held, "w") as packed:
                packed.writestr("archive/data.pkl", program)
                packed.writestr("archive/version", "3\n")
            file, data = folder / "w.pt", held.getvalue()
    file.write_bytes(data)
    checkpoint.read(file)
