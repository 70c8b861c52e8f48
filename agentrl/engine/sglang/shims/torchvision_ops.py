"""Names of two torchvision operators, so that torchvision imports beside the CPU build of torch.

The published torchvision library is linked to the GPU build, so its operators are not registered;
the import then fails on their fake implementations. SGLang imports torchvision for image models
only: the operators are declared here and never called.
"""

import torch

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
