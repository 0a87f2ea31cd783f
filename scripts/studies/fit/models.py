"""The workloads of MAGIS (ASPLOS 2024), table 2: networks, batches, types, and the device that they are priced for."""

from functools import partial

import torch

from scripts.studies.fit.convolutions import UNet, UNetPlusPlus, resnet50
from scripts.studies.fit.transformer import VisionTransformer
from tests.support.traced_step import Workload, language_model

WORKLOADS: tuple[Workload, ...] = (
    Workload("ResNet-50", resnet50, (64, 3, 224, 224), 25_502_912),
    Workload("BERT-base", partial(language_model, 12, 768, 12), (32, 512, 768), 84_934_656),
    Workload("ViT-base/16", VisionTransformer, (64, 3, 224, 224), 85_702_656),
    Workload("U-Net", UNet, (32, 1, 256, 256), 31_372_994),
    Workload("U-Net++", UNetPlusPlus, (16, 1, 256, 256), 19_907_200),
    Workload("GPT-Neo-1.3B", partial(language_model, 24, 2048, 16), (32, 512, 2048), 1_207_959_552, torch.bfloat16),
    Workload("BTLM-3B", partial(language_model, 32, 2560, 32), (32, 512, 2560), 2_516_582_400, torch.bfloat16),
)
