"""Any MobileNetV2 file fits: by order and shape, BatchNorm folded into GroupNorm so that the features stay alive."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from feddiverse.data import sources
from feddiverse.data.digits import open_digits
from feddiverse.errors import UserError
from feddiverse.models import ModelSpec, build, checkpoint, initial_theta
from feddiverse.models.mobilenet import STAGES, ConvNorm, MobileNetV2

SPEC = ModelSpec("mobilenet", 2, (3, 28, 28), (0.1307,) * 3, (0.3081,) * 3)


def torchvision_names() -> Iterator[tuple[str, str]]:
    """Names of each convolution and its norm, as torchvision's MobileNetV2 has them."""
    yield "features.0.0", "features.0.1"
    index = 0
    for expansion, _, repeats, _ in STAGES:
        for _ in range(repeats):
            index += 1
            units = 2 if expansion == 1 else 3
            for unit in range(units - 1):
                yield f"features.{index}.conv.{unit}.0", f"features.{index}.conv.{unit}.1"
            yield f"features.{index}.conv.{units - 1}", f"features.{index}.conv.{units}"
    yield f"features.{index + 1}.0", f"features.{index + 1}.1"


def timm_names() -> Iterator[tuple[str, str]]:
    """The same as timm's mobilenetv2_100 has them."""
    yield "conv_stem", "bn1"
    for stage, (expansion, _, repeats, _) in enumerate(STAGES):
        for block in range(repeats):
            convs = ("conv_dw", "conv_pw") if expansion == 1 else ("conv_pw", "conv_dw", "conv_pwl")
            for i, conv in enumerate(convs, 1):
                yield f"blocks.{stage}.{block}.{conv}", f"blocks.{stage}.{block}.bn{i}"
    yield "conv_head", "bn2"


def batchnorm_state(names: Iterator[tuple[str, str]], num_classes: int | None = 1000) -> dict[str, Tensor]:
    """A MobileNetV2 with BatchNorm whose running statistics are those of real digits, as training leaves them.

    Channels differ in mean and deviation as they do in a trained network: that is what copying cannot survive.
    """
    torch.manual_seed(0)
    reference = MobileNetV2(2).eval()
    units = [m for m in reference.modules() if isinstance(m, ConvNorm)]
    state: dict[str, Tensor] = {}
    for (conv_name, norm_name), unit in zip(names, units, strict=True):
        unit.conv.weight.data.mul_(10 ** torch.empty(len(unit.conv.weight), 1, 1, 1).uniform_(-1, 1))
        norm = nn.BatchNorm2d(len(unit.norm.weight), momentum=None)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.5)
        unit[1] = norm
        state[f"{conv_name}.weight"] = unit.conv.weight.detach()
        state |= {f"{norm_name}.{key}": value for key, value in norm.state_dict().items()}
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    reference.features(digits())
    if num_classes is not None:
        state["classifier.1.weight"], state["classifier.1.bias"] = (
            torch.randn(num_classes, 1280),
            torch.randn(num_classes),
        )
    return {name: tensor.clone() for name, tensor in state.items()}


@functools.cache
def digits() -> Tensor:
    """Real red digits, normalised, [200, 3, 28, 28]."""
    source = open_digits(2, 2, seed=0)
    ids = np.arange(0, 3600, 18)
    images = source.train_x(ids, np.zeros(len(ids), np.int64))
    return build(SPEC).normalise(torch.from_numpy(images)).contiguous()


def liveliness(theta: np.ndarray) -> float:
    """The features' deviation over digits, mean over features."""
    model = build(SPEC)
    model.load(theta)
    with torch.inference_mode():
        return float(model.module.eval().features(digits()).std(0).mean())


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return batchnorm_state(torchvision_names())


def saved(path: Path, state: object) -> Path:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def test_every_library_and_format_gives_the_same_weights(state, tmp_path):
    expected = initial_theta(SPEC, 0, saved(tmp_path / "torchvision.pt", state))
    in_timm = dict(zip(_timm_keys(state), state.values(), strict=True))
    headless = {name: tensor for name, tensor in state.items() if not name.startswith("classifier")}
    files = {
        "torchvision.pth": state,
        "torchvision.safetensors": state,
        "timm.pt": in_timm,
        "timm.safetensors": in_timm,
        "headless.pt": headless,
        "nested.pt": {"state_dict": state},
    }
    for name, content in files.items():
        np.testing.assert_array_equal(initial_theta(SPEC, 0, saved(tmp_path / name, content)), expected, err_msg=name)
    convs = [t for n, t in state.items() if t.ndim == 4]
    ours = [m.conv.weight for m in _loaded(expected).modules() if isinstance(m, ConvNorm)]
    assert all(torch.equal(a, b) for a, b in zip(ours, convs, strict=True))


def _timm_keys(state: dict[str, Tensor]) -> Iterator[str]:
    modules = iter([name for pair in timm_names() for name in pair] + ["classifier"])
    seen: dict[str, str] = {}
    for name in state:
        module, leaf = name.rsplit(".", 1)
        if module not in seen:
            seen[module] = next(modules)
        yield f"{seen[module]}.{leaf}"


