"""Presets of methods have the published values; tests/test_golden.py holds the defaults."""

from __future__ import annotations

import pytest

import lmr

PRESETS = {  # preset and batch size -> the arguments in which it differs from the defaults
    ("eata", "cifar10-c", 200): "diversity=0.4, fisher=1.0",
    ("eata", "cifar100-c", 200): "diversity=0.1, fisher=1.0",
    ("eata", "imagenet", 64): "optimizer='sgd', nesterov=False",
    ("deyo", "cifar10-c", 200): "optimizer='adam'",
    ("deyo", "imagenet", 64): "",
    ("deyo", "imagenet-port", 64): "lr=2.5e-4, nesterov=True",
    ("deyo", "single-images", 1): "lr=3.125e-5",
    ("deyo", "coloredmnist", 64): "lr=5e-3, plpd=0.5, margin=1.0, weight_margin=1.0",
    ("roid", "cifar10-c", 200): "",
    ("roid", "imagenet", 64): "optimizer='sgd', lr=2.5e-4",
    ("roid", "domainnet", 128): "optimizer='sgd', lr=2.5e-4",
    ("cmf", "imagenet", 64): "optimizer='sgd', lr=2.5e-4",
    ("memo", "resnet50", 1): "optimizer='sgd', lr=2.5e-4, weight_decay=0.0",
    ("memo", "resnet26", 1): "optimizer='sgd', lr=5e-3, weight_decay=0.0, views=32",
    ("tpt", "fine-grained", 1): "augmix=True",
    ("ctpt", "fine-grained", 1): "augmix=True",
    ("ctpt", "natural-shifts", 1): "dispersion=20.0, augmix=True",
    ("otpt", "fine-grained", 1): "augmix=True",
    ("otpt", "natural-shifts", 1): "orthogonality=2.0",
    ("dynaprompt", "official", 1): "prompts=12",
    ("dynaprompt", "fine-grained", 1): "lr=3e-3, augmix=True",
    ("dmn", "views", 1): "views=32",
    ("tps", "fine-grained", 1): "lr=1e-3, augmix=True",
    ("oga", "imagenet", 32): "",
    ("dota", "imagenet", 1): "eta=0.2, rho=0.005",
    ("dota", "imagenet-a", 1): "eta=0.5, rho=0.02, views=64, augmix=True",
    ("dota", "eurosat", 1): "eta=3.0, rho=0.05",
    ("dota", "food101", 1): "eta=0.1, rho=0.01, epsilon=4e-5",
    ("onzeta", "imagenet", 1): "",
    ("onzeta", "fine-grained", 1): "beta=0.4",
    ("onzeta", "caltech101", 1): "beta=0.4, alpha=0.0",
    ("watt", "cifar10-c", 128): "",
    ("watt", "imagenet", 128): "lr=1e-4",
    ("clipartt", "imagenet", 128): "",
    ("cliptta", "cifar10-c", 128): "",
    ("cliptta", "cifar100-c", 128): "shots=16, sample=128",
    ("cliptta", "imagenet", 256): "shots=16, sample=64, batch=False",
    ("infomax", "shot", 64): "optimizer='sgd', lr=1e-3, weight_decay=1e-3",
    ("infomax_both", "cifar10-c", 200): "prior='rank', strength='auto'",
    ("infomax_both", "cifar100-c", 200): "prior='rank', strength='auto', optimizer='adam', lr=5e-4, weight_decay=0.0",
    ("infomax_both", "cifar10-c-top", 200): "prior='top', strength=2.0",
    ("subtta", "cifar10-c", 200): "ent_scale=0.05",
    ("subtta", "cifar100-c", 200): "optimizer='adam', lr=5e-4, rank=64, momentum=0.5",
    ("subtta", "imagenet", 64): "lr=5e-4, momentum=0.5, ent_scale=3.0",
    ("ramen", "cifar10-c", 100): "capacity=7500, topk=50",
    ("ramen", "cifar100-c", 100): "",
    ("ramen", "imagenet", 50): "capacity=75, topk=1, beta=0.0",
    ("ramen", "domainnet", 100): "capacity=300, topk=10",
    ("panda", "tent", 64): "method='tent', beta=0.2, again=True",
    ("panda", "zero", 64): "method='zero(views=64)', beta=0.4",
    ("bca", "views", 1): "views=64",
    ("tent", "cifar10-c", 200): "",
    ("tent", "imagenet", 64): "optimizer='sgd'",
    ("eta", "cifar100-c", 200): "",
    ("eta", "imagenet", 64): "optimizer='sgd'",
    ("batclip", "cifar10-c", 200): "",
    ("batclip", "cifar100-c", 200): "lr=5e-4, optimizer='adam'",
    ("batclip", "imagenet", 64): "lr=5e-4",
    ("bitta", "cifar10-c", 200): "",
    ("bitta", "cifar100-c", 200): "lr=5e-4",
    ("bitta", "imagenet", 64): "lr=5e-4",
    ("mint", "imagenet", 64): "",
    ("ecalp", "imagenet", 1): "",
    ("tda", "imagenet", 1): "",
}


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return lmr.load("photo").classifier(["cat", "ship", "dog"])


@pytest.mark.parametrize(("name", "preset", "size"), PRESETS)
def test_presets_are_the_published_values(name: str, preset: str, size: int, clip: lmr.ZeroShot) -> None:
    spec = f"{name}({PRESETS[name, preset, size]})"
    assert lmr.create(name, clip, preset=preset).spec == lmr.create(spec, clip, preset="default").spec
    assert lmr.find_method(name).card.presets[preset].batch_size == size
