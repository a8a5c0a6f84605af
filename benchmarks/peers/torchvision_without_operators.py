"""Import torchvision, also where its wheel is compiled for another build of torch than ours.

Then its import fails on missing operators. Nothing here calls those; declaring them is enough.
"""

import sys

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "DEF")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("roi_align(Tensor x, Tensor rois, float s, int h, int w, int r, bool a) -> Tensor")
    _library.define("roi_pool(Tensor x, Tensor rois, float s, int h, int w) -> (Tensor, Tensor)")