def _loaded(theta: np.ndarray) -> nn.Module:
    model = build(SPEC)
    model.load(theta)
    return model.module


def test_folding_is_the_formula():
    """Channels 0, 1 in one group and 2, 3 in the other, worked by hand."""
    gamma, beta = torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.0, 0.0])
    mean, variance = torch.tensor([1.0, 3.0, 0.0, 0.0]), torch.tensor([1.0, 4.0, 9.0, 9.0])
    weight, bias = checkpoint.fold(gamma, beta, mean, variance, num_groups=2, eps=0.0)
    deviation = (((1 + 1) + (4 + 9)) / 2 - 2**2) ** 0.5
    torch.testing.assert_close(weight, torch.tensor([deviation, 2 * deviation / 2, 1.0, 1.0]))
    torch.testing.assert_close(bias, torch.tensor([0.5 + 1.0, -1.0, 0.0, 0.0]))


def test_folded_features_are_alive_and_copied_ones_dead(checkpoint_file, monkeypatch):
    folded = liveliness(initial_theta(SPEC, 0, checkpoint_file))
    monkeypatch.setattr(checkpoint, "fold", lambda gamma, beta, *_: (gamma, beta))
    copied = liveliness(initial_theta(SPEC, 0, checkpoint_file))
    print(f"deviation over digits: folded {folded:.4f}, copied {copied:.4f}")
    assert folded > 0.2
    assert copied < 0.25 * folded


@pytest.fixture(params=["synthetic", "imagenet"])
def checkpoint_file(request, state, tmp_path) -> Path:
    """A synthetic network everywhere; the real ImageNet weights too where they were fetched before."""
    if request.param == "synthetic":
        return saved(tmp_path / "synthetic.pt", state)
    fetched = sources.find("mobilenet")
    if fetched is None:
        pytest.skip("no MobileNetV2 weights here: `feddiverse fetch mobilenet`")
    return fetched


def test_head_of_as_many_classes_is_taken(tmp_path):
    state = batchnorm_state(torchvision_names(), num_classes=2)
    head = _loaded(initial_theta(SPEC, 0, saved(tmp_path / "two.pt", state))).head
    assert torch.equal(head.weight, state["classifier.1.weight"])
    assert torch.equal(head.bias, state["classifier.1.bias"])


def test_our_own_groupnorm_weights_come_back(tmp_path):
    model = build(SPEC, seed=5)
    for suffix in ("pt", "safetensors"):
        path = saved(tmp_path / f"ours.{suffix}", dict(model.module.state_dict()))
        np.testing.assert_array_equal(initial_theta(SPEC, 0, path), model.vector())


def test_a_file_that_does_not_fit_says_which_tensor(state, tmp_path):
    names = list(state)
    wrong = dict(state) | {names[6]: torch.zeros(7, 3)}
    with pytest.raises(UserError, match=rf"tensor 6, {names[6]}, has shape \(7, 3\) where \(32, 1, 3, 3\)"):
        initial_theta(SPEC, 0, saved(tmp_path / "wrong.pt", wrong))
    short = {n: state[n] for n in names[:50]}
    with pytest.raises(UserError, match="ends after tensor"):
        initial_theta(SPEC, 0, saved(tmp_path / "short.pt", short))
    longer = dict(state) | {"extra": torch.zeros(3)}
    with pytest.raises(UserError, match="does not have"):
        initial_theta(SPEC, 0, saved(tmp_path / "long.pt", longer))


def test_unsafe_broken_and_missing_files_are_refused(tmp_path):
    torch.save({"weights": Path("a pickled object")}, tmp_path / "object.pt")
    (tmp_path / "torn.pt").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    (tmp_path / "empty.pth").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(torch.zeros(3, 2), tmp_path / "tensor.pt")
    torch.save({"model": torch.zeros(3, 2)}, tmp_path / "inner.pt")
    for name in ("object.pt", "torn.pt", "torn.safetensors", "empty.pth", "list.pt", "tensor.pt", "inner.pt"):
        with pytest.raises(UserError, match="cannot be read safely"):
            initial_theta(SPEC, 0, tmp_path / name)
    with pytest.raises(UserError, match="no checkpoint"):
        initial_theta(SPEC, 0, tmp_path / "absent.pt")


def test_other_models_are_matched_by_name(tmp_path):
    spec = ModelSpec("cnn", 2, (3, 28, 28), (0.5,) * 3, (0.5,) * 3)
    model = build(spec, seed=9)
    state = dict(model.module.state_dict())
    np.testing.assert_array_equal(initial_theta(spec, 0, saved(tmp_path / "cnn.safetensors", state)), model.vector())
    with pytest.raises(UserError, match=r"head\.bias has shape \(5,\) where \(2,\)"):
        initial_theta(spec, 0, saved(tmp_path / "wide.pt", state | {"head.bias": torch.zeros(5)}))
    del state["head.weight"]
    with pytest.raises(UserError, match=r"no tensor head\.weight"):
        initial_theta(spec, 0, saved(tmp_path / "less.pt", state))
