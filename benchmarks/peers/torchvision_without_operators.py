"""torchvision's wheels are compiled for the CUDA build of torch: beside the CPU build their import fails on missing
operators. Nothing here calls those; declaring them is enough."""

import torch

_library = torch.library.Library("torchvision", "DEF")
for _signature in (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor x, Tensor rois, float s, int h, int w, int r, bool a) -> Tensor",
    "roi_pool(Tensor x, Tensor rois, float s, int h, int w) -> (Tensor, Tensor)",
):
    _library.define(_signature)
